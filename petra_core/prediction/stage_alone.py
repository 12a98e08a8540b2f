"""Run one stage in isolation, with the work that its device does in every tick of a full pipeline.

The time of a stage cannot be measured in a pipeline in one process, because the stages share caches and threads. Timing
only its module would miss the engine's overhead and the second evaluation that some methods need. So this module uses
the engine's worker of one stage and sends it the messages of its neighbours: an input from below, and a gradient from
above for the oldest micro-batch, as soon as `waiting` micro-batches are between forward and backward.

    turn   F of a new micro-batch,  B of the oldest (with its reconstruction),  U after every k backwards

The number of waiting micro-batches affects the cost of a turn only through the versions of the weights. With k = 1, one
waiting micro-batch is enough: every forward is then one update older than its backward.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from petra_core.messages import Message
from petra_core.methods import Method
from petra_core.optimizers import OptimizerFactory
from petra_core.settings import Settings
from petra_core.stages import HeadStage, Stage
from petra_core.tape import Streams, Value, as_streams, as_value, detach
from petra_core.targets import Target, flatten
from petra_core.worker import Worker, devices_of

GRADIENT_SCALE = 1e-3  # scale of gradients from above; avoids denormal numbers and diverging weights


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


@dataclass(frozen=True)
class TurnSeconds:
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
        last = stage.parts()[-1]
        below_inverts = index > 0 and method.reconstructs and stages[index - 1].parts()[-1].invertible
        per_stage.append(Feed(streams, target if isinstance(last, HeadStage) else None, below_inverts))
        streams = detach(as_streams(stage(as_value(tuple(stream.to(device) for stream in streams)))))
    return per_stage


class StageAlone:
    """Worker of one stage, with a substitute for its neighbours.

    Args:
        stage: The stage.
        index: Index of the stage.
        method: Training method.
        feed: Tensors that the neighbours send.
        waiting: Number of micro-batches between forward and backward in the steady state, 0 for the head.
        accumulation: Number of backwards per update, k.
        optimizer: Factory of the optimizer.
        autocast: Dtype of automatic mixed precision, or None.

    Attributes:
        worker: The engine's worker.
        bytes_up: Payload of a message to the stage above, in bytes.
        bytes_down: Payload of a message to the stage below, in bytes.

    """

    def __init__(
        self,
        stage: Stage,
        index: int,
        method: Method,
        feed: Feed,
        *,
        waiting: int,
        accumulation: int = 1,
        optimizer: OptimizerFactory | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.worker = Worker(
            *(stage, index, devices_of([stage])[0]),
            Settings(method=method, accumulation=accumulation, seed=0, autocast=autocast),
            optimizer,
            return_input=feed.return_input,
        )
        self.bytes_up = self.bytes_down = 0
        self._feed = feed
        self._accumulation = accumulation
        self._hands_back = method.reconstructs and stage.parts()[-1].invertible
        self._forwards = self._backwards = 0
        self._sent: deque[Message] = deque()  # sent upwards; the stage above holds them until it returns them
        self._gradients: Streams | None = None
        for _ in range(waiting):
            self.forward()

    def turn(self) -> TurnSeconds:
        """Run one turn: the forward of a new micro-batch, the backward of the oldest and, if due, an update."""
        forward = self.forward()
        backward, update = self.backward()
        return TurnSeconds(forward, backward, update)

    def forward(self) -> float:
        """Run the forward of a new micro-batch and return its seconds, without the time to receive messages."""
        self.worker.receive(Message(self._forwards, self._feed.inputs))
        if self.worker.is_head:
            keys, tensors = flatten(self._feed.target)
            self.worker.receive_target(keys, Message(self._forwards, tensors))
        return self._time(self._forward)

    def backward(self) -> tuple[float, float | None]:
        """Run the backward of the oldest micro-batch and, if due, an update, and return their seconds."""
        if not self.worker.is_head:
            self._receive_from_above()
        seconds = self._time(self._backward)
        due = self._backwards % self._accumulation == 0
        return seconds, self._time(self.worker.update) if due else None

    def _receive_from_above(self) -> None:
        sent = self._sent.popleft()
        assert sent.streams is not None
        if self._gradients is None:
            self._gradients = tuple(
                GRADIENT_SCALE * torch.randn_like(stream) if stream.is_floating_point() else torch.zeros_like(stream)
                for stream in sent.streams
            )
        outputs = sent.streams if self._hands_back else None
        self.worker.receive(Message(sent.micro_batch, outputs, self._gradients))

    def _forward(self) -> None:
        message = self.worker.forward(self._forwards)
        self._forwards += 1
        if not self.worker.is_head:
            self._sent.append(message)
            self.bytes_up = message.bytes()

    def _backward(self) -> None:
        message = self.worker.backward(self._backwards)
        self._backwards += 1
        self.bytes_down = message.bytes() if message is not None else 0

    def _time(self, action: Callable[[], None]) -> float:
        _synchronize(self.worker.device)
        start = time.perf_counter()
        action()
        _synchronize(self.worker.device)
        return time.perf_counter() - start


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
