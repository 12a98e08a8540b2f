"""Bytes and times of a run before anything is run: memory by stage, schedules, simulated timelines."""
