"""Test `reproduce/running`."""
