"""Experiments as frozen configurations, each with an identity. No file, no device."""
