"""Test `reproduce/grids`."""
