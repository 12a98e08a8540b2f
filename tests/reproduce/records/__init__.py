"""Test `reproduce/records`."""
