"""Test `reproduce/measures`."""
