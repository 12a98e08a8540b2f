"""Test `reproduce/teams`."""
