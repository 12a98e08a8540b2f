"""Tests of `petra_core/prediction`."""
