"""Outputs in memory of their own: a message must not change when a parameter, a buffer or an input does.

`detach()` is no copy. A module may return a view of a parameter (learned queries), of a buffer, of its input, or the
same memory at every call, and the next update or forward would then write into messages that are on their way. Where
the outputs of a block are stored is looked at in its first forwards, and the streams that need it are copied from then
on; no others are looked at again.
"""

from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from petra_core.stages import Stage
from petra_core.tape import Streams, fills_its_storage

__all__ = ["OwnedOutputs"]

LOOKED_AT = 3  # forwards of a block


class OwnedOutputs:
    """Copies the outputs of a block that share memory with anything else.

    Args:
        stage: the block.

    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._copied: set[int] = set()
        self._left = LOOKED_AT
        self._earlier: set[StorageWeakRef] = set()  # of outputs; while one is held no other storage gets its number

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for a copy, without weak references, so that the copy examines its outputs again."""
        return self.__dict__ | {"_earlier": set(), "_left": LOOKED_AT if self._left else 0}

    def __call__(self, outputs: Streams, inputs: Streams) -> Streams:
        """Return the outputs, those as copies that are not the block's own to send."""
        copied = self._look(outputs, inputs) if self._left else self._copied
        if not copied:
            return outputs
        return tuple(stream.clone() if number in copied else stream for number, stream in enumerate(outputs))

    def _look(self, outputs: Streams, inputs: Streams) -> set[int]:
        """Note which streams to copy. Returns those of these outputs: all, since what comes next may overwrite them."""
        self._left -= 1
        taken = {
            storage_reference(tensor) for tensor in (*self._stage.parameters(), *self._stage.buffers())
        } | self._earlier
        # A coupling passes a whole input stream on by design; nobody writes to it.
        passed = {storage_reference(stream) for stream in inputs}
        if not self._stage.invertible:
            taken |= passed
        made = set()
        for number, stream in enumerate(outputs):
            storage = storage_reference(stream)
            if storage in taken or not fills_its_storage(stream):
                self._copied.add(number)
            taken.add(storage)
            if storage not in passed:
                self._earlier.add(storage)
                made.add(number)
        if not self._left:
            self._earlier.clear()
        return self._copied | made


def storage_reference(tensor: Tensor) -> StorageWeakRef:
    """Return a weak reference to the tensor's storage, which tells storages apart even after one is freed."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]  # torch gives it no types
