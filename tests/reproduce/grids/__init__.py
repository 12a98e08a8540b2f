"""Tests of `reproduce/grids`."""
