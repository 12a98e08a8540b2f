"""Models of what is not run: times, bytes and partitions computed as values, without words."""
