"""Protect module buffers during recomputation, so that running statistics are updated once per micro-batch.

A second evaluation in training mode would update BatchNorm's running statistics a second time, as it does in
torch.utils.checkpoint, memcnn, RevTorch and revlib. Inside `FrozenBuffers`, BatchNorm normalises with the statistics of
the batch, as in training, but does not track them. Any other buffer is replaced by a copy, which is discarded at the
end, unless an autograd graph needs it.

The copies have the values that the last forward left, not the values that the forward of the same micro-batch read,
since no versions of buffers are kept. A function whose output depends on a buffer that it writes (spectral
normalisation, a codebook) would be evaluated with different values. `petra_core.inspection` rejects such a function if
a method evaluates it a second time.
"""

import contextlib
from collections.abc import Iterator, Sequence
from types import TracebackType

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class FrozenBuffers:
    """A context manager in which evaluating `function` does not change its buffers. Reusable, not reentrant.

    Args:
        function: The module.
        tracking: Whether BatchNorm tracks statistics in copies of its buffers, so that it saves the same tensors for a
            backward as in a forward.

    Attributes:
        copies: The copies that replace buffers inside the context; empty outside.

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
        self._saved: list[Tensor] = []  # original buffers of `_others`
        self.copies: Sequence[Tensor] = ()

    @property
    def makes_copies(self) -> bool:
        """Return whether the context replaces any buffers by copies."""
        return bool(self._others)

    def __enter__(self) -> None:
        copies = []
        for module, name in self._others:
            buffer = module._buffers[name]
            assert buffer is not None
            copies.append(buffer.clone())
        self._enter(copies)

    @contextlib.contextmanager
    def again(self, copies: Sequence[Tensor]) -> Iterator[None]:
        """Enter the context with the copies of an earlier context."""
        self._enter(copies)
        try:
            yield
        finally:
            self.__exit__(None, None, None)

    def _enter(self, copies: Sequence[Tensor]) -> None:
        for norm in self._norms:  # vars() avoids the slow __setattr__ of modules
            # BatchNorm then passes no running statistics to the kernel, and in training mode uses those of the batch.
            # InstanceNorm would still update them, so its buffers are copied with the others.
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
