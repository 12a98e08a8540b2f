"""Load data sets in batches that depend only on (seed, epoch, sample index), so they agree on every machine."""
