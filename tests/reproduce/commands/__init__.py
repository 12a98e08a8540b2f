"""Test `reproduce/commands`."""
