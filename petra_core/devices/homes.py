"""Homes: memory that never moves, for all that outlives a tick which is recorded once and repeated.

A recording reads and writes at fixed addresses, and what a tick writes the ticks after it read. The obvious way is one
home for each message and each place in a queue of kept inputs: but a home that is read in a tick cannot be written in
it, so everything is made elsewhere and copied when the tick is over, queues one place further, about a gigabyte a tick
for RevNet-18 at its full width and 64 images (computed from the shapes).

Here every home has four places, in turn by the number of the tick. What is written in tick t lies at place t mod 4,
and nobody writes there before tick t + 4:

    tick           t          t + 1       t + 2       t + 3       t + 4
    place          0          1           2           3           0
    written        y(t)       y(t + 1)    y(t + 2)    y(t + 3)    y(t + 4), over y(t)
    y(t) is read              yes         yes         yes         no more: if still needed, it has moved to another home

So within a tick nothing is read that is written, copies wait for nothing but what they copy, and a tensor stays where
it lies when a stage hands it on to its neighbour or keeps it. Only what is still needed in tick t + 4 moves, in tick
t + 3: in a queue a tensor moves at every third of its places, not at every one.

It takes as many recordings as there are places (with k: their least common multiple) and four times the memory of the
new messages of a tick, where each had two. With more places there would be fewer moves.
"""

from collections.abc import Hashable, Iterable

import torch
from torch import Tensor

from petra_core.ledger import storage_of
from petra_core.tape import Streams

PLACES = 4  # three is the least for a stream that is passed on; four suit the usual k, 1, 2, 4, …, best


class Homes:
    """The homes of one pipeline.

    They are made as they are first needed, until `close`: what is made within a recording may lie in memory in which
    another recording has its passing results.

    Attributes:
        tick: number of the tick, or of the step, that is being done.

    """

    def __init__(self) -> None:
        self.tick = 0
        self._homes: dict[Hashable, Tensor] = {}
        self._written: dict[int, int] = {}  # storage of a home: the last tick in which it was written
        self._guests: dict[int, Tensor] = {}  # by storage
        self._closed = False

    def welcome(self, tensors: Iterable[Tensor]) -> None:
        """Let tensors from before stay where they are as long as they are needed."""
        self._guests |= {storage_of(tensor): tensor for tensor in tensors}

    def close(self) -> None:
        """Have no more homes made: all are known. Guests must have gone."""
        self._guests.clear()
        self._closed = True

    def lasting(self, key: Hashable, streams: Streams) -> Streams:
        """The streams where the next tick can read them: those that lie well as they are, the others copied home.

        Args:
            key: what they are; no two have the same in a tick.
            streams: of this tick or of an earlier one.

        """
        return tuple(
            stream if self._lies_well(stream) else self.fixed((key, number, self.tick % PLACES), stream)
            for number, stream in enumerate(streams)
        )

    def fixed(self, key: Hashable, tensor: Tensor) -> Tensor:
        """The tensor at its one home, copied there if it is not."""
        home = self._homes.get(key)
        if home is tensor:
            return tensor
        if home is None:
            assert not self._closed, f"no home was made for {key} while the ticks were rehearsed"
            home = self._homes[key] = torch.empty_like(tensor)
        home.copy_(tensor)
        self._written[storage_of(home)] = self.tick
        return home

    def _lies_well(self, tensor: Tensor) -> bool:
        """Whether nobody writes there in the next tick."""
        storage = storage_of(tensor)
        written = self._written.get(storage)
        return storage in self._guests if written is None else self.tick + 1 < written + PLACES
