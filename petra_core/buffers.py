"""Module buffers under recomputation: one update of running statistics per micro-batch, in the forward.

A second evaluation in training mode would move BatchNorm's running statistics a second time, as it does in
torch.utils.checkpoint, memcnn, RevTorch and revlib. Inside `FrozenBuffers` normalisation still uses the statistics of
the batch, as training does, but nothing is tracked; any other buffer is a copy inside, and whatever the function writes
to it is gone afterwards, unless a graph has need of it. What it reads there is what the last forward left, not what the
forward of its own micro-batch read: no buffers are kept. A function whose output depends on a buffer that it writes
(spectral normalisation, a codebook) is evaluated with other values then, and a resume that has to record graphs again
is not bitwise.
"""

from types import TracebackType

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class FrozenBuffers:
    """Context in which evaluating `function` leaves its buffers as they are. Reusable, not reentrant."""

    def __init__(self, function: nn.Module) -> None:
        modules = list(function.modules())
        # Their attributes: to assign one to a module takes long, and this is done at every backward.
        self._norms = [vars(m) for m in modules if isinstance(m, _BatchNorm) and m.track_running_stats]
        self._others = [
            (module, name)
            for module in modules
            if not isinstance(module, _BatchNorm)
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._saved: list[Tensor] = []  # of the others

    @property
    def makes_copies(self) -> bool:
        """Whether there are buffers that are copies in this context."""
        return bool(self._others)

    def __enter__(self) -> None:
        for attributes in self._norms:
            # BatchNorm then gives the kernel no running statistics; in training mode it uses the batch's all the same.
            # InstanceNorm always updates them, so its buffers are among the others.
            attributes["track_running_stats"] = False
        for module, name in self._others:
            buffer = module._buffers[name]
            assert buffer is not None
            self._saved.append(buffer)
            module._buffers[name] = buffer.clone()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for attributes in self._norms:
            attributes["track_running_stats"] = True
        for (module, name), buffer in zip(self._others, self._saved, strict=True):
            module._buffers[name] = buffer
        self._saved.clear()
