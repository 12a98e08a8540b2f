"""Tests of `reproduce`."""
