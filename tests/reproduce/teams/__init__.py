"""Tests of `reproduce/teams`."""
