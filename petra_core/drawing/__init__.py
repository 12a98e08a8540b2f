"""Schedules and timelines as SVG."""
