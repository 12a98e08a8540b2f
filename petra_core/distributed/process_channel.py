"""A pipeline over several processes, by torch.distributed (Gloo on the CPU, NCCL on GPUs).

The obvious way, one process that tells the others what to do, makes it the slowest of all. Here every rank runs the
same clock (`petra_core.schedule`) over the same number of micro-batches, so that each knows by itself what its
neighbours do in a tick, and there is no traffic but the messages between neighbouring stages:

    rank 0  stages 0..2          rank 1  stages 3..5
    ───────────────────          ───────────────────
    tick t: F B of 0, 1          tick t: F B of 4, 5
            wait for B of t-1            wait for F of t-1
            F B of 2 ──────── x ──────▶  F B of 3
                     ◀──── x~, dx ─────

A message that is sent in a tick is used in the next one, at its end: the stages at the border come last in a turn, so
that a message has the time of all other stages to travel in. Over Gloo each starts when it is there, over NCCL all that
a rank sends and receives in a tick start together at its end (`petra_core.distributed.exchange` tells why). All traffic
of a pipeline is in one process group. NCCL makes its communicator at the first operation, in which all ranks must take
part, and two ranks that then meet for the first time wait for each other: so all greet their neighbours once, before
the clock runs. (No machine with two GPUs has run NCCL. Its way of sending has been tried over Gloo: the same bits, and
operations of all ranks in an order in which none waits in a circle.)

A part of the pipeline that is too heavy for one rank may be that of several, which take its micro-batches in turn, in
time for which the clock provides (`petra_core.ages`):

    rank 0  stages 0..2, micro-batches 0 2 4 …  ◀──▶  ┌──────────────────────────┐
      ↕ mean gradients at every update                │ rank 2  stages 3..5, all │
    rank 1  stages 0..2, micro-batches 1 3 5 …  ◀──▶  └──────────────────────────┘

Everybody sends a message to the rank whose turn the micro-batch is. Before an update the gradients are averaged as over
the replicas of data parallelism (`petra_core.distributed.replicas`), only that these have shared one stream of
micro-batches. That changes the order in which gradients are summed, and each replica has running statistics of its own;
all else is, up to that rounding, what one process does under the same clock.

A neighbour that is silent for longer than `patience` is taken for lost, whether it has died or hangs.

Results depend on the order of each stage's own actions and on the contents of the messages alone, never on timing:
they are, bit for bit, those of one process. What is sent has the strides that it has in one process too, because other
strides may mean other kernels, which round differently.
"""

import contextlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from math import gcd, lcm
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from petra_core.ages import of_stages
from petra_core.channel import Channel
from petra_core.distributed.agreement import agree, describe_micro_batch, describe_optimizer, describe_stage
from petra_core.distributed.exchange import OUTSIDE, Exchange, Peer
from petra_core.distributed.gathering import gather
from petra_core.distributed.groups import CPU, PATIENCE, new_group
from petra_core.distributed.layout import HEADER_BYTES, dense, flat, header_of, layout_of, layouts_in
from petra_core.distributed.peers import Inlet, Outlet
from petra_core.distributed.replicas import Replicas
from petra_core.recipe import OptimizerFactory
from petra_core.schedule import Action, Kind, Tick
from petra_core.shares import owned, places
from petra_core.stages import Stage
from petra_core.tape import Streams
from petra_core.worker import Message

__all__ = ["ProcessChannel"]

FIRST_STEPS = 8  # at each of which the ranks compare their micro-batches


class ProcessChannel(Channel):
    """The channel of this process, one of the ranks of a pipeline.

    Every rank of the pipeline makes one, in the same order among other collective calls.

    Args:
        partition: the number of stages of each part of the pipeline, such as (4, 3, 3).
        replicas: of each part, the ranks that have it; None: one each. Those of a part are numbered one after another.
        ranks: the pipeline's, in torch.distributed's default group, rising; None: all.
        wire: the device on which messages are sent: the GPU of this process, over NCCL, or the CPU, over Gloo.
        patience: how long a message is waited for.
        batched: whether all messages of a tick start together at its end, on all ranks alike; None: over NCCL.
        compare_every: how often the ranks compare the micro-batches that they were given: at the first 8 steps and at
            every step whose number is a multiple of this. A comparison takes a SHA-256 of the micro-batch, copied to
            the CPU, and two small all-gathers, at which the ranks wait for one another. None: never.

    Raises:
        ValueError: partition and replicas do not fit the number of ranks, or give a rank no stage, or differ between
            the ranks.
        RuntimeError: torch.distributed is not initialised.
        ChannelError: a neighbour does not answer.

    """

    def __init__(
        self,
        partition: Sequence[int],
        *,
        replicas: Sequence[int] | None = None,
        ranks: Sequence[int] | None = None,
        wire: torch.device = CPU,
        patience: timedelta = PATIENCE,
        batched: bool | None = None,
        compare_every: int | None = 256,
    ) -> None:
        if not dist.is_initialized():
            raise RuntimeError("torch.distributed is not initialised: call torch.distributed.init_process_group before")
        ranks = range(dist.get_world_size()) if ranks is None else ranks
        place = list(ranks).index(dist.get_rank())
        self._group = new_group(ranks, wire, patience)
        cut = {"partition": partition, "replicas of the parts": replicas}
        agree(self._group, cut, "Make the channel with the same partition on every rank")
        self._compare_every, self._steps = compare_every, 0
        parts = places(partition, replicas, len(ranks))
        number = next(number for number, part in enumerate(parts) if place in part)
        self._part = parts[number]
        self.stages, self.count = owned(partition, sum(partition))[number], sum(partition)
        counts = [len(part) for part in parts]
        self.replicas = of_stages(partition, counts) if max(counts) > 1 else ()
        self.replica = place - self._part.start
        self._wire = wire
        self._exchange = Exchange(self._group, batched=wire.type == "cuda" if batched is None else batched)
        self._twins = Replicas([ranks[twin] for twin in self._part], wire=wire, patience=patience)
        self._twins.before = self.settle
        if self.replicas and self._twins.count == 1:
            new_group([ranks[place]], wire, patience)  # torch names groups by their number: all ranks must have as many
        self._top = parts[-1].start
        self._leads = place == self._top
        self._from_below: dict[int, Inlet] = {}  # by place
        self._to_below: dict[int, Outlet] = {}
        self._from_above: dict[int, Inlet] = {}
        self._to_above: dict[int, Outlet] = {}
        self._below = parts[number - 1] if number > 0 else range(0)
        self._above = parts[number + 1] if number < len(parts) - 1 else range(0)
        peers = []
        for other in self._neighbours(self._below):
            peer = Peer(other, self.stages.start - 1, self.stages.start, patience)
            self._from_below[other] = Inlet(peer, self._exchange, wire)
            self._to_below[other] = Outlet(peer, self._exchange, wire, self._may_travel(self._below))
            peers.append(peer)
        for other in self._neighbours(self._above):
            peer = Peer(other, self.stages.stop, self.stages.stop - 1, patience)
            self._to_above[other] = Outlet(peer, self._exchange, wire, self._may_travel(self._above))
            self._from_above[other] = Inlet(peer, self._exchange, wire, self._to_above[other])
            peers.append(peer)
        self._inlets = (*self._from_below.values(), *self._from_above.values())
        self._outlets = (*self._to_below.values(), *self._to_above.values())
        self._greet(peers)

    def _neighbours(self, part: range) -> list[int]:
        """The places in another part whose turn some micro-batch is that has its turn here."""
        return [other for other in part if (other - part.start - self.replica) % gcd(len(part), len(self._part)) == 0]

    def _may_travel(self, part: range) -> int:
        """Micro-batches on their way to one neighbour in another part, in one direction.

        Once a pipeline is full, so many ticks lie between a forward and the one whose gradient has just come back, that
        what is older has arrived in any case: the neighbour has used it. One that fills is held up, not for long.
        """
        ticks = 2 * (len(part) + len(self._part)) - 2
        return -(-ticks // lcm(len(part), len(self._part)))

    def _greet(self, peers: Sequence[Peer]) -> None:
        """Connect to the neighbours, all at once."""
        hello = torch.zeros(1, device=self._wire)
        greetings = [self._exchange.send(hello, peer, OUTSIDE) for peer in peers]
        greetings += [self._exchange.receive(torch.empty_like(hello), peer, OUTSIDE) for peer in peers]
        self._exchange.end()
        for greeting in greetings:
            greeting.wait()

    def check_settings(
        self, settings: Mapping[str, Any], stages: Sequence[Stage], optimizer: OptimizerFactory | None
    ) -> None:
        values = {**settings, "stages": list(map(describe_stage, stages)), **describe_optimizer(optimizer)}
        agree(self._group, values, "Make the pipeline with the same arguments on every rank")

    def check_step(self, micro_batch: int, inputs: Streams, target: object, learning_rate: float | None) -> None:
        step, self._steps = self._steps, self._steps + 1
        if self._compare_every is None or (step >= FIRST_STEPS and step % self._compare_every):
            return
        values: dict[str, Any] = {"learning rate": learning_rate}
        if 0 in self.stages or self.count - 1 in self.stages:  # the other ranks use neither inputs nor targets
            values[f"micro-batch {micro_batch}"] = describe_micro_batch(inputs, target)
        agree(
            self._group,
            values,
            "Give every rank the same micro-batches in the same order, such as by "
            "DataLoader(generator=torch.Generator().manual_seed(0)), and the same learning rate: the loss is known to "
            "the rank of the head only, and a schedule that depends on it needs a broadcast",
        )

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of all ranks, on the CPU, in the order of the ranks; of replicas those of the first."""
        self.settle()
        return gather(self._group, tensors)

    def begin(self, tick: Tick) -> None:
        """Expect what the neighbours send in this tick."""
        if self._below:
            for action in tick[self.stages.start - 1]:
                if action.kind is Kind.FORWARD and self._is_own(action.number):
                    self._from_below[_whose(action.number, self._below)].expect(action.number)
        if self._above:
            for action in tick[self.stages.stop]:
                if action.kind is Kind.BACKWARD and self._is_own(action.number):
                    self._from_above[_whose(action.number, self._above)].expect(action.number)

    def end(self) -> None:
        """Start what has not been started yet of what is sent and received in this tick."""
        for inlet in self._inlets:
            inlet.post()
        self._exchange.end()

    def settle(self) -> None:
        """Wait for the messages under way, before anything else is sent: over NCCL only one thing may be at a time."""
        if self._exchange.batched:
            for inlet in self._inlets:
                inlet.settle()
            for outlet in self._outlets:
                outlet.settle()

    def _is_own(self, micro_batch: int) -> bool:
        return micro_batch % len(self._part) == self.replica

    def send(self, stage: int, message: Message) -> None:
        """Send a message, now or at the end of the tick; the tensors are kept until they are gone."""
        if stage < self.stages.start:
            self._to_below[_whose(message.micro_batch, self._below)].send(message)
        else:
            self._to_above[_whose(message.micro_batch, self._above)].send(message)

    def collect(self, stage: int, action: Action | None) -> list[Message]:
        """Wait for what `stage` needs for this action, or for all that is on its way here."""
        messages = []
        for border, inlets, kinds in (
            (self.stages.start, self._from_below, (Kind.FORWARD,)),
            (self.stages.stop - 1, self._from_above, (Kind.RECONSTRUCT, Kind.BACKWARD)),  # one message is for both
        ):
            if stage == border and (action is None or action.kind in kinds):
                last = None if action is None else action.number
                arrived = (message for inlet in inlets.values() for message in inlet.take(last))
                messages += sorted(arrived, key=lambda message: message.micro_batch)
        return messages

    def average_gradients(self, index: int, version: int, stage: Stage) -> None:
        """Replace a stage's gradients by their mean, by an all-reduce among the ranks of the part."""
        self._twins.average_gradients(index, version, stage)

    def averaged_statistics(self, model: nn.Module) -> contextlib.AbstractContextManager[None]:
        return self._twins.averaged_statistics(model)

    def close(self) -> None:
        """Wait until everything that was sent has arrived; to be called before the process group is destroyed.

        What has arrived and is not collected yet is lost.
        """
        for inlet in self._inlets:
            inlet.take(None)  # the neighbour waits for that
        for outlet in self._outlets:
            outlet.settle()

    def evaluation_input(self, streams: Streams) -> Streams:
        """Wait, on the first rank of a part, for the streams of the part below; elsewhere return `streams`."""
        return (
            self._from_below[self._below.start].take_outside_schedule()
            if self._below and self.replica == 0
            else streams
        )

    def evaluation_output(self, streams: Streams) -> Streams:
        """Send up to the next part, on the first rank of each; on all, take part in the highest's broadcast."""
        if self._above and self.replica == 0:
            self._to_above[self._above.start].send_outside_schedule(streams)
        self.settle()
        # A head's output may have gaps, as a slice has: what is sent has none.
        sent = (dense(streams, self._wire) or ()) if self._leads else ()
        header = header_of((layout_of(sent), None)) if self._leads else torch.empty(HEADER_BYTES, dtype=torch.uint8)
        dist.broadcast(header, group=self._group, group_src=self._top)
        if not self._leads:
            streams = sent = tuple(layout.empty(self._wire) for layout in layouts_in(header)[0] or ())
        for stream in sent:
            dist.broadcast(flat(stream), group=self._group, group_src=self._top)
        return streams


def _whose(micro_batch: int, part: range) -> int:
    """The place in `part` whose turn a micro-batch is."""
    return part[micro_batch % len(part)]
