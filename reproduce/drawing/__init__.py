"""Draw schedules and timelines as SVG."""
