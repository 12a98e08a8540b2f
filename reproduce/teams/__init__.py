"""Who computes: processes, replicas, their launch and their wiring."""
