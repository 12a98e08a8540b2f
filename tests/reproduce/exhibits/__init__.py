"""Tests of `reproduce/exhibits`."""
