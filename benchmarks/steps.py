"""What a step of training holds and takes, whatever makes it: an engine, an algorithm beside it, a rival."""

from collections.abc import Callable, Mapping

import torch

from benchmarks.allocation import Allocations
from benchmarks.recording import Recorder
from benchmarks.tick import rounds
from reproduce.records.benchmarks import ALLOCATED, SECONDS, Comparison

Step = Callable[[], object]
Maker = Callable[[], Step]  # of a contestant that has done all that only a first step does


def measure(recorder: Recorder, group: str, makers: Mapping[str, Maker], device: torch.device, number: int) -> None:
    """Add the allocator's peak of each contestant from its making to a step, then the seconds of steps in turn.

    Both are compared with those of the first contestant.

    Args:
        recorder: receives the values.
        group: of the contestants.
        makers: of a contestant by its name; each is made twice, and all are there together when time is taken.
        device: where they are.
        number: of rounds.

    """
    for name, make in makers.items():
        with Allocations(device) as allocations:
            make()()
        recorder.add(group, name, ALLOCATED, "B", allocations.peak)
    steps = [make() for make in makers.values()]
    for seconds in rounds(steps, number, device):
        for name, value in zip(makers, seconds, strict=True):
            recorder.add(group, name, SECONDS, "s", value)
    plain, *others = makers
    recorder.comparisons += [Comparison(group, q, name, plain) for q in (ALLOCATED, SECONDS) for name in others]
