"""Tests of `petra_core/inspection`."""
