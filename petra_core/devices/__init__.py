"""Run the steps of a pipeline faster on a device, with CUDA graphs and torch.compile."""
