"""Tests of `petra_core/drawing`."""
