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
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Attributes: TypeAlias = dict[tuple[nn.Module, str], Any]  # by module and name
Buffers: TypeAlias = Mapping[tuple[nn.Module, str], Tensor]  # by module and name
BufferCopies: TypeAlias = Mapping[tuple[nn.Module, str], Tensor | None]


class FrozenBuffers:
    """The buffers of a function, which evaluations inside `freeze` do not change.

    Args:
        function: The module.
        tracking: Whether BatchNorm tracks statistics in copies of its buffers, so that it saves the same tensors for a
            backward as in a forward.

    """

    def __init__(self, function: nn.Module, *, tracking: bool = False) -> None:
        modules = list(function.modules())
        plain = (_BatchNorm.forward, nn.SyncBatchNorm.forward)  # another forward may track statistics in another way
        norms = [] if tracking else [module for module in modules if isinstance(module, _BatchNorm)]
        self._norms = [norm for norm in norms if getattr(norm.forward, "__func__", None) in plain]
        self._others = [module for module in modules if module not in self._norms]

    @property
    def makes_copies(self) -> bool:
        """Return whether the context replaces any buffers by copies."""
        return any(buffer is not None for *_, buffer in self._replaced())

    def copies(self) -> BufferCopies:
        """Return copies of the buffers that `freeze` replaces."""
        return {(module, name): None if buffer is None else buffer.clone() for module, name, buffer in self._replaced()}

    def changed(self, copies: BufferCopies) -> Buffers:
        """Return the buffers that `freeze` replaces and whose values differ from those of earlier `copies`."""
        buffers = {(module, name): buffer for module, name, buffer in self._replaced() if buffer is not None}
        return {place: buffer for place, buffer in buffers.items() if not _equal(copies.get(place), buffer)}

    def _replaced(self) -> list[tuple[nn.Module, str, Tensor | None]]:
        """Return the buffers that `freeze` replaces, each with its module and its name.

        They are listed each time, since a module may register or set a buffer in its first forward.
        """
        return [(module, name, buffer) for module in self._others for name, buffer in module._buffers.items()]

    @contextlib.contextmanager
    def freeze(self, copies: BufferCopies | None = None) -> Iterator[BufferCopies]:
        """Protect the buffers from evaluations inside the context. Contexts cannot be nested.

        Args:
            copies: Copies of the buffers from an earlier context; None for new copies.

        Yields:
            The copies that replace buffers inside the context.

        """
        copies = self.copies() if copies is None else copies
        buffers = self._replaced()
        norms = [norm for norm in self._norms if norm.track_running_stats]
        for norm in norms:  # vars() avoids the slow __setattr__ of modules
            # BatchNorm then passes no running statistics to the kernel, and in training mode uses those of the batch.
            # InstanceNorm would still update them, so its buffers are copied with the others.
            vars(norm)["track_running_stats"] = False
        for module, name, buffer in buffers:
            module._buffers[name] = copies.get((module, name), buffer)
        try:
            yield copies
        finally:
            for norm in norms:
                vars(norm)["track_running_stats"] = True
            for module, name, buffer in buffers:
                module._buffers[name] = buffer


def _equal(one: Tensor | None, other: Tensor) -> bool:
    """Return whether two buffers are equal; False for sparse ones, which torch cannot compare."""
    if one is None or one.layout is not torch.strided or (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    return torch.equal(one, other)


def attributes_of(function: nn.Module, kinds: type | tuple[type, ...] = object) -> Attributes:
    """Return the attributes of modules that have values of some kinds. Parameters and buffers are not attributes."""
    modules = function.modules()
    return {(m, key): value for m in modules for key, value in vars(m).items() if isinstance(value, kinds)}


def set_attributes(values: Attributes) -> None:
    """Set attributes of modules."""
    for (module, key), value in values.items():
        setattr(module, key, value)


@contextlib.contextmanager
def earlier_attributes(values: Attributes) -> Iterator[Attributes]:
    """Give attributes of modules their earlier values in a context, and yield those that have changed since."""
    now = {(module, key): vars(module).get(key) for module, key in values}
    changed = {place: value for place, value in values.items() if now[place] is not value}
    set_attributes(changed)
    try:
        yield changed
    finally:
        set_attributes({place: now[place] for place in changed})
