"""From a lock on a cell to its result, and who is told."""
