"""Tests of `reproduce/records`."""
