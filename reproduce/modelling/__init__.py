"""What is computed and not run: times, bytes and partitions as values, without words."""
