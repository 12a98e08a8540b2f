"""The same stages over several processes, by torch.distributed.

Each process of a group makes the whole pipeline and trains its own stages (here 0..2 of 10 are rank 0's):

    pipeline = Pipeline(stages, method, seed=0, channel=ProcessChannel((3, 7)))
    ...
    state = pipeline.gather()  # of the whole trained network, on every rank
"""

from petra_core.distributed.process_channel import ProcessChannel

__all__ = ["ProcessChannel"]
