"""Tests of `reproduce/measures`."""
