"""Tests of `reproduce/show`."""
