"""What is measured inside a training run, beside the run itself."""
