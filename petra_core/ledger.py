"""Bytes accounted as they come and go: what every stage holds, of which kind, now and at its peak.

Asking the allocator says how much memory a process uses, not whose it is or why; summing formulas says what should be
there. The ledger is kept by the worker that owns the tensors: an entry when something is kept, its removal when it is
let go. Sizes are payloads (elements times bytes an element), each stage counted as if it were alone on its device, so
a tensor that two stages of one process share counts at both. Not counted: temporaries inside a single operation.

    parameters        weights of the stage
    buffers           running statistics and other module buffers
    gradients         accumulated between backwards
    optimizer         momentum and other optimizer state
    inputs            inputs kept for backwards to come
    stashed_weights   weights of earlier forwards, kept for their backwards
    messages          received and not yet worked off, targets included
    graph             tensors saved for backward by living autograd graphs, less those counted above
    side_bits         what the inversion of a stage needs besides its output (`petra_core.models.bdia`)
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the names of the kinds are asked for where nothing is computed, which does not wait for torch
    from torch import Tensor

KINDS = (
    "parameters",
    "buffers",
    "gradients",
    "optimizer",
    "inputs",
    "stashed_weights",
    "messages",
    "graph",
    "side_bits",
)


def payload(tensors: "Iterable[Tensor]") -> int:
    """Bytes of the elements of `tensors`."""
    count = 0
    for tensor in tensors:
        count += tensor.nbytes
    return count


def storage_of(tensor: "Tensor") -> int:
    """Which memory a tensor lies in: the same number for all that share it, and for no others while they live."""
    number: int = tensor.untyped_storage()._cdata
    return number


class SavedTensors:
    """Context that measures the bytes which autograd saves for backward in the graphs recorded inside it.

    Storages are counted once and whole; those of `accounted` tensors (parameters, buffers, inputs) are left out.
    """

    def __init__(self, accounted: "Iterable[Tensor]") -> None:
        import torch

        self._accounted = {storage_of(tensor) for tensor in accounted}
        self._saved: dict[int, Tensor] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self.bytes = 0

    def _pack(self, tensor: "Tensor") -> "Tensor":
        # Kept until the end of the measurement: a freed storage's address may be used again.
        self._saved[storage_of(tensor)] = tensor
        return tensor

    def __enter__(self) -> "SavedTensors":
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)
        self.bytes = sum(t.untyped_storage().nbytes() for key, t in self._saved.items() if key not in self._accounted)
        self._saved.clear()


class Ledger:
    """Running account of the bytes that one stage holds, by kind."""

    def __init__(self) -> None:
        self.now = dict.fromkeys(KINDS, 0)
        self.peak = dict.fromkeys(KINDS, 0)
        self.peak_total = 0
        self._total = 0

    def add(self, kind: str, count: int) -> None:
        """Note that `count` more bytes of `kind` are held (fewer if negative)."""
        held = self.now[kind] + count
        assert held >= 0, f"the ledger went below zero: {held} bytes of {kind}"
        self.now[kind] = held
        self._total += count
        if held > self.peak[kind]:
            self.peak[kind] = held
        if self._total > self.peak_total:
            self.peak_total = self._total

    def set(self, kind: str, count: int) -> None:
        """Note that `count` bytes of `kind` are held."""
        self.add(kind, count - self.now[kind])


@dataclass(frozen=True)
class StageMemory:
    """Bytes of one stage: held now, largest so far of each kind, and the largest sum of all kinds at one moment."""

    stage: int
    now: Mapping[str, int]
    peak: Mapping[str, int]
    peak_total: int


@dataclass(frozen=True)
class MemoryReport:
    """Bytes per stage and kind; `str(report)` is a table in MB (1e6 bytes)."""

    stages: tuple[StageMemory, ...]

    def now(self, *kinds: str) -> int:
        """Bytes held at this moment in all stages, of the given kinds (all kinds if none is given)."""
        return sum(stage.now[kind] for stage in self.stages for kind in kinds or KINDS)

    def peak(self, *kinds: str) -> int:
        """Sum over stages of the largest bytes held, of the given kinds (all kinds if none is given).

        With no kinds: each stage's largest total at one moment, which is at most the sum of its kinds' peaks.
        """
        if not kinds:
            return sum(stage.peak_total for stage in self.stages)
        return sum(stage.peak[kind] for stage in self.stages for kind in kinds)

    def __str__(self) -> str:
        width = max(len(kind) for kind in KINDS)
        head = "stage " + " ".join(f"{kind:>{width}}" for kind in KINDS) + f" {'peak of all':>{width}}"
        lines = [head]
        for stage in self.stages:
            cells = " ".join(f"{stage.peak[kind] / 1e6:>{width}.3f}" for kind in KINDS)
            lines.append(f"{stage.stage:>5} {cells} {stage.peak_total / 1e6:>{width}.3f}")
        return "\n".join([*lines, "(peak MB of each kind so far)"])
