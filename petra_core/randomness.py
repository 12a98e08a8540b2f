"""Replay RNG state so that recomputation sees the same dropout mask, without affecting other consumers.

A stage that recomputes its function must draw the random numbers of the forward. Resetting the generator without
restoring it afterwards (as RevTorch does) makes all later draws of the process repeat. Here a forward that draws saves
the state with which it began. `replay` sets this state for one evaluation and then restores the current one.

`Pipeline(seed=...)` selects the source of random numbers. With a seed each stage has a separate stream, so its numbers
depend only on the order of the actions of that stage, regardless of where other stages run. Without a seed all stages
draw from torch's global generators, in the order of plain training.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

#: State of the CPU generator and, for a stage on a CUDA device, state of that device's generator.
RandomState = tuple[Tensor, ...]


def prepare_state(state: Sequence[Tensor], device: torch.device) -> RandomState:
    """Return a state from a checkpoint, ready for `replay` on `device`.

    The tensors may be on any device; generators take states on the CPU.

    Raises:
        ValueError: If the state is of another device type, whose numbers this device cannot reproduce.

    """
    if len(state) != 1 + (device.type == "cuda"):
        raise ValueError(
            f"a micro-batch in flight has drawn random numbers (dropout) on another type of device, and {device} "
            f"cannot reproduce them; resume on the type of device on which the run was stopped"
        )
    return tuple(tensor.cpu() for tensor in state)


def capture(device: torch.device) -> RandomState:
    """Return the state of the generators that a stage on `device` may draw from."""
    on_cpu = torch.default_generator.get_state()
    return (on_cpu, torch.cuda.get_rng_state(device)) if device.type == "cuda" else (on_cpu,)


def restore(state: RandomState, device: torch.device) -> None:
    """Put a captured state back into the generators of `device`."""
    torch.default_generator.set_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state(state[1], device)


def capture_all(devices: Iterable[torch.device]) -> list[RandomState]:
    """Return the states of all global generators that stages on these devices draw from."""
    return [capture(device) for device in _different(devices)]


def restore_all(states: Sequence[Sequence[Tensor]], devices: Iterable[torch.device]) -> None:
    """Restore the states of `capture_all`. Generators of devices that it did not capture keep their state."""
    for state, device in zip(states, _different(devices), strict=False):
        restore(prepare_state(state, device), device)


def _different(devices: Iterable[torch.device]) -> list[torch.device]:
    cuda = {device for device in devices if device.type == "cuda"}
    return [torch.device("cpu"), *sorted(cuda, key=str)]


@contextlib.contextmanager
def replay(state: RandomState | None, device: torch.device) -> Iterator[None]:
    """Draw from `state` in a context, and restore the generators on exit.

    Args:
        state: The state with which the forward began; None if it drew no random numbers.
        device: Device of the stage.

    """
    if state is None:
        yield
        return
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        restore(state, device)
        yield


class RandomStream:
    """The source of one stage's random numbers: a stream seeded by (seed, stage), or the global generators.

    This is a context manager for each forward of the stage. Inside it torch's generators draw from the stream.

    Args:
        device: Device of the stage.
        seed: Seed of the stream. None uses the global generators.
        stage: Index of the stage. Different stages with the same seed draw independent numbers.

    Attributes:
        device: Device of the stage.
        state: Current state of the stream; None for the global generators.
        drawn: State with which the last forward began, for `replay`; None if it drew no random numbers.
        ever_drawn: Whether any forward has drawn random numbers.
        active: False while nothing draws and no generator may be asked for its state.

    """

    drawn: RandomState | None = None
    ever_drawn = False
    active = True

    def __init__(self, device: torch.device, seed: int | None, stage: int) -> None:
        self.device = device
        self.state: RandomState | None = None
        if seed is not None:
            number = int(np.random.SeedSequence(seed, spawn_key=(stage,)).generate_state(1, np.uint64)[0]) >> 1
            devices = [torch.device("cpu"), *([device] if device.type == "cuda" else [])]
            self.state = tuple(torch.Generator(d).manual_seed(number).get_state() for d in devices)
        self._first = self.state

    def load(self, state: Sequence[Tensor] | None) -> None:
        """Load a state of this stream, possibly from another type of device.

        A generator that the state lacks (a CUDA generator in a state from the CPU) starts as in a new run.
        """
        self.state = None
        if state is not None and self._first is not None:
            self.state = (*(tensor.cpu() for tensor in state), *self._first[len(state) :])[: len(self._first)]

    def __enter__(self) -> None:
        if not self.active:
            return
        outside = capture(self.device)
        self._begin, self._outside = self.state or outside, outside
        if self.state is not None:
            restore(self.state, self.device)

    def __exit__(self, *error: object) -> None:
        if not self.active:
            self.drawn = None
            return
        end = capture(self.device)
        self.drawn = self._begin if differ(self._begin, end) else None
        self.ever_drawn = self.ever_drawn or self.drawn is not None
        if self.state is not None:
            self.state = end
            restore(self._outside, self.device)


def differ(before: RandomState, after: RandomState) -> bool:
    """Return whether two states differ."""
    # This runs in every forward, and comparing bytes is faster than torch.equal.
    return [state.numpy().tobytes() for state in before] != [state.numpy().tobytes() for state in after]
