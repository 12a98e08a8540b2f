"""Tests of `reproduce/modelling`."""
