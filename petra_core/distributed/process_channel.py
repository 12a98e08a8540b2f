"""Connect a pipeline over several processes with torch.distributed (Gloo on the CPU, NCCL on GPUs).

A central coordinator would become the bottleneck. Instead every rank executes the local program of its stages over the
same micro-batches, and derives from the staleness which messages its neighbours send in a step. The only traffic is the
messages between neighbouring stages:

    rank 0  stages 0..2                 rank 1  stages 3..5
    ───────────────────                 ───────────────────
    step m: F m of 0, 1, 2 ──── y ────▶ step m: F m of 3, 4, 5
            wait for B(m - d_2) ◀─ dx ─         B(m - d_5) .. B(m - d_3) of 5, 4, 3
            B of 2, 1, 0

A rank waits only for the message that its next action needs, and never for a message that it has sent
(`petra_core.distributed.transfers`). Rank 0 may therefore run ahead of rank 1 by up to the difference of their
staleness: rank 1 computes the gradient that stage 2 needs in step m in its step m - (d_2 - d_3).

NCCL connects two ranks of a group at their first transfer, for which the hosts of both wait. A handshake between
neighbours does this before the first step, in the same order on all ranks.

A neighbour that does not answer within `timeout` counts as lost, whether it has died or hangs.

Results depend only on the order of each stage's actions and on the contents of the messages, never on timing: they are
bitwise equal to those of one process. Messages keep the strides that their tensors have in one process, because strides
select the kernel, and different kernels round differently.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from petra_core.distributed.agreement import agree, describe_micro_batch, describe_optimizer, describe_stages, exchange
from petra_core.distributed.groups import CPU, TIMEOUT, ChannelError, new_group
from petra_core.distributed.layout import TensorLayout, dense, flat
from petra_core.distributed.neighbours import Border, Receiver, Sender
from petra_core.distributed.transfers import EVALUATION_TAG, NO_MICRO_BATCH, Neighbour
from petra_core.errors import check_int
from petra_core.messages import Channel, Message
from petra_core.optimizers import OptimizerFactory
from petra_core.shares import stage_ranges
from petra_core.stages import Stage
from petra_core.staleness import Action, Kind
from petra_core.tape import Streams

FIRST_STEPS = 8  # number of initial steps in which the ranks always compare their micro-batches


class ProcessChannel(Channel):
    """Channel between this process's stages and the neighbouring ranks, for one pipeline.

    Creating a channel is collective: every rank of the pipeline creates one, in the same order relative to other
    collective calls.

    Args:
        partition: Number of stages of each rank, such as (4, 3, 3).
        ranks: Ranks of the pipeline in torch.distributed's default group, in ascending order. None means all ranks.
        comm_device: Device from which messages are sent: the GPU of this process (over NCCL) or the CPU (over Gloo).
        timeout: Timeout of a message.
        compare_every: Interval in steps at which the ranks compare their micro-batches, at least 1. They always compare
            the first 8 steps, also after a state is loaded. A comparison hashes a CPU copy of the micro-batch (SHA-256)
            and runs two small all-gathers, which synchronise the ranks. None disables comparisons.

    Raises:
        ValueError: If the partition does not match the number of ranks, gives a rank no stage, or differs between
            ranks, if the ranks are not in ascending order or lack this process, or if `compare_every` is below 1.
        RuntimeError: If torch.distributed is not initialised.
        ChannelError: If a neighbour does not answer.

    """

    def __init__(
        self,
        partition: Sequence[int],
        *,
        ranks: Sequence[int] | None = None,
        comm_device: torch.device = CPU,
        timeout: timedelta = TIMEOUT,
        compare_every: int | None = 256,
    ) -> None:
        if not dist.is_initialized():
            raise RuntimeError("torch.distributed is not initialised; call torch.distributed.init_process_group first")
        ranks, rank = range(dist.get_world_size()) if ranks is None else list(ranks), dist.get_rank()
        if rank not in ranks or list(ranks) != sorted({*ranks}):  # torch sorts the ranks of a group
            raise ValueError(f"ranks must be in ascending order and contain this rank {rank}, got {ranks}")
        self._compare_every = None if compare_every is None else check_int("compare_every", compare_every, 1)
        place = ranks.index(rank)
        # On a GPU one stream executes all transfers of a group in order (`petra_core.distributed.transfers`). So a rank
        # shares no group with both neighbours: borders above an even and above an odd place have separate groups.
        count = 1 + (len(ranks) > 2)
        upwards, downwards = ([new_group(ranks, comm_device, timeout) for _ in range(count)] for _ in range(2))
        self._group = upwards[0]  # also serves comparisons
        agree(self._group, {"partition": partition}, "Make the channel with the same partition on every rank")
        if len(partition) != len(ranks):
            raise ValueError(
                f"the partition {tuple(partition)} is for {len(partition)} ranks, expected {len(ranks)}; give one "
                f"number of stages for each rank"
            )
        super().__init__(stage_ranges(partition, sum(partition))[place], sum(partition))
        ahead = comm_device.type == "cpu"
        self._below: Border | None = None
        self._above: Border | None = None
        if place > 0:
            border = (place - 1, self.stages.start - 1, self.stages.start, timeout, comm_device)
            from_below = Receiver(Neighbour(*border, upwards[(place - 1) % count], ahead=ahead))
            self._below = Border(Sender(Neighbour(*border, downwards[(place - 1) % count])), from_below)
        if place < len(ranks) - 1:
            border = (place + 1, self.stages.stop, self.stages.stop - 1, timeout, comm_device)
            to_above = Sender(Neighbour(*border, upwards[place % count], ahead=ahead))
            self._above = Border(to_above, Receiver(Neighbour(*border, downwards[place % count]), to_above))
        self._handshake()

    def _handshake(self) -> None:
        """Connect to the neighbours.

        Each transfer may wait for the counterpart, so both ranks of a border begin with the upward transfer. The
        lowest border is connected first.
        """
        ends: list[Sender | Receiver] = [] if self._below is None else [self._below.receiver, self._below.sender]
        ends += [] if self._above is None else [self._above.sender, self._above.receiver]
        for end in ends:
            transfer = end.neighbour.send if isinstance(end, Sender) else end.neighbour.receive
            transfer([torch.zeros(1, device=end.neighbour.comm_device)], NO_MICRO_BATCH).wait()

    def check_settings(
        self, settings: Mapping[str, Any], stages: Sequence[Stage], optimizer: OptimizerFactory | None
    ) -> None:
        if self.staleness:
            raise ValueError("this channel belongs to another pipeline; make a new channel on every rank")
        if settings["seed"] is None:
            raise ValueError(
                "over several processes random numbers must not depend on where a stage runs: give the pipeline a seed"
            )
        if len(stages) != self.count:
            raise ValueError(f"the channel is for {self.count} stages, the network has {len(stages)}")
        values = {**settings, **describe_stages(stages, self.stages), **describe_optimizer(optimizer)}
        self.run = agree(self._group, values, "Make the pipeline with the same arguments on every rank")

    def check_step(self, micro_batch: int, inputs: Streams, target: object, learning_rate: float | None) -> None:
        step, self.steps = self.steps, self.steps + 1
        if self._compare_every is None or (step >= FIRST_STEPS and step % self._compare_every):
            return
        row: dict[str, Any] = {"number of micro-batches": micro_batch, "learning rate": learning_rate, "run": self.run}
        row["call"] = "step"
        if 0 in self.stages or self.count - 1 in self.stages:  # other ranks use neither inputs nor targets
            row[f"micro-batch {micro_batch}"] = describe_micro_batch(inputs, target)
        agree(
            self._group,
            row,
            "Give every rank the same micro-batches in the same order, such as those of a DataLoader with "
            "generator=torch.Generator().manual_seed(0), the same learning rate, and states of the same step of one "
            "run. Only the rank of the head knows the loss: if the learning rate depends on it, broadcast the learning "
            "rate from that rank",
        )

    def gather(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of all ranks: first names and layouts are exchanged, then one tensor after the other.

        If several ranks have the same name, the tensor of the lowest of these ranks is returned.

        Raises:
            ChannelError: If a rank has died or does not make this call.

        """
        own = dict(zip(tensors, dense(tuple(tensors.values()), CPU), strict=True))
        layouts = {name: TensorLayout.of_tensor(tensor) for name, tensor in own.items()}
        gathered: dict[str, Tensor] = {}
        for source, text in enumerate(exchange(self._group, json.dumps(layouts))):
            for name, layout in json.loads(text).items():
                if name in gathered:
                    continue
                sends = source == dist.get_rank(self._group)
                tensor = own[name] if sends else TensorLayout.of_json(layout).empty(CPU)
                try:
                    dist.broadcast(flat(tensor), group=self._group, group_src=source)
                except RuntimeError as error:
                    raise ChannelError(
                        f"rank {dist.get_rank()} lost another rank while gathering {name} of rank "
                        f"{dist.get_global_rank(self._group, source)}: that process has died or timed out ({error})"
                    ) from error
                gathered[name] = tensor
        return gathered

    def expect(self, forward: int | None, backward: int | None) -> None:
        if self._below is not None and forward is not None:
            self._below.receiver.expect(forward)
        if self._above is not None and backward is not None:
            self._above.receiver.expect(backward)

    def send(self, stage: int, message: Message) -> None:
        """Send a message. Its tensors are kept alive until they have arrived."""
        border = self._below if stage < self.stages.start else self._above
        assert border is not None
        border.sender.send(message)

    def collect(self, stage: int, action: Action | None) -> list[Message]:
        """Wait for the messages that `stage` needs for an action, or for all expected messages if it is None."""
        messages: list[Message] = []
        below, above = self._below, self._above
        kind, last = (None, None) if action is None else action
        if below is not None and stage == self.stages.start and kind in (None, Kind.FORWARD):
            messages += below.receiver.take(last)
            for message in messages:  # the rank below has completed all its steps before this one
                below.sender.release(message.micro_batch - 1 - self.staleness[stage - 1])
        # A reconstruction and its backward need the same message.
        if above is not None and stage == self.stages.stop - 1 and kind in (None, Kind.RECONSTRUCT, Kind.BACKWARD):
            arrived = above.receiver.take(last)
            for message in arrived:  # the rank above has completed the forward of the same step
                above.sender.release(message.micro_batch + self.staleness[stage + 1])
            messages += arrived
        return messages

    def close(self) -> None:
        """Wait until all sent messages have arrived. Call this before destroying the process group.

        Messages that have arrived but were not collected are lost. Later messages may have another layout. The ranks
        first compare their calls, because a rank in a further step would take the dummy message of `Sender.close` for
        a micro-batch.

        Raises:
            ValueError: If another rank has taken another number of steps or takes a step. All ranks raise it.
            ChannelError: If another rank has died or does not make this call.

        """
        agree(self._group, {"call": "drain or close", "steps taken": self.steps}, "Make the same calls on all ranks")
        for border in (self._above, self._below):  # the rank above first, because the neighbours wait for it
            if border is not None:
                border.receiver.close()
                border.sender.close()

    def evaluation_input(self, streams: Streams) -> Streams:
        if self._below is None:
            return streams
        receiver = Receiver(replace(self._below.receiver.neighbour, tag=EVALUATION_TAG, ahead=False))
        receiver.expect(NO_MICRO_BATCH)
        return receiver.take(NO_MICRO_BATCH)[0].tensors

    def evaluation_output(self, streams: Streams) -> Streams:
        """Send the streams to the rank above, and return a copy of the highest rank's output on the CPU."""
        if self._above is not None:
            sender = Sender(replace(self._above.sender.neighbour, tag=EVALUATION_TAG, ahead=False))
            sender.send(Message(NO_MICRO_BATCH, streams))
            sender.close()
        outputs = {str(number): stream for number, stream in enumerate(streams)}
        return tuple(self.gather(outputs if self._above is None else {}).values())
