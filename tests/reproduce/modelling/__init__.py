"""Test `reproduce/modelling`."""
