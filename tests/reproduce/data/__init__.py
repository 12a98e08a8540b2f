"""Test `reproduce/data`."""
