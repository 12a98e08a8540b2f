"""Measure memory and time of a training step, whether an engine, another algorithm or a competing package makes it."""

from collections.abc import Callable, Mapping

import torch

from benchmarks.allocation import Allocations
from benchmarks.recording import Recorder
from benchmarks.tick import record_rounds
from reproduce.records.benchmarks import ALLOCATED, SECONDS, Comparison

Step = Callable[[], object]
Maker = Callable[[], Step]  # makes a contestant and takes its first step, which creates lazy state


def measure(recorder: Recorder, group: str, makers: Mapping[str, Maker], device: torch.device, number: int) -> None:
    """Add the allocator's peak of each contestant, from its construction to a step, then the seconds of steps in turn.

    Both are compared with those of the first contestant.

    Args:
        recorder: Receives the values.
        group: Group of the contestants in the record.
        makers: Makers of the contestants by name. Each is called twice; during timing all contestants are in memory.
        device: Device of the contestants.
        number: Number of rounds.

    """
    for name, make in makers.items():
        with Allocations(device) as allocations:
            make()()
        recorder.add(group, name, ALLOCATED, "B", allocations.peak)
    record_rounds(recorder, group, SECONDS, {name: make() for name, make in makers.items()}, number, device)
    plain, *others = makers
    recorder.comparisons += [Comparison(group, q, name, plain) for q in (ALLOCATED, SECONDS) for name in others]
