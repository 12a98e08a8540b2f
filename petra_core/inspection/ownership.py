"""Copy outputs and gradients of blocks that share memory, so that later writes to this memory do not change them.

`detach()` does not copy. A module may return a view of a parameter (learned queries), of a buffer or of its input, or
the same memory in every call. The next update or forward would then overwrite messages that are still in flight. In the
same way a `torch.autograd.Function` may return one workspace as the gradient of every micro-batch, or its input as the
gradient of a weight, to which the next gradients would be added.

Every result is compared with the parameters and buffers of the block, with the other results and with the tensors of
other owners, because a module may return one of them only at times, such as a condition that is dropped at random.
Memory that a module uses in every call is found in the first forwards and backwards. The results that have shown such
memory are copied from then on.

Slices and expanded views are always copied: strides select kernels that round differently, and the messages between
ranks and in checkpoints are dense.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from petra_core.ledger import storage_of
from petra_core.stages import Stage
from petra_core.tape import Streams, compact

INSPECTED = 3  # number of first micro-batches of each block that are inspected
MaybeTensor = TypeVar("MaybeTensor", Tensor, Tensor | None)


class OwnedTensors:
    """A callable that copies those results of a block that share memory with other tensors.

    Args:
        stage: The block.
        may_pass: Whether a result may be one of the given tensors, to which nothing writes.

    """

    def __init__(self, stage: Stage, *, may_pass: bool = True) -> None:
        self._may_pass = may_pass
        self._registries = [registry for m in stage.modules() for registry in (m._parameters, m._buffers)]
        self._reused: set[int] = set()  # numbers of the results whose memory an earlier result had
        self._left = INSPECTED  # number of calls in which results are still compared with those of earlier calls
        # Of earlier results, by storage. A storage whose reference exists shares its identifier with no later one.
        self._earlier: dict[int, StorageWeakRef] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for a copy, without weak references, so that the copy examines its results again."""
        return self.__dict__ | {"_earlier": {}, "_left": INSPECTED if self._left else 0}

    def __call__(self, results: tuple[MaybeTensor, ...], given: Streams) -> tuple[MaybeTensor, ...]:
        """Return the results, with copies of those that share memory with other tensors.

        Args:
            results: Outputs of a forward, or gradients of a backward.
            given: Tensors that others use: the input of the forward, or the messages of the backward.

        """
        passed = {storage_of(tensor) for tensor in given}
        taken = {storage_of(tensor) for tensor in self._own_tensors()}
        if not self._may_pass:
            taken |= passed
        owned: list[Any] = []
        for number, result in enumerate(results):
            if result is None:
                owned.append(result)
                continue
            storage = storage_of(result)
            reused = number in self._reused
            if self._left and storage not in passed:
                if storage in self._earlier:
                    self._reused.add(number)
                self._earlier[storage] = storage_reference(result)
                reused = True  # possibly: it is not yet known whether the next call overwrites it
            owned.append(result.clone() if reused or storage in taken else compact(result))
            taken.add(storage)
        self._left = max(self._left - 1, 0)
        if not self._left:
            self._earlier.clear()
        return tuple(owned)

    def _own_tensors(self) -> Iterator[Tensor]:
        """Return the parameters and buffers that the modules have now."""
        return (tensor for registry in self._registries for tensor in registry.values() if tensor is not None)


def storage_reference(tensor: Tensor) -> StorageWeakRef:
    """Return a weak reference to a tensor's storage, which identifies the storage even after it is freed."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]  # torch gives it no types
