"""Tests of `reproduce/drawing`."""
