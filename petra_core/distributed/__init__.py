"""Run a pipeline over several processes with torch.distributed.

Each process builds the whole pipeline and trains only its stages. In this example rank 0 trains stages 0..2 of 10:

    pipeline = Pipeline(stages, method, seed=0, channel=ProcessChannel((3, 7)))
    ...
    state = pipeline.gather()  # the whole trained network, on every rank
"""

from petra_core.distributed.process_channel import ProcessChannel

__all__ = ["ProcessChannel"]
