"""Forward gradients with local guesses: another algorithm beside the pipeline, over the same lists of stages.

Read in this order: `settings.py` (what there is to choose; no torch), `layers.py` (what a layer's weights do, sample by
sample), `evaluation.py` (a block, and one evaluation of it), `training.py` (a step of all blocks). Networks and
auxiliary networks are in `petra_core.models.blocks`.
"""
