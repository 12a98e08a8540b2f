"""Data sets and loaders: the same batches on every machine, from (seed, epoch, sample index) alone."""
