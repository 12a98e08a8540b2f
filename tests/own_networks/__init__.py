"""Networks as users write them: a plain model, its stages in a few lines, and random batches.

Every file defines `Model` (plain PyTorch), `stages(model)`, `batch()` and `loss(output, target)` in at most 60 lines.
"""
