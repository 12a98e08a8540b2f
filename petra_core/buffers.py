"""Protect module buffers during recomputation, so that running statistics are updated once per micro-batch.

A second evaluation in training mode would update BatchNorm's running statistics a second time, as it does in
torch.utils.checkpoint, memcnn, RevTorch and revlib. Inside `FrozenBuffers.freeze`, BatchNorm normalises with the
statistics of the batch, as in training, but does not track them. Any other buffer is replaced by a copy, which is
discarded at the end, unless an autograd graph needs it.

The copies have the values that the last forward left, not the values that the forward of the same micro-batch read,
since no versions of buffers are kept. A function whose output depends on a buffer that it writes (spectral
normalisation, a codebook) would be evaluated with different values. `petra_core.inspection` rejects such a function if
a method evaluates it a second time.
"""

import contextlib
from collections.abc import Iterator, Sequence

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class FrozenBuffers:
    """The buffers of a function, which evaluations inside `freeze` do not change.

    Args:
        function: The module.
        tracking: Whether BatchNorm tracks statistics in copies of its buffers, so that it saves the same tensors for a
            backward as in a forward.

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

    @property
    def makes_copies(self) -> bool:
        """Return whether the context replaces any buffers by copies."""
        return bool(self._others)

    @contextlib.contextmanager
    def freeze(self, copies: Sequence[Tensor] | None = None) -> Iterator[Sequence[Tensor]]:
        """Protect the buffers from evaluations inside the context. Contexts cannot be nested.

        Args:
            copies: Copies of the buffers from an earlier context; None for new copies.

        Yields:
            The copies that replace buffers inside the context.

        """
        buffers = [module._buffers[name] for module, name in self._others]
        copies = [buffer.clone() for buffer in buffers if buffer is not None] if copies is None else copies
        for norm in self._norms:  # vars() avoids the slow __setattr__ of modules
            # BatchNorm then passes no running statistics to the kernel, and in training mode uses those of the batch.
            # InstanceNorm would still update them, so its buffers are copied with the others.
            vars(norm)["track_running_stats"] = False
        for (module, name), copy in zip(self._others, copies, strict=True):
            module._buffers[name] = copy
        try:
            yield copies
        finally:
            for norm in self._norms:
                vars(norm)["track_running_stats"] = True
            for (module, name), buffer in zip(self._others, buffers, strict=True):
                module._buffers[name] = buffer
