"""Model speed and memory of what is not run: times, bytes and partitions, as values without texts."""
