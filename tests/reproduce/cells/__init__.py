"""Test `reproduce/cells`."""
