"""Test `reproduce/forward_gradients`."""
