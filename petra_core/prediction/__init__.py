"""Bytes and times of a run before anything is run: memory by stage, schedules of rivals, simulated timelines."""
