"""Tests of `reproduce/data`."""
