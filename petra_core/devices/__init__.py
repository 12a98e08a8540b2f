"""CUDA graphs and torch.compile: the same ticks, done faster by a device."""
