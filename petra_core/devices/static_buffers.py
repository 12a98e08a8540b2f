"""Static buffers for tensors that outlive a step that is recorded once and replayed.

A recording reads and writes at fixed addresses, and later steps read the results of earlier ones. The obvious solution
is one buffer for each message and for each position in a queue of kept inputs. But a buffer that is read in a step
cannot be written in the same step. Every result would have to be computed elsewhere and copied at the end of the step,
and every queue would have to be shifted by copies.

Instead, every static buffer has several places, which are used in turn. A message has four: step m writes it to place m
mod 4, and step m + 4 is the first to overwrite it:

    step           m          m + 1       m + 2       m + 3       m + 4
    place          0          1           2           3           0
    written        y(m)       y(m + 1)    y(m + 2)    y(m + 3)    y(m + 4), over y(m)
    y(m) is read              yes         yes         yes         no: if still needed, it was copied to another buffer

Therefore no place is both read and written in a step, a copy depends only on its source, and a tensor is not copied
when a stage passes it to its neighbour or keeps it. A tensor that is still needed in step m + 4 is copied in step m + 3
to a static buffer with enough places. This happens once to a kept input.

The sums of a reversible stage are computed directly into the static buffer of their message (`combine`). Other new
messages are copied, concurrently with the work of other stages. For RevNet-18 of width 64 with 64 images, PETRA copies
203 MB a step: 143 of 415 MB of messages, and 60 of 585 MB of kept inputs (counted on the CPU with 2 images, times 32).

The costs are the number of recordings, a multiple of the number of places of the largest static buffer (`period`), and
memory: 1.7 GB of static buffers, compared with 1.0 GB for one place per tensor and 0.24 GB for new messages.
"""

import math
from collections.abc import Hashable

import torch
from torch import Tensor

from petra_core.ledger import storage_of
from petra_core.tape import Operator, Streams

PLACES = 4  # places of a message, which is read in one step, and in two more if a stage passes it on
RECORDINGS = 12  # minimum; with fewer recordings and places, long-lived tensors would be copied more often


def period(accumulation: int) -> int:
    """Return the number of steps after which all buffers use the same places and the same stages update (k)."""
    both = math.lcm(PLACES, accumulation)
    return both * math.ceil(RECORDINGS / both)


class StaticBuffers:
    """The static buffers of one pipeline, whose steps repeat after a `period`.

    Buffers are allocated when they are first needed, until `freeze`. Memory that is allocated during a recording could
    contain temporary results of another recording.

    Attributes:
        step: Number of the current step.

    """

    def __init__(self, period: int) -> None:
        self.step = 0
        self._places = [places for places in range(PLACES, period + 1) if period % places == 0]
        self._buffers: dict[Hashable, Tensor] = {}
        self._written_next: dict[int, int] = {}  # by storage of a static buffer: the next step that overwrites it
        self._external: dict[int, Tensor] = {}  # external tensors, by storage
        self._frozen = False

    def allow_external(self, tensors: Streams) -> Streams:
        """Return external tensors, which keep their storage until they are released."""
        self._external |= {storage_of(tensor): tensor for tensor in tensors}
        return tensors

    def freeze(self) -> None:
        """Freeze the set of static buffers. External tensors must have been released."""
        self._external.clear()
        self._frozen = True

    def keep(self, key: Hashable, streams: Streams, steps: int) -> Streams:
        """Return the streams in memory that the next step can read. Streams that would be overwritten are copied.

        Args:
            key: Identity of the streams, unique within a step.
            streams: Tensors of this step or of an earlier one.
            steps: Number of steps for which they are needed. A static buffer has at most `period` places. A tensor that
                is needed for longer is copied again.

        """
        places = next((places for places in self._places if places > steps), self._places[-1])
        return tuple(
            stream
            if self._is_safe_to_read(stream)
            else self._copy_to_buffer((key, number, self.step % places), stream, self.step + places)
            for number, stream in enumerate(streams)
        )

    def keep_fixed(self, key: Hashable, tensor: Tensor) -> Tensor:
        """Return the tensor in a static buffer with one place. Copy it if it is not there yet."""
        return tensor if self._buffers.get(key) is tensor else self._copy_to_buffer(key, tensor, self.step + 1)

    def combine(self, key: Hashable, name: str, operation: Operator, left: Tensor, right: Tensor) -> Tensor:
        """Compute an operation into its buffer with `out=`. `key` is the stage (see `petra_core.tape.Combine`)."""
        place = (key, name, self.step % PLACES)
        if (buffer := self._buffers.get(place)) is None:
            return self._copy_to_buffer(place, operation(left, right), self.step + PLACES)
        self._written_next[storage_of(buffer)] = self.step + PLACES
        return operation(left, right, out=buffer)

    def _copy_to_buffer(self, key: Hashable, tensor: Tensor, written_next: int) -> Tensor:
        if (buffer := self._buffers.get(key)) is None:
            assert not self._frozen, f"no static buffer was made for {key} while the steps were rehearsed"
            buffer = self._buffers[key] = torch.empty_like(tensor)
        buffer.copy_(tensor)
        self._written_next[storage_of(buffer)] = written_next
        return buffer

    def _is_safe_to_read(self, tensor: Tensor) -> bool:
        """Return whether the next step leaves the memory of a tensor unchanged."""
        storage = storage_of(tensor)
        written_next = self._written_next.get(storage)
        return storage in self._external if written_next is None else self.step + 1 < written_next
