"""Random numbers under recomputation: the same dropout mask twice, and nobody else's numbers disturbed.

A stage that evaluates its function again must draw what the forward drew. Resetting the generator for that and
leaving it there (as RevTorch does) makes every later draw of the process repeat itself. Here the forward notes the
state it began with, if it drew at all, and `replay` puts that state in place for one evaluation and the old one back.

Where a stage draws from is the pipeline's choice (`Pipeline(seed=...)`): with a seed, from a stream of its own, so
that its numbers depend on the order of its own actions only, wherever the other stages run; without one, from torch's
global generators, in the order in which plain training would.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

RandomState = tuple[Tensor, ...]  # the CPU generator's state and, for a stage on a CUDA device, that device's


def loaded(state: Sequence[Tensor]) -> RandomState:
    """From a checkpoint, whichever device that was read to: generators, those of a GPU too, take states on the CPU."""
    return tuple(tensor.cpu() for tensor in state)


def capture(device: torch.device) -> RandomState:
    """The state of the generators that a stage on `device` may draw from."""
    if device.type == "cuda":
        return torch.get_rng_state(), torch.cuda.get_rng_state(device)
    return (torch.get_rng_state(),)


def restore(state: RandomState, device: torch.device) -> None:
    """Put a captured state back."""
    torch.set_rng_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state(state[1], device)


def capture_all(devices: Iterable[torch.device]) -> list[RandomState]:
    """The states of all global generators that stages on these devices draw from."""
    return [capture(device) for device in _different(devices)]


def restore_all(states: Sequence[Sequence[Tensor]], devices: Iterable[torch.device]) -> None:
    """Put captured states back. Raises: ValueError: they are those of fewer or more devices."""
    for state, device in zip(states, _different(devices), strict=True):
        restore(loaded(state), device)


def _different(devices: Iterable[torch.device]) -> list[torch.device]:
    cuda = {device for device in devices if device.type == "cuda"}
    return [torch.device("cpu"), *sorted(cuda, key=str)]


def replay(state: RandomState | None, device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Draw again what was drawn from `state` on (None: nothing was). The generators are then as they were before."""
    return contextlib.nullcontext() if state is None else _from(state, device)


@contextlib.contextmanager
def _from(state: RandomState, device: torch.device) -> Iterator[None]:
    outside = capture(device)
    restore(state, device)
    try:
        yield
    finally:
        restore(outside, device)


class Draws:
    """What `RandomStream.forward` found out: the state to replay, or None if nothing was drawn."""

    state: RandomState | None = None


class RandomStream:
    """The source of one stage's random numbers: its own, seeded by (seed, stage, replica), or the global generators.

    Args:
        device: the stage's device.
        seed: None for the global generators.
        stage: number of the stage; different stages of one seed draw independent numbers.
        replica: number among the replicas of the stage; likewise.

    """

    def __init__(self, device: torch.device, seed: int | None, stage: int, replica: int = 0) -> None:
        self._device = device
        self.own: RandomState | None = None
        if seed is not None:
            key = (stage, replica) if replica else (stage,)  # the first draws as one alone does
            number = int(np.random.SeedSequence(seed, spawn_key=key).generate_state(1, np.uint64)[0]) >> 1
            devices = [torch.device("cpu"), *([device] if device.type == "cuda" else [])]
            self.own = tuple(torch.Generator(d).manual_seed(number).get_state() for d in devices)

    @contextlib.contextmanager
    def forward(self) -> Iterator[Draws]:
        """Surround a forward: draws go to this stream, and what a later `replay` needs is noted."""
        draws = Draws()
        outside = capture(self._device)
        begin = outside
        if self.own is not None:
            begin = self.own
            restore(begin, self._device)
        try:
            yield draws
        finally:
            end = capture(self._device)
            # As bytes, since this is done at every forward: torch.equal takes longer than all the rest of it.
            drew = any(a.numpy().tobytes() != b.numpy().tobytes() for a, b in zip(begin, end, strict=True))
            if drew:
                draws.state = begin
            if self.own is not None:
                self.own = end if drew else begin
                restore(outside, self._device)
