"""Record the actions of a real pipeline and lay them out in time.

A schedule drawn from a formula shows the intended actions. This module runs a small pipeline, records the executed
actions, and lays them out in time: devices execute the actions of their stages in this order, as early as the messages
allow.
"""

import contextlib
from collections.abc import Iterator, Sequence

import torch

from petra_core.methods import Method
from petra_core.models import chain
from petra_core.pipeline import Pipeline
from petra_core.shares import runs
from petra_core.staleness import Action, Kind
from reproduce.drawing.timeline import Event, Name, ScheduleError, Timeline
from reproduce.published.units import UNITS


def execute(
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


def lay_out(actions: Sequence[tuple[int, Action]], partition: Sequence[int]) -> Timeline:
    """Return executed actions as a timeline. Durations are the units of Table 1 in seconds; messages take no time.

    Args:
        actions: The actions, each with its stage, in the order of execution.
        partition: Number of stages of each device.

    Raises:
        ScheduleError: If the executed actions break a dependency.

    """
    device_of = {stage: device for device, run in enumerate(runs(partition)) for stage in run}
    reconstructing = {(stage, action.number) for stage, action in actions if action.kind is Kind.RECONSTRUCT}
    ahead = _reconstructs_ahead(actions)

    def needs(stage: int, action: Action) -> list[Name]:
        """Return the actions that must be complete before an action."""
        number = action.number
        if action.kind is Kind.UPDATE or (action.kind is Kind.FORWARD and stage == 0):
            return []
        if action.kind is Kind.FORWARD:
            return [("F", stage - 1, number)]
        # A reconstruction needs the reconstructed input of the stage above. If it overlaps with that stage's backward,
        # it depends on that stage's reconstruction, else on its backward. Below the head it uses the head's output.
        overlaps = action.kind is Kind.RECONSTRUCT and ahead
        names: list[Name] = [("F", stage, number)]
        if stage < len(device_of) - 1 and (not overlaps or (stage + 1, number) in reconstructing):
            names.append(("R" if overlaps else "B", stage + 1, number))
        return names

    ends: dict[Name, float] = {}
    free = [0.0] * len(partition)
    events: list[list[Event]] = [[] for _ in partition]
    for stage, action in actions:
        device, name = device_of[stage], (action.kind.value, stage, action.number)
        before = needs(stage, action)
        for kind, other, number in before:
            if (kind, other, number) not in ends:
                raise ScheduleError(f"stage {stage} executed {action} before {kind}{number} of stage {other}")
        begin = max([free[device], *(ends[need] for need in before)])
        ends[name] = free[device] = begin + UNITS[action.kind]
        events[device].append(Event(device, name, begin, ends[name]))
    return Timeline(tuple(event for on_device in events for event in on_device), len(partition))


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
