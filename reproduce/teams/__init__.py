"""The processes that compute: teams, replicas, their launch and their wiring."""
