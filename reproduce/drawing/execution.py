"""Record the actions of a real pipeline and lay them out in time.

A schedule drawn from a formula shows the intended actions. This module runs a small pipeline, records the executed
actions, and simulates devices that execute the actions of their stages in this order, as early as the messages allow
(`petra_core.prediction.simulation`).
"""

import contextlib
from collections.abc import Iterator, Sequence

import torch

from petra_core.methods import Method
from petra_core.models import chain
from petra_core.pipeline import Pipeline
from petra_core.prediction.simulation import Operation, simulate
from petra_core.prediction.timeline import Timeline
from petra_core.prediction.units import UNITS
from petra_core.shares import stage_ranges
from petra_core.staleness import Action, Kind

__all__ = ["executed", "laid_out"]


def executed(
    method: Method, stages: int, micro_batches: int, accumulation: int = 1, staleness: Sequence[int] | None = None
) -> list[tuple[int, Action]]:
    """Run a pipeline, drain it, and return the executed actions, each with its stage.

    The network is a chain of reversible blocks between a stem and a head.

    Args:
        method: One of `petra_core.methods.ALL`.
        stages: Number of stages J, at least 2.
        micro_batches: Number of micro-batches, at least 1. The pipeline fills up if it exceeds the staleness of stage
            0.
        accumulation: Micro-batches per update, k.
        staleness: Staleness of each stage, as in `Pipeline`.

    Raises:
        ValueError: If a number is out of range.

    """
    if stages < 2 or micro_batches < 1:
        raise ValueError(f"a drawing has at least 2 stages and 1 micro-batch, got {stages} and {micro_batches}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = chain(stages - 2, num_classes=2, channels=2, in_channels=1)
        images, labels = torch.randn(2, 1, 4, 4), torch.tensor([0, 1])
    pipeline = Pipeline(
        network,
        method,
        accumulation=accumulation,
        staleness=staleness,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
        seed=0,
    )
    with _one_thread(), pipeline.recording() as recording:
        for _ in range(micro_batches):
            pipeline.step(images, labels)
        pipeline.drain()
    return recording


def laid_out(actions: Sequence[tuple[int, Action]], partition: Sequence[int]) -> Timeline:
    """Return executed actions as a timeline. Durations are the units of Table 1 in seconds; messages take no time.

    Args:
        actions: The actions, each with its stage, in the order of execution.
        partition: Number of stages of each device.

    Raises:
        ScheduleError: If the executed actions break a dependency.

    """
    stages, last = sum(partition), sum(partition) - 1
    # A reconstruction needs the reconstructed input of the stage above. If it overlaps with that stage's backward, it
    # depends on that stage's reconstruction, else on its backward.
    reconstructing = {(stage, action.number) for stage, action in actions if action.kind is Kind.RECONSTRUCT}
    ahead = _reconstructs_ahead(actions)

    def needs(stage: int, action: Action) -> tuple[tuple[tuple[str, int, int], int], ...]:
        number = action.number
        if action.kind is Kind.FORWARD:
            return ((("F", stage - 1, number), 0),) if stage else ()
        if action.kind is Kind.UPDATE:
            return ()
        forward: tuple[tuple[str, int, int], int] = (("F", stage, number), 0)
        if stage == last:
            return (forward,)
        above: tuple[str, int, int] = ("B", stage + 1, number)
        if action.kind is Kind.RECONSTRUCT and ahead:
            if (stage + 1, number) not in reconstructing:  # below the head the stage uses its output
                return (forward,)
            above = ("R", stage + 1, number)
        return (forward, (above, 0))

    devices = [
        [
            Operation((action.kind.value, stage, action.number), float(UNITS[action.kind]), needs(stage, action))
            for stage, action in actions
            if stage in own
        ]
        for own in stage_ranges(partition, stages)
    ]
    return simulate(devices)


def _reconstructs_ahead(actions: Sequence[tuple[int, Action]]) -> bool:
    """Return whether reconstructions come before the backward of the stage above."""
    place = {(stage, action): number for number, (stage, action) in enumerate(actions)}
    return any(
        action.kind is Kind.RECONSTRUCT and number < place[stage + 1, Action(Kind.BACKWARD, action.number)]
        for (stage, action), number in place.items()
    )


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread in a context. On tiny tensors and a busy machine, several threads can block for seconds."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
