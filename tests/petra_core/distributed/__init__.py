"""Tests of `petra_core/distributed`."""
