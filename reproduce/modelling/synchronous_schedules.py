"""Make schedules of synchronous pipelines, for `reproduce.modelling.simulation`.

Synchronous pipelines empty at every update: n micro-batches make one batch and one update. The methods of the engine
are compared with these:

    gpipe            all n forwards, then all n backwards (Huang et al. 2019)
    one_f_one_b      forwards until the pipeline is full, then backward and forward alternate (PipeDream-Flush)

Every device has one stage, into which neighbouring stages are merged. Stages and micro-batches are numbered from 0.
"""

from reproduce.drawing.timeline import Name
from reproduce.modelling.simulation import Schedule


def gpipe(stages: int, micro_batches: int) -> Schedule:
    """Return the schedule of GPipe: all forwards of a batch, then all its backwards.

    Args:
        stages: Number of stages, which is the number of devices.
        micro_batches: Micro-batches per batch, at least 1.

    """
    return [
        [*((kind, stage, m) for kind in "FB" for m in range(micro_batches)), ("U", stage, 0)] for stage in range(stages)
    ]


def one_f_one_b(stages: int, micro_batches: int) -> Schedule:
    """Return the schedule of 1F1B, in which backward and forward alternate. Arguments: see `gpipe`."""
    return [[*_one_f_one_b(stage, stages, micro_batches), ("U", stage, 0)] for stage in range(stages)]


def _one_f_one_b(stage: int, stages: int, micro_batches: int) -> list[Name]:
    warmup = min(micro_batches, stages - 1 - stage)
    names: list[Name] = [("F", stage, m) for m in range(warmup)]
    for m in range(micro_batches):
        if warmup + m < micro_batches:
            names.append(("F", stage, warmup + m))
        names.append(("B", stage, m))
    return names
