"""Test `reproduce/distributed`."""
