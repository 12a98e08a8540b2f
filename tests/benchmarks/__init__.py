"""Test `benchmarks`."""
