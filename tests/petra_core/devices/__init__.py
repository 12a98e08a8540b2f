"""Tests of `petra_core/devices`."""
