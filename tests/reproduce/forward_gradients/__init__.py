"""Tests of `reproduce/forward_gradients`."""
