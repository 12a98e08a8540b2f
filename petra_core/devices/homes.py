"""Homes: memory that never moves, for all that outlives a step which is recorded once and repeated.

A recording reads and writes at fixed addresses, and what a step writes the steps after it read. The obvious way is one
home for each message and each place in a queue of kept inputs: but a home that is read in a step cannot be written in
it, so everything is made elsewhere and copied when the step is over, queues one place further.

Here every home has several places, in turn by the number of the step. A message has four: what is written in step m
lies at place m mod 4, and nobody writes there before step m + 4:

    step           m          m + 1       m + 2       m + 3       m + 4
    place          0          1           2           3           0
    written        y(m)       y(m + 1)    y(m + 2)    y(m + 3)    y(m + 4), over y(m)
    y(m) is read              yes         yes         yes         no more: if still needed, it has moved to another home

So within a step nothing is read that is written, copies wait for nothing but what they copy, and a tensor stays where
it lies when a stage hands it on to its neighbour or keeps it. Only what is still needed in step m + 4 moves, in step
m + 3, to a home with as many places as it needs: a kept input once.

The sums of a reversible stage are computed into the home of the message of which they are a part (`combined`); other
new messages are copied, beside the other stages' work. Counted on the CPU for RevNet-18 of width 64 and 64 images (with
2, times 32), PETRA copies 203 MB a step: 143 of messages, which have 415 MB, and 60 of kept inputs, which have 585.

The price: as many recordings as the largest home has places, or a multiple (`period`), and memory: 1.7 GB of homes,
where one place for each thing would take 1.0 GB, and 0.24 GB beside it for new messages.
"""

import math
from collections.abc import Callable, Hashable, Iterable

import torch
from torch import Tensor

from petra_core.ledger import storage_of
from petra_core.tape import Streams

PLACES = 4  # of a message; it is read in one step, and in two more where a stage hands it on
RECORDINGS = 12  # at least; with fewer, and so fewer places, what is kept for long would move more often


def period(accumulation: int) -> int:
    """After how many steps all homes are written at the same places again, and the same stages update (k)."""
    both = math.lcm(PLACES, accumulation)
    return both * math.ceil(RECORDINGS / both)


class Homes:
    """The homes of one pipeline, whose steps are alike after a `period`.

    They are made as they are first needed, until `close`: what is made within a recording may lie in memory in which
    another recording has its passing results.

    Attributes:
        step: number of the step that is being done.

    """

    def __init__(self, period: int) -> None:
        self.step = 0
        self._places = [places for places in range(PLACES, period + 1) if period % places == 0]
        self._homes: dict[Hashable, Tensor] = {}
        self._written_next: dict[int, int] = {}  # storage of a home: in which step it will be written again
        self._guests: dict[int, Tensor] = {}  # by storage
        self._closed = False

    def welcome(self, tensors: Iterable[Tensor]) -> None:
        """Let tensors from before stay where they are as long as they are needed."""
        self._guests |= {storage_of(tensor): tensor for tensor in tensors}

    def close(self) -> None:
        """Have no more homes made: all are known. Guests must have gone."""
        self._guests.clear()
        self._closed = True

    def lasting(self, key: Hashable, streams: Streams, steps: int) -> Streams:
        """The streams where the next step can read them: those that lie well as they are, the others copied home.

        Args:
            key: what they are; no two have the same in a step.
            streams: of this step or of an earlier one.
            steps: for how many they will be needed. A home has at most `period` places; what is needed for longer moves
                again.

        """
        places = next((places for places in self._places if places > steps), self._places[-1])
        return tuple(
            stream
            if self._lies_well(stream)
            else self._copied((key, number, self.step % places), stream, self.step + places)
            for number, stream in enumerate(streams)
        )

    def fixed(self, key: Hashable, tensor: Tensor) -> Tensor:
        """The tensor at a home with one place, copied there if it is not."""
        return tensor if self._homes.get(key) is tensor else self._copied(key, tensor, self.step + 1)

    def combined(
        self, key: Hashable, name: str, operation: Callable[..., Tensor], left: Tensor, right: Tensor
    ) -> Tensor:
        """The result of an operation, by `out=` at its home; `key` is of the stage (see `petra_core.tape.Combine`)."""
        place = (key, name, self.step % PLACES)
        home = self._homes.get(place)
        if home is None:
            return self._copied(place, operation(left, right), self.step + PLACES)
        self._written_next[storage_of(home)] = self.step + PLACES
        return operation(left, right, out=home)

    def _copied(self, key: Hashable, tensor: Tensor, written_next: int) -> Tensor:
        home = self._homes.get(key)
        if home is None:
            assert not self._closed, f"no home was made for {key} while the steps were rehearsed"
            home = self._homes[key] = torch.empty_like(tensor)
        home.copy_(tensor)
        self._written_next[storage_of(home)] = written_next
        return home

    def _lies_well(self, tensor: Tensor) -> bool:
        """Whether nobody writes there in the next step."""
        storage = storage_of(tensor)
        written_next = self._written_next.get(storage)
        return storage in self._guests if written_next is None else self.step + 1 < written_next
