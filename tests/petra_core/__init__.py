"""Tests of `petra_core`."""
