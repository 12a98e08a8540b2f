"""Tests of `reproduce/running`."""
