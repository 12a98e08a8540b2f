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
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

RandomState = tuple[Tensor, ...]  # the CPU generator's state and, for a stage on a CUDA device, that device's


def loaded(state: Sequence[Tensor], device: torch.device) -> RandomState:
    """A state from a checkpoint, from which a stage on `device` is to draw once more what it has drawn.

    The tensors may have been read to any device: all generators take states on the CPU.

    Raises:
        ValueError: it was drawn on a device of another kind, whose numbers this one cannot draw.

    """
    if len(state) != 1 + (device.type == "cuda"):
        raise ValueError(
            f"a micro-batch in flight has drawn random numbers (dropout) on a device of another kind, and on {device} "
            f"they cannot be drawn again; go on on a device of the kind on which the run was stopped"
        )
    return tuple(tensor.cpu() for tensor in state)


def capture(device: torch.device) -> RandomState:
    """The state of the generators that a stage on `device` may draw from."""
    on_cpu = torch.default_generator.get_state()
    return (on_cpu, torch.cuda.get_rng_state(device)) if device.type == "cuda" else (on_cpu,)


def restore(state: RandomState, device: torch.device) -> None:
    """Put a captured state back into the generators of `device`."""
    torch.default_generator.set_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state(state[1], device)


def capture_all(devices: Iterable[torch.device]) -> list[RandomState]:
    """The states of all global generators that stages on these devices draw from."""
    return [capture(device) for device in _different(devices)]


def restore_all(states: Sequence[Sequence[Tensor]], devices: Iterable[torch.device]) -> None:
    """Put the states of `capture_all` back; generators of devices that were not among those then stay as they are."""
    for state, device in zip(states, _different(devices), strict=False):
        restore(loaded(state, device), device)


def _different(devices: Iterable[torch.device]) -> list[torch.device]:
    cuda = {device for device in devices if device.type == "cuda"}
    return [torch.device("cpu"), *sorted(cuda, key=str)]


@contextlib.contextmanager
def replay(state: RandomState | None, device: torch.device) -> Iterator[None]:
    """Context in which is drawn again what was drawn from `state` on (None: nothing was).

    Afterwards the generators are as they were before.
    """
    if state is None:
        yield
        return
    outside = capture(device)
    restore(state, device)
    try:
        yield
    finally:
        restore(outside, device)


class RandomStream:
    """The source of one stage's random numbers: its own, seeded by (seed, stage), or the global generators.

    A context around each forward of the stage: what is drawn inside comes from this stream.

    Args:
        device: the stage's device.
        seed: None for the global generators.
        stage: number of the stage; different stages of one seed draw independent numbers.

    Attributes:
        state: of the generators of this stream; None for the global generators.
        drawn: the state with which the last forward began, for its `replay`; None if it drew nothing.
        ever_drawn: whether any forward has drawn, since the stream was made.
        active: False while nothing draws and no generator may be asked for its state.

    """

    drawn: RandomState | None = None
    ever_drawn = False
    active = True

    def __init__(self, device: torch.device, seed: int | None, stage: int) -> None:
        self._device = device
        self.state: RandomState | None = None
        if seed is not None:
            number = int(np.random.SeedSequence(seed, spawn_key=(stage,)).generate_state(1, np.uint64)[0]) >> 1
            devices = [torch.device("cpu"), *([device] if device.type == "cuda" else [])]
            self.state = tuple(torch.Generator(d).manual_seed(number).get_state() for d in devices)
        self._first = self.state

    def load(self, state: Sequence[Tensor] | None) -> None:
        """Go on from a state of this stream, also of one on a device of another kind.

        A generator that is not in it, a CUDA device's in a state of the CPU, begins as it would in a new run.
        """
        if state is None or self._first is None:
            self.state = None
        else:
            self.state = (*(tensor.cpu() for tensor in state), *self._first[len(state) :])[: len(self._first)]

    def __enter__(self) -> None:
        if not self.active:
            return
        outside = capture(self._device)
        self._begin, self._outside = self.state or outside, outside
        if self.state is not None:
            restore(self.state, self._device)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.active:
            self.drawn = None
            return
        end = capture(self._device)
        self.drawn = self._begin if differ(self._begin, end) else None
        self.ever_drawn = self.ever_drawn or self.drawn is not None
        if self.state is not None:
            self.state = end
            restore(self._outside, self._device)


def differ(before: RandomState, after: RandomState) -> bool:
    """Whether numbers were drawn between. As bytes, since it is done at every forward: torch.equal takes longer."""
    return [state.numpy().tobytes() for state in before] != [state.numpy().tobytes() for state in after]
