"""Test `reproduce/drawing`."""
