"""A pipeline over several processes, by torch.distributed (Gloo on the CPU, NCCL on GPUs).

The obvious way, one process that tells the others what to do, makes it the slowest of all. Here every rank executes the
local program of its stages over the same micro-batches, and knows from the staleness what its neighbours send in a
step, so there is no traffic but the messages between neighbouring stages:

    rank 0  stages 0..2                 rank 1  stages 3..5
    ───────────────────                 ───────────────────
    step m: F m of 0, 1, 2 ──── y ────▶ step m: F m of 3, 4, 5
            wait for B(m - d_2) ◀─ dx ─         B(m - d_5) .. B(m - d_3) of 5, 4, 3
            B of 2, 1, 0

A rank waits for the message that its next action needs, for nothing else, and never for what it has sent
(`petra_core.distributed.exchange`). So rank 0 is ahead of rank 1, by as many steps as the staleness allows: the
gradient that stage 2 needs in step m was made in step m - (d_2 - d_3) of rank 1.

NCCL makes a communicator at the first operation of a pair of ranks, in which both take part: all greet their neighbours
once, before the first step.

A neighbour that is silent for longer than `patience` is taken for lost, whether it has died or hangs.

Results depend on the order of each stage's actions and on the contents of the messages alone, never on timing: they
are, bit for bit, those of one process. What is sent has the strides that it has in one process too, because other
strides may mean other kernels, which round differently.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from petra_core.channel import Channel
from petra_core.distributed.agreement import agree, describe_micro_batch, describe_optimizer, describe_stage
from petra_core.distributed.exchange import OUTSIDE, Peer
from petra_core.distributed.gathering import gather
from petra_core.distributed.groups import CPU, PATIENCE, new_group
from petra_core.distributed.layout import HEADER_BYTES, dense, flat, header_of, layout_of, layouts_in
from petra_core.distributed.peers import Inlet, Outlet
from petra_core.recipe import OptimizerFactory
from petra_core.schedule import Action, Kind
from petra_core.shares import owned
from petra_core.stages import Stage
from petra_core.tape import Streams
from petra_core.worker import Message

__all__ = ["ProcessChannel"]

FIRST_STEPS = 8  # at each of which the ranks compare their micro-batches


class ProcessChannel(Channel):
    """The channel of this process, one of the ranks of a pipeline.

    Every rank of the pipeline makes one, in the same order among other collective calls.

    Args:
        partition: the number of stages of each rank, such as (4, 3, 3).
        ranks: the pipeline's, in torch.distributed's default group, rising; None: all.
        wire: the device on which messages are sent: the GPU of this process, over NCCL, or the CPU, over Gloo.
        patience: how long a message is waited for.
        compare_every: how often the ranks compare the micro-batches that they were given: at the first 8 steps and at
            every step whose number is a multiple of this. A comparison takes a SHA-256 of the micro-batch, copied to
            the CPU, and two small all-gathers, at which the ranks wait for one another. None: never.

    Raises:
        ValueError: the partition does not fit the number of ranks, or gives a rank no stage, or differs between the
            ranks.
        RuntimeError: torch.distributed is not initialised.
        ChannelError: a neighbour does not answer.

    """

    def __init__(
        self,
        partition: Sequence[int],
        *,
        ranks: Sequence[int] | None = None,
        wire: torch.device = CPU,
        patience: timedelta = PATIENCE,
        compare_every: int | None = 256,
    ) -> None:
        if not dist.is_initialized():
            raise RuntimeError("torch.distributed is not initialised: call torch.distributed.init_process_group before")
        ranks = range(dist.get_world_size()) if ranks is None else ranks
        place = list(ranks).index(dist.get_rank())
        self._wire = wire
        # Of evaluations and comparisons too. On GPUs each has its own connections, made and waited for one by one.
        upwards, downwards = (new_group(ranks, wire, patience) for _ in range(2))
        self._group = upwards
        agree(self._group, {"partition": partition}, "Make the channel with the same partition on every rank")
        if len(partition) != len(ranks):
            raise ValueError(
                f"the partition {tuple(partition)} is for {len(partition)} ranks, and there are {len(ranks)}"
            )
        self._compare_every, self._steps = compare_every, 0
        self.stages, self.count = owned(partition, sum(partition))[place], sum(partition)
        self.staleness: tuple[int, ...] = ()
        self._top = len(ranks) - 1
        self._leads = place == self._top
        self._from_below: Inlet | None = None
        self._to_below: Outlet | None = None
        self._from_above: Inlet | None = None
        self._to_above: Outlet | None = None
        senders, receivers = [], []
        if place > 0:
            border = (place - 1, self.stages.start - 1, self.stages.start, patience)
            below, back = Peer(*border, upwards), Peer(*border, downwards)
            self._from_below, self._to_below = Inlet(below, wire), Outlet(back, wire)
            receivers, senders = [below], [back]
        if place < self._top:
            border = (place + 1, self.stages.stop, self.stages.stop - 1, patience)
            above, back = Peer(*border, upwards), Peer(*border, downwards)
            self._to_above = Outlet(above, wire)
            self._from_above = Inlet(back, wire, self._to_above)
            senders, receivers = [*senders, above], [*receivers, back]
        self._greet(senders, receivers)

    def _greet(self, senders: Sequence[Peer], receivers: Sequence[Peer]) -> None:
        """Connect to the neighbours, in both directions at once."""
        hello = torch.zeros(1, device=self._wire)
        greetings = [peer.send(hello, OUTSIDE) for peer in senders]
        greetings += [peer.receive(torch.empty_like(hello), OUTSIDE) for peer in receivers]
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
        """Return the tensors of all ranks, on the CPU, in the order of the ranks; all ranks call this."""
        return gather(self._group, tensors)

    def expect(self, forward: int | None, backward: int | None) -> None:
        """Expect what the neighbours send in a step."""
        if self._from_below is not None and forward is not None:
            self._from_below.expect(forward)
        if self._from_above is not None and backward is not None:
            self._from_above.expect(backward)

    def send(self, stage: int, message: Message) -> None:
        """Send a message; its tensors are kept until they have arrived."""
        outlet = self._to_below if stage < self.stages.start else self._to_above
        assert outlet is not None
        outlet.send(message)

    def collect(self, stage: int, action: Action | None) -> list[Message]:
        """Wait for what `stage` needs for this action, or for all that is expected."""
        messages: list[Message] = []
        last = None if action is None else action.number
        if stage == self.stages.start and self._from_below is not None:
            assert self._to_below is not None
            if action is None or action.kind is Kind.FORWARD:
                messages += self._from_below.take(last)
                for message in messages:  # the rank below has done its steps before this one
                    self._to_below.let_go(message.micro_batch - 1 - self.staleness[stage - 1])
        if stage == self.stages.stop - 1 and self._from_above is not None:
            assert self._to_above is not None
            if action is None or action.kind in (Kind.RECONSTRUCT, Kind.BACKWARD):  # one message is for both
                arrived = self._from_above.take(last)
                for message in arrived:  # the rank above has done the forward of the same step
                    self._to_above.let_go(message.micro_batch + self.staleness[stage + 1])
                messages += arrived
        return messages

    def close(self) -> None:
        """Wait until everything that was sent has arrived; to be called before the process group is destroyed.

        What has arrived and is not collected yet is lost.
        """
        if self._from_above is not None:  # the neighbours wait for that
            self._from_above.close()
        if self._to_above is not None:
            self._to_above.close(ahead=self._wire.type == "cpu")
        if self._from_below is not None:
            self._from_below.close()
        if self._to_below is not None:
            self._to_below.close(ahead=False)

    def evaluation_input(self, streams: Streams) -> Streams:
        """Wait for the streams of the rank below; on the lowest return `streams`."""
        return streams if self._from_below is None else self._from_below.take_aside()

    def evaluation_output(self, streams: Streams) -> Streams:
        """Send up to the next rank; on all, take part in the highest's broadcast."""
        if self._to_above is not None:
            self._to_above.send_aside(streams)
        # A head's output may have gaps, as a slice has: what is sent has none.
        sent = (dense(streams, self._wire) or ()) if self._leads else ()
        header = header_of((layout_of(sent), None)) if self._leads else torch.empty(HEADER_BYTES, dtype=torch.uint8)
        dist.broadcast(header, group=self._group, group_src=self._top)
        if not self._leads:
            streams = sent = tuple(layout.empty(self._wire) for layout in layouts_in(header)[0] or ())
        for stream in sent:
            dist.broadcast(flat(stream), group=self._group, group_src=self._top)
        return streams
