"""Tests of `reproduce/models`."""
