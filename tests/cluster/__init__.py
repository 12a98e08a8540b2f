"""What needs a cluster: collected by a session of its own, since no path but its own names it."""
