"""Networks as users have them: a plain model each, its stages in a few lines, and batches that need no data.

Every file has `Model` (plain PyTorch), `stages(model)`, `batch()` and `loss(output, target)`, in at most 60 lines.
"""
