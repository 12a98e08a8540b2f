"""Time the stages of a network on this machine, and balance them over devices.

The time of one stage cannot be measured in a pipeline in one process, because the stages share caches and threads.
Timing only its module would miss the engine's overhead and the second evaluation that some methods need. So every stage
is run in isolation by the engine's worker (`StageAlone`), with the work that its device does in every tick of a full
pipeline. The worker gets the messages of the neighbours: an input from below, and a gradient from above for the oldest
micro-batch, as soon as `waiting` micro-batches are between forward and backward.

    turn   F of a new micro-batch,  B of the oldest (with its reconstruction),  U after every k backwards

The number of waiting micro-batches affects the cost of a turn only through the versions of the weights. With k = 1, one
waiting micro-batch is enough: every forward is then one update older than its backward.

The costs of stages are medians over turns after a warm-up (caches, kernel selection, the optimizer's state). A median
is robust against single turns that another process disturbed, but not against a machine that is always busy. The stages
are copied one at a time, so their weights, buffers and optimizers are not changed, and torch's global generators are
restored.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch

from petra_core.errors import check_int
from petra_core.ledger import payload
from petra_core.messages import Message
from petra_core.methods import REVERSIBLE_BACKPROPAGATION, Method
from petra_core.optimizers import OptimizerFactory
from petra_core.prediction.memory import predict
from petra_core.prediction.partition import Cost, Partition, find_partition
from petra_core.settings import Settings
from petra_core.stages import HeadStage, Stage, copy_stages
from petra_core.tape import Streams, Value, as_streams, as_value, detach
from petra_core.targets import Target, flatten
from petra_core.worker import Worker, devices_of

GRADIENT_SCALE = 1e-3  # scale of gradients from above; avoids denormal numbers and diverging weights
WARM_UP = 2  # turns that are not timed


Result = TypeVar("Result")


@dataclass(frozen=True)
class Feed:
    """Tensors that the neighbours send to a stage with every micro-batch.

    Attributes:
        inputs: Outputs of the stage below.
        target: Target of the loss, only for the head.
        return_input: Whether the stage below inverts, so that the input must be returned to it.

    """

    inputs: Streams
    target: Target
    return_input: bool


class TurnSeconds(NamedTuple):
    """Seconds of the actions of one turn.

    Attributes:
        forward: Seconds of the forward.
        backward: Seconds of the backward.
        update: Seconds of the update, or None if no update was due.

    """

    forward: float
    backward: float
    update: float | None


@torch.no_grad()
def feeds(stages: Sequence[Stage], method: Method, inputs: Value, target: Target) -> list[Feed]:
    """Return the feed of each stage from one forward of `inputs` through the network.

    The forward updates running statistics once.
    """
    per_stage = []
    streams = as_streams(inputs)
    for index, (stage, device) in enumerate(zip(stages, devices_of(stages), strict=True)):
        below_inverts = index > 0 and method.reconstructs and stages[index - 1].parts()[-1].invertible
        per_stage.append(Feed(streams, target if isinstance(stage.parts()[-1], HeadStage) else None, below_inverts))
        streams = detach(as_streams(stage(as_value(tuple(stream.to(device) for stream in streams)))))
    return per_stage


class StageAlone:
    """Worker of one stage, with a substitute for its neighbours.

    Args:
        stage: The stage.
        index: Index of the stage.
        settings: Settings of the pipeline.
        feed: Tensors that the neighbours send.
        waiting: Number of micro-batches between forward and backward in the steady state, 0 for the head.
        optimizer: Factory of the optimizer.

    Attributes:
        worker: The engine's worker.
        bytes_up: Payload of a message to the stage above, in bytes.
        bytes_down: Payload of a message to the stage below, in bytes.

    """

    def __init__(
        self,
        stage: Stage,
        index: int,
        settings: Settings,
        feed: Feed,
        *,
        waiting: int,
        optimizer: OptimizerFactory | None = None,
    ) -> None:
        [device] = devices_of([stage])
        self.worker = Worker(stage, index, device, settings, optimizer, return_input=feed.return_input)
        self.bytes_up = self.bytes_down = 0
        self._feed, self._accumulation = feed, settings.accumulation
        self._forwards = self._backwards = 0
        self._sent: deque[Message] = deque()  # sent upwards; the stage above holds them until it returns them
        self._gradients: Streams = ()  # from above, the same for all micro-batches
        for _ in range(waiting):
            self.forward()

    def turn(self) -> TurnSeconds:
        """Run one turn: the forward of a new micro-batch, the backward of the oldest and, if due, an update."""
        return TurnSeconds(self.forward(), *self.backward())

    def forward(self) -> float:
        """Run the forward of a new micro-batch and return its seconds, without the time to receive messages."""
        self.worker.receive(Message(self._forwards, self._feed.inputs))
        if self.worker.is_head:
            keys, tensors = flatten(self._feed.target)
            self.worker.receive_target(keys, Message(self._forwards, tensors))
        seconds, message = self._time(self.worker.forward, self._forwards)
        self._forwards += 1
        if not self.worker.is_head:
            self._sent.append(message)
            self.bytes_up = message.bytes()
        return seconds

    def backward(self) -> tuple[float, float | None]:
        """Run the backward of the oldest micro-batch and, if due, an update, and return their seconds."""
        if not self.worker.is_head:
            sent = self._sent.popleft()
            self._gradients = self._gradients or tuple(
                GRADIENT_SCALE * torch.randn_like(stream) if stream.is_floating_point() else torch.zeros_like(stream)
                for stream in sent.tensors
            )
            outputs = sent.streams if self.worker.parts[-1].reconstructs else ()
            self.worker.receive(Message(sent.micro_batch, outputs, self._gradients))
        seconds, message = self._time(self.worker.backward, self._backwards)
        self._backwards += 1
        self.bytes_down = message.bytes() if message is not None else 0
        due = self._backwards % self._accumulation == 0
        return seconds, self._time(partial(self.worker.update, prepared=False))[0] if due else None

    def cost(
        self, turns: Sequence[TurnSeconds], average: Callable[[Iterable[float]], float] = statistics.median
    ) -> Cost:
        """Return the cost of the stage, with the average of the seconds of timed turns, at least one with an update."""
        return Cost(
            average(turn.forward for turn in turns),
            average(turn.backward for turn in turns),
            average(turn.update for turn in turns if turn.update is not None),
            self.bytes_up,
            self.bytes_down,
            payload(self.worker.stage.parameters()),
        )

    def _time(self, action: Callable[..., Result], *arguments: int) -> tuple[float, Result]:
        """Return the seconds of an action of the worker, and its result."""
        _synchronize(self.worker.device)
        start = time.perf_counter()
        result = action(*arguments)
        _synchronize(self.worker.device)
        return time.perf_counter() - start, result


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_stages(
    stages: Sequence[Stage],
    method: Method,
    inputs: Value,
    target: Target,
    *,
    accumulation: int = 1,
    optimizer: OptimizerFactory | None = None,
    autocast: torch.dtype | None = None,
    repetitions: int = 5,
) -> Iterator[tuple[StageAlone, list[TurnSeconds]]]:
    """Time one stage after the other, as `method` would run it on a separate device.

    Args:
        stages: Stages of a pipeline; they are not changed.
        method: Training method, except PAREPROP.
        inputs: Inputs of a micro-batch.
        target: Target of the micro-batch.
        accumulation: Number of micro-batches per update, k, as in `Pipeline`.
        optimizer: As in `Pipeline`; None times no updates.
        autocast: As in `Pipeline`.
        repetitions: Number of timed turns of each stage, at least k.

    Yields:
        Each stage as it was run, and its timed turns, at least k.

    Raises:
        ValueError: If k or the repetitions are below 1, or the method overlaps stages.

    """
    settings = Settings(method=method, accumulation=accumulation, seed=0, autocast=autocast)
    check_int("repetitions", repetitions, 1)
    if method.overlapped:
        raise ValueError(
            f"{method} overlaps the work of two stages, so a stage cannot be timed in isolation; "
            f"{REVERSIBLE_BACKPROPAGATION} does the same work in order"
        )
    devices = devices_of(stages)
    cuda = [device for device in {*devices} if device.type == "cuda"]
    precision = torch.autocast(devices[0].type, dtype=autocast, enabled=autocast is not None)
    with torch.random.fork_rng(devices=cuda), precision:
        arriving = feeds(copy_stages(stages), method, inputs, target)
    for index, (stage, feed) in enumerate(zip(stages, arriving, strict=True)):
        with torch.random.fork_rng(devices=cuda):
            # At most k waiting micro-batches are needed for forward and backward to use different weights.
            waiting = min(2 * (len(stages) - 1 - index), accumulation) if method.pipelined else 0
            alone = StageAlone(copy_stages([stage])[0], index, settings, feed, waiting=waiting, optimizer=optimizer)
            for _ in range(max(WARM_UP, accumulation)):
                alone.turn()
            turns = [alone.turn() for _ in range(max(repetitions, accumulation))]  # only every k-th turn has an update
        yield alone, turns


def measure(
    stages: Sequence[Stage], method: Method, inputs: Value, target: Target, **settings: Any
) -> tuple[Cost, ...]:
    """Time every stage as `method` would run it on a separate device, and return the cost of each stage.

    Args:
        stages: Stages of a pipeline; they are not changed.
        method: Training method, except PAREPROP.
        inputs: Inputs of a micro-batch.
        target: Target of the micro-batch.
        **settings: `accumulation`, `optimizer`, `autocast` and `repetitions`, as in `time_stages`.

    Returns:
        One cost for each stage.

    Raises:
        TypeError: If a setting is unknown.
        ValueError: If k or the repetitions are below 1, or the method overlaps stages.

    """
    return tuple(alone.cost(turns) for alone, turns in time_stages(stages, method, inputs, target, **settings))


def balance(
    stages: Sequence[Stage],
    method: Method,
    inputs: Value,
    target: Target,
    devices: int,
    *,
    accumulation: int = 1,
    staleness: Sequence[int] | None = None,
    repetitions: int = 5,
    limit: int | None = None,
    **settings: Any,
) -> Partition:
    """Time every stage now and return the partition over devices whose slowest device is fastest.

    `Partition.sizes` is the argument of `petra_core.distributed.ProcessChannel`. Call this in one process and send the
    sizes to the others: two processes would measure different times. Print the partition to see times and bytes.

    Args:
        stages: As in `measure`.
        method: As in `measure`.
        inputs: As in `measure`.
        target: As in `measure`.
        devices: Number of devices, each of which gets at least one stage.
        accumulation: As in `time_stages`.
        staleness: As in `Pipeline`, for the prediction of memory.
        repetitions: As in `time_stages`.
        limit: Maximum predicted bytes of a device, or None.
        **settings: `optimizer` and `autocast`, as in `time_stages`.

    Raises:
        TypeError: If a setting is unknown.
        ValueError: As in `measure`, and if there are fewer stages than devices, or no partition stays below the limit.

    """
    network = stages, method, inputs, target
    held = predict(*network, accumulation=accumulation, staleness=staleness, **settings)
    costs = measure(*network, accumulation=accumulation, repetitions=repetitions, **settings)
    seconds = [cost.forward + cost.backward + cost.update / accumulation for cost in costs]
    return find_partition(seconds, devices, held=[stage.total for stage in held], limit=limit)
