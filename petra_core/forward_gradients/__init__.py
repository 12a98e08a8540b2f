"""Forward gradients with local guesses: another algorithm beside the pipeline, over the same lists of stages.

`settings.py` says what there is to choose (no torch), `layers.py` what a layer's weights do sample by sample, and
`training.py` trains. Networks and auxiliary networks are in `petra_core.models.blocks`.
"""
