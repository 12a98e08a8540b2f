"""Module buffers under recomputation: one update of running statistics per micro-batch, in the forward.

A second evaluation in training mode would move BatchNorm's running statistics a second time, as it does in
torch.utils.checkpoint, memcnn, RevTorch and revlib. Inside `FrozenBuffers` normalisation still uses the statistics of
the batch, as training does, but nothing is tracked; any other buffer is a copy inside, and whatever the function writes
to it is gone afterwards, unless a graph has need of it. What it reads there is what the last forward left, not what the
forward of its own micro-batch read: no buffers are kept. A function whose output depends on a buffer that it writes
(spectral normalisation, a codebook) would be evaluated with other values, so `petra_core.inspection` refuses it where
it is evaluated again.
"""

import contextlib
from collections.abc import Iterator, Sequence
from types import TracebackType

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class FrozenBuffers:
    """Context in which evaluating `function` leaves its buffers as they are. Reusable, not reentrant.

    Args:
        function: the module.
        tracking: let BatchNorm track statistics in copies of its buffers too, so that it saves for a backward what it
            saves in a forward.

    Attributes:
        copies: inside a context, what stands for the buffers.

    """

    def __init__(self, function: nn.Module, *, tracking: bool = False) -> None:
        modules = list(function.modules())
        norms = [] if tracking else [m for m in modules if isinstance(m, _BatchNorm)]
        self._norms = [m for m in norms if m.track_running_stats]
        self._others = [
            (module, name)
            for module in modules
            if module not in norms
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._saved: list[Tensor] = []  # of the others
        self.copies: Sequence[Tensor] = ()

    @property
    def makes_copies(self) -> bool:
        """Whether there are buffers that are copies in this context."""
        return bool(self._others)

    @property
    def has_norms(self) -> bool:
        """Whether there is a BatchNorm that does not track statistics in this context."""
        return bool(self._norms)

    def __enter__(self) -> None:
        copies = []
        for module, name in self._others:
            buffer = module._buffers[name]
            assert buffer is not None
            copies.append(buffer.clone())
        self._enter(copies)

    @contextlib.contextmanager
    def again(self, copies: Sequence[Tensor]) -> Iterator[None]:
        """Context with the copies of an earlier one."""
        self._enter(copies)
        try:
            yield
        finally:
            self.__exit__(None, None, None)

    def _enter(self, copies: Sequence[Tensor]) -> None:
        for norm in self._norms:  # through vars(): to assign an attribute of a module takes long
            # BatchNorm then gives the kernel no running statistics; in training mode it uses the batch's all the same.
            # InstanceNorm always updates them, so its buffers are among the others.
            vars(norm)["track_running_stats"] = False
        for (module, name), copy in zip(self._others, copies, strict=True):
            buffer = module._buffers[name]
            assert buffer is not None
            self._saved.append(buffer)
            module._buffers[name] = copy
        self.copies = copies

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for norm in self._norms:
            vars(norm)["track_running_stats"] = True
        for (module, name), buffer in zip(self._others, self._saved, strict=True):
            module._buffers[name] = buffer
        self._saved.clear()
        self.copies = ()
