"""Tests of `reproduce/report`."""
