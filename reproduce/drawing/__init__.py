"""Draw schedules and timelines as Gantt charts."""
