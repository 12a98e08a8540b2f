"""Train the same lists of stages by forward gradients with local guesses instead of a pipeline.

Read the modules in this order: `settings.py` (the options, without torch), `layers.py` (weight gradients of a layer per
sample), `evaluation.py` (a block and one evaluation of it) and `training.py` (a step of all blocks). The networks and
auxiliary networks are in `blocks.py`.
"""
