"""Benchmarks: scripts that measure one claim each and print their setting with the result."""
