"""Tests of `reproduce/commands`."""
