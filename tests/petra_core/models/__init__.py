"""Tests of `petra_core/models`."""
