"""Tests of `reproduce/presentation`."""
