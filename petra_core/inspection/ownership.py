"""Copy outputs and gradients of blocks that share memory, so that later writes to this memory do not change them.

`detach()` does not copy. A module may return a view of a parameter (learned queries), of a buffer or of its input, or
the same memory in every call. The next update or forward would then overwrite messages that are still in flight. In the
same way a `torch.autograd.Function` may return one workspace as the gradient of every micro-batch. The storages of a
block's outputs and gradients are examined in its first forwards and backwards. The tensors that share memory there are
copied from then on. Outputs are compared with the parameters and buffers in every forward, because a module may return
one of them only at times, such as a condition that is dropped at random.

Slices and expanded views are always copied: strides select kernels that round differently, and the messages between
ranks and in checkpoints are dense.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from petra_core.ledger import storage_of
from petra_core.stages import Stage
from petra_core.tape import Streams, fills_its_storage

INSPECTED = 3  # number of first micro-batches of each block that are inspected
MaybeTensor = TypeVar("MaybeTensor", Tensor, Tensor | None)


class OwnedTensors:
    """A callable that copies those results of a block that share memory with other tensors.

    Args:
        stage: The block.
        may_pass: Whether a result may be one of the given tensors, to which nothing writes.
        always: Whether to compare the results with the block's parameters and buffers in every call.

    """

    def __init__(self, stage: Stage, *, may_pass: bool = True, always: bool = False) -> None:
        self._may_pass, self._always = may_pass, always
        self._registries = [registry for m in stage.modules() for registry in (m._parameters, m._buffers)]
        self._copied: set[int] = set()
        self._left = INSPECTED  # number of calls in which the tensors are still examined
        self._earlier: set[StorageWeakRef] = set()  # of results; while a reference exists, its identifier is not reused

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for a copy, without weak references, so that the copy examines its results again."""
        return self.__dict__ | {"_earlier": set(), "_left": INSPECTED if self._left else 0}

    def __call__(self, results: tuple[MaybeTensor, ...], given: Streams) -> tuple[MaybeTensor, ...]:
        """Return the results, with copies of those that share memory with other tensors.

        Args:
            results: Outputs of a forward, or gradients of a backward.
            given: Input of the forward, or the gradients with which the backward began.

        """
        copied = self._look(results, given) if self._left else self._copied
        own = {storage_of(tensor) for tensor in self._own_tensors()} if self._always else set()
        present = [(number, result) for number, result in enumerate(results) if result is not None]
        copied = copied.union(number for number, r in present if storage_of(r) in own or not fills_its_storage(r))
        return tuple(r.clone() if r is not None and number in copied else r for number, r in enumerate(results))

    def _look(self, results: Sequence[Tensor | None], given: Streams) -> set[int]:
        """Find the results to copy in later calls. Return those to copy now.

        In the first calls all results with new storages are copied, because it is not yet known whether the next call
        overwrites them.
        """
        self._left -= 1
        taken = {storage_reference(tensor) for tensor in self._own_tensors()} | self._earlier
        # A coupling returns a whole input stream by design, and nothing writes to it.
        passed = {storage_reference(stream) for stream in given}
        if not self._may_pass:
            taken |= passed
        made = set()
        for number, result in ((number, r) for number, r in enumerate(results) if r is not None):
            storage = storage_reference(result)
            if storage in taken:
                self._copied.add(number)
            taken.add(storage)
            if storage not in passed:
                self._earlier.add(storage)
                made.add(number)
        if not self._left:
            self._earlier.clear()
        return self._copied | made

    def _own_tensors(self) -> Iterator[Tensor]:
        """Return the parameters and buffers that the modules have now."""
        return (tensor for registry in self._registries for tensor in registry.values() if tensor is not None)


def storage_reference(tensor: Tensor) -> StorageWeakRef:
    """Return a weak reference to a tensor's storage, which identifies the storage even after it is freed."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]  # torch gives it no types
