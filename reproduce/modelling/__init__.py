"""Model what is not run: times, bytes and partitions, as values without texts."""
