"""Copy outputs of blocks that share memory, so that later writes to this memory do not change messages.

`detach()` does not copy. A module may return a view of a parameter (learned queries), of a buffer or of its input, or
the same memory in every call. The next update or forward would then overwrite messages that are still in flight. The
storages of a block's outputs are examined in its first forwards. The streams that share memory there are copied in all
later forwards.
"""

from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from petra_core.stages import Stage
from petra_core.tape import Streams, fills_its_storage

__all__ = ["OwnedOutputs"]

LOOKED_AT = 3  # number of forwards of a block whose outputs are examined


class OwnedOutputs:
    """A callable that copies those outputs of a block that share memory with other tensors.

    Args:
        stage: The block.

    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._copied: set[int] = set()
        self._left = LOOKED_AT
        self._earlier: set[StorageWeakRef] = set()  # of outputs; while a reference exists, its identifier is not reused

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for a copy, without weak references, so that the copy examines its outputs again."""
        return self.__dict__ | {"_earlier": set(), "_left": LOOKED_AT if self._left else 0}

    def __call__(self, outputs: Streams, inputs: Streams) -> Streams:
        """Return the outputs, with copies of those that share memory with other tensors."""
        copied = self._look(outputs, inputs) if self._left else self._copied
        if not copied:
            return outputs
        return tuple(stream.clone() if number in copied else stream for number, stream in enumerate(outputs))

    def _look(self, outputs: Streams, inputs: Streams) -> set[int]:
        """Find the streams to copy in later forwards. Return the streams to copy now.

        In the first forwards all outputs with new storages are copied, because it is not yet known whether the next
        forward overwrites them.
        """
        self._left -= 1
        taken = {
            storage_reference(tensor) for tensor in (*self._stage.parameters(), *self._stage.buffers())
        } | self._earlier
        # A coupling returns a whole input stream by design, and nothing writes to it.
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
    """Return a weak reference to a tensor's storage, which identifies the storage even after it is freed."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]  # torch gives it no types
