"""Tests of `reproduce/cells`."""
