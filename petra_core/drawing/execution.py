"""The schedule of a pipeline that was really run.

A schedule drawn from a formula shows what should happen. Here a small pipeline is run, its ticks are recorded as they
are executed, and the recording is checked by the independent validator before anybody draws it.
"""

import contextlib
from collections.abc import Iterator

import torch

from petra_core.methods import Method
from petra_core.models import chain
from petra_core.pipeline import Pipeline
from petra_core.schedule import Schedule
from petra_core.validation import validate

__all__ = ["executed"]


def executed(method: Method, stages: int, micro_batches: int, accumulation: int = 1) -> Schedule:
    """The schedule that a pipeline carried out: so many micro-batches in, then drained.

    Args:
        method: any of `petra_core.methods.ALL`.
        stages: J, at least 2; a chain of reversible blocks between a stem and a head.
        micro_batches: at least 1; more than 2J - 1 of them show a full pipeline.
        accumulation: k.

    Raises:
        ValueError: a number out of its range.
        ScheduleError: what was executed breaks a dependency.

    """
    if stages < 2 or micro_batches < 1:
        raise ValueError(f"a schedule has at least 2 stages and 1 micro-batch, got {stages} and {micro_batches}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = chain(stages - 2, num_classes=2, channels=2, in_channels=1)
        images, labels = torch.randn(2, 1, 4, 4), torch.tensor([0, 1])
    pipeline = Pipeline(
        network,
        method,
        accumulation=accumulation,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
        seed=0,
    )
    with _one_thread(), pipeline.recording() as recording:
        for _ in range(micro_batches):
            pipeline.step(images, labels)
        pipeline.drain()
    validate(recording.schedule)
    return recording.schedule


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Several threads on tensors of a hundred numbers wait for one another, on a busy machine for many seconds."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
