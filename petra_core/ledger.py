"""Track the bytes that each stage holds, by kind: current and peak.

The allocator reports how much memory a process uses, but not for which stage or purpose. Formulas give only the
expected memory. A ledger counts actual tensors: the worker that owns them adds their bytes when it keeps a tensor, and
subtracts them when it releases it. Sizes are payloads (elements times bytes per element). Each stage is counted as if
it were on a separate device, so a tensor that two stages of one process share counts for both. Temporaries inside a
single operation are not counted.

    parameters        weights of the stage
    buffers           running statistics and other module buffers
    gradients         gradients accumulated between backwards
    optimizer         momentum and other optimizer state
    inputs            inputs kept for later backwards
    stashed_weights   weights of earlier forwards, kept for their backwards
    messages          messages received and not yet processed, including targets
    graph             tensors saved for backward by live autograd graphs, except those counted above
    side_bits         data that the inversion of a stage needs in addition to its output, such as lost bits
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # keep this module importable without torch, for users of KINDS
    from torch import Tensor

IN_FLIGHT = ("inputs", "stashed_weights", "messages", "graph", "side_bits")  # for micro-batches in flight
KINDS = ("parameters", "buffers", "gradients", "optimizer", *IN_FLIGHT)


def payload(tensors: "Iterable[Tensor]") -> int:
    """Return the bytes of the elements of `tensors`."""
    return sum([tensor.nbytes for tensor in tensors])


def storage_of(tensor: "Tensor") -> int:
    """Return an identifier of a tensor's storage. It is unique among live storages."""
    return int(tensor.untyped_storage()._cdata)


class SavedTensors:
    """A context manager that measures the bytes that autograd saves for backward in graphs recorded inside it.

    Each storage is counted once, in full.

    Args:
        accounted: Tensors whose storages are not counted, such as parameters, buffers and inputs.

    Attributes:
        bytes: The measured bytes, after the context.

    """

    def __init__(self, accounted: "Iterable[Tensor]") -> None:
        import torch

        self._accounted = {storage_of(tensor) for tensor in accounted}
        self._saved: dict[int, Tensor] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self.bytes = 0

    def _pack(self, tensor: "Tensor") -> "Tensor":
        # Kept alive until the end of the measurement, because the identifier of a freed storage may be reused.
        self._saved[storage_of(tensor)] = tensor
        return tensor

    def __enter__(self) -> "SavedTensors":
        self._hooks.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._hooks.__exit__(kind, error, trace)
        if error is not None and "saved tensor hooks" in str(error):
            error.add_note(
                "the engine measures graphs by saved tensor hooks: differentiate by torch.autograd.grad instead, with "
                "create_graph=True and inside `with torch.enable_grad():`"
            )
        self.bytes = sum(t.untyped_storage().nbytes() for key, t in self._saved.items() if key not in self._accounted)
        self._saved.clear()


class Ledger:
    """The bytes that one stage holds, by kind.

    Args:
        stage: Index of the stage.

    Attributes:
        stage: Index of the stage.
        now: Bytes currently held, by kind.
        peak: Largest number of bytes held so far, by kind.
        peak_total: Largest sum over all kinds so far.

    """

    def __init__(self, stage: int = 0) -> None:
        self.stage = stage
        self.now = dict.fromkeys(KINDS, 0)
        self.peak = dict.fromkeys(KINDS, 0)
        self.peak_total = 0
        self._total = 0

    def add(self, kind: str, count: int) -> None:
        """Add `count` bytes of `kind`; a negative count removes bytes."""
        held = self.now[kind] + count
        assert held >= 0, f"the ledger went below zero: {held} bytes of {kind}"
        self.now[kind] = held
        self._total += count
        self.peak[kind] = max(self.peak[kind], held)
        self.peak_total = max(self.peak_total, self._total)

    def set(self, kind: str, count: int) -> None:
        """Set the bytes of `kind` to `count`."""
        self.add(kind, count - self.now[kind])


@dataclass(frozen=True)
class MemoryReport:
    """The bytes of all stages. `str(report)` is a table in MB (1e6 bytes).

    Attributes:
        stages: Copies of the stages' ledgers.

    """

    stages: tuple[Ledger, ...]

    def now(self, *kinds: str) -> int:
        """Return the bytes of the given kinds that all stages currently hold. Without arguments, count all kinds."""
        return sum(stage.now[kind] for stage in self.stages for kind in kinds or KINDS)

    def peak(self, *kinds: str) -> int:
        """Return the sum over stages and given kinds of the peak bytes.

        Without arguments, return the sum over stages of the peak total. A stage's peak total is at most the sum of the
        peaks of its kinds.
        """
        if not kinds:
            return sum(stage.peak_total for stage in self.stages)
        return sum(stage.peak[kind] for stage in self.stages for kind in kinds)

    def __str__(self) -> str:
        width = max(len(kind) for kind in KINDS)
        lines = ["stage " + " ".join(f"{kind:>{width}}" for kind in KINDS) + f" {'peak of all':>{width}}"]
        for stage in self.stages:
            cells = " ".join(f"{stage.peak[kind] / 1e6:>{width}.3f}" for kind in KINDS)
            lines.append(f"{stage.stage:>5} {cells} {stage.peak_total / 1e6:>{width}.3f}")
        return "\n".join([*lines, "(peak MB of each kind so far)"])
