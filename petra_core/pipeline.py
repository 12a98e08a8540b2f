"""The pipeline in one process, tick by tick: the reference for what every other way of running must give.

A tick of J = 4 stages once the pipeline is full. Every stage works on its messages of the tick before; what it sends
arrives at the end of the tick, so within a tick the order of the stages does not matter:

         x7,y7 ──▶ ┌─────────┐ ──▶ ┌─────────┐ ──▶ ┌─────────┐ ──▶ ┌─────────┐
    tick 7         │ stage 0 │     │ stage 1 │     │ stage 2 │     │ stage 3 │ ──▶ loss of 4
                   │  F7 B1  │ ◀── │  F6 B2  │ ◀── │  F5 B3  │ ◀── │  F4 B4  │
                   └─────────┘     └─────────┘     └─────────┘     └─────────┘

Methods that let one micro-batch pass at a time run the same ticks with most stages idle.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from petra_core.channel import Channel, check_channel
from petra_core.checkpoint import copied
from petra_core.checks import (
    STATE_FORMAT,
    UNCORRECTED,
    Shapes,
    check_settings,
    check_stages,
    check_state,
    check_target,
)
from petra_core.concurrency import conductor
from petra_core.delay import Correction, ForwardWeights, check_delay_settings, described
from petra_core.errors import CheckpointError
from petra_core.finite import PendingLosses, check_states, check_weights
from petra_core.inspection import Inspection
from petra_core.ledger import MemoryReport
from petra_core.methods import Method, check_accumulation
from petra_core.randomness import capture_all, restore_all
from petra_core.recipe import OptimizerFactory, set_rate
from petra_core.schedule import Action, Clock, Kind, Recording
from petra_core.shares import in_turn
from petra_core.stages import Stage, in_evaluation_mode, sequential
from petra_core.tape import Value, as_streams, as_value
from petra_core.tracing import Trace
from petra_core.worker import AfterBackward, BeforeUpdate, Message, Worker, devices_of


class Pipeline:
    """Trains a list of stages with one of the methods.

    Args:
        stages: stage 0 takes the micro-batch, the last is the head (`HeadStage`). Trained are those parameters that
            require gradients when the pipeline is made: freeze some before, not later.
        method: one of `petra_core.methods`.
        accumulation: k in 1..32. Each stage updates after every k of its backwards, with the mean of their gradients.
        optimizer: called once a stage with the list of its parameters; returns their optimizer. None: weights stay as
            they are, and gradients are seen by `before_update` only.
        seed: every stage draws its random numbers (dropout) from a stream of its own, made from (seed, stage): results
            do not depend on where the other stages run. None: from torch's global generators, as plain training does.
        forward_weights: of the forward: current, or predicted for the update at which its backward will come
            (`petra_core.delay`); of pipelined methods under SGD or AdamW.
        correction: of gradients, updates or weights for their delay, one of `petra_core.delay.CORRECTIONS`; of
            pipelined methods. None: updates as the optimizer makes them.
        autocast: dtype of automatic mixed precision inside the stages, such as torch.bfloat16; weights and
            the streams between stages stay float32. None: as the caller's own autocast context says.
        messages: dtype in which messages between stages are sent: torch.bfloat16 halves them, and rounds
            (`petra_core.narrowing`). None: as they are.
        before_update: called as (stage index, version, stage) when each parameter's `.grad` holds the mean gradient of
            an update, just before it; may change the gradients (clipping).
        after_backward: called with a `petra_core.worker.Backward` after every backward of every stage: its gradients,
            and its input as reconstructed or kept. For measurements; it must not change what it is given.
        channel: connects this process to others that own some of the stages (`petra_core.distributed`). Every process
            makes the pipeline with the same arguments and takes the same steps, which is compared; it trains its own
            stages, and the others may be on the meta device. Needs a seed. None: all stages are trained here.
        replicas: of each stage, the devices that take its micro-batches in turn, each a divisor of k. Here one process
            does what all would do, in the order in which they would (`petra_core.ages`); over several, the channel says
            how many there are. None: one each.
        inspect: whether to inspect the first micro-batches (`petra_core.inspection`) and refuse a stage that would not
            train as plain autograd trains it; some blocks are then evaluated twice. Later micro-batches are not
            inspected. False for measurements that count evaluations or memory from the first micro-batch on.
            `petra_core.check` does the same without training.

    Attributes:
        micro_batches: how many have entered.
        optimizers: of the stages that have one.
        trace: notes the times of every action while the pipeline is traced (`tracing`), else None.
        conductor: does the actions of a tick; with `petra_core.concurrency.InOrder()` none runs beside another.

    Raises:
        TypeError: something among the stages is no stage, or a setting is of another kind than it must be.
        ValueError: there is no head at the end, a parameter belongs to two stages, a residual function can never learn
            (`petra_core.checks.check_residual`), k is out of range or too small for the method's staleness, messages
            or autocast have no such dtype, forward weights or a correction do not fit the method or the optimizer, a
            stage's optimizer has parameters of other stages.

    """

    def __init__(
        self,
        stages: Sequence[Stage],
        method: Method,
        *,
        accumulation: int = 1,
        optimizer: OptimizerFactory | None = None,
        forward_weights: ForwardWeights = ForwardWeights.CURRENT,
        correction: Correction | None = None,
        seed: int | None = None,
        autocast: torch.dtype | None = None,
        messages: torch.dtype | None = None,
        before_update: BeforeUpdate | None = None,
        after_backward: AfterBackward | None = None,
        channel: Channel | None = None,
        replicas: Sequence[int] | None = None,
        inspect: bool = True,
    ) -> None:
        self.stages = tuple(stages)
        check_stages(self.stages)
        self.method = method
        self.accumulation = check_accumulation(accumulation)
        check_settings(method, optimizer, forward_weights, correction, autocast, messages)
        check_delay_settings(method, forward_weights, correction)
        self.micro_batches = 0
        check_channel(channel, len(self.stages), seed, replicas)
        self._channel = channel
        self.conductor = conductor(method, one_process=channel is None)
        self._own_stages = range(len(self.stages)) if channel is None else channel.stages
        self._clock = clock = Clock(
            method, len(self.stages), accumulation, replicas if channel is None else channel.replicas
        )
        self._settings = {
            "method": method.name,
            "accumulation": accumulation,
            "delay": described(forward_weights, correction) or UNCORRECTED,
            "autocast": None if autocast is None else str(autocast),
            "messages": None if messages is None else str(messages),
        }
        # Of r processes that take turns at the own stages, i does the micro-batches m with m mod r = i. Alone: (0, 1).
        self._replica, self._count = (
            (0, 1) if channel is None else (channel.replica, clock.devices(self._own_stages.start))
        )
        if correction is not None and self._count > 1:
            raise ValueError(
                f"the correction {correction.name!r} counts the delays of all micro-batches of an update, and a "
                f"replica of a stage with a process of its own sees its share alone; give each stage one process"
            )
        hooks: list[BeforeUpdate] = [] if channel is None or self._count == 1 else [channel.average_gradients]
        hooks += [] if before_update is None else [before_update]
        reconstructing = [method.reconstructs and stage.parts()[-1].invertible for stage in self.stages]
        self._inspection = Inspection(self.stages, autocast, narrowed=messages is not None) if inspect else None
        self._workers = [
            Worker(
                self.stages[index],
                index,
                device,
                method,
                accumulation,
                optimizer,
                forward_weights=forward_weights,
                correction=correction,
                sharers=self._count,
                seed=seed,
                replicas=range(clock.devices(index)) if channel is None else (self._replica,),
                autocast=autocast,
                messages=messages,
                hand_down=index > 0 and reconstructing[index - 1],
                below_head=index == len(self.stages) - 2,
                before_update=hooks,
                after_backward=after_backward,
                inspection=self._inspection,
            )
            for index, device in zip(
                self._own_stages, devices_of([self.stages[j] for j in self._own_stages]), strict=True
            )
        ]
        self._in_turn = [
            self._workers[index - self._own_stages.start] for index in in_turn(self._own_stages, len(self.stages))
        ]
        self.optimizers = [worker.optimizer for worker in self._workers if worker.optimizer is not None]
        self._seeded = seed is not None
        self._shapes = Shapes()
        self._losses = PendingLosses(self._workers)
        self._recordings: list[Recording] = []
        self.trace: Trace | None = None
        self._unfinished_tick = False
        self._learning_rate: float | None = None  # that was set last
        if channel is not None:
            channel.check_settings({**self._settings, "method": method, "seed": seed}, self.stages, optimizer)
        self._deferred: Callable[[], None] | None = None  # brings the workers' bookkeeping up to date
        self._loading = False

    @property
    def model(self) -> nn.Sequential:
        """The network as a plain model from input to logits; shares the stages' weights.

        Raises:
            RuntimeError: other processes train some of the stages, which are not trained here.

        """
        own = self._own_stages
        if len(own) < len(self.stages):
            raise RuntimeError(
                f"this process trains stages {own.start} to {own.stop - 1} of {len(self.stages)}, so here the plain "
                f"model would have untrained stages. Call gather() on every rank: it returns the state of the whole "
                f"plain model. For the modules as they are here, use petra_core.models.sequential(pipeline.stages)"
            )
        return sequential(self.stages)

    def gather(self) -> dict[str, Tensor]:
        """Return a copy of the plain model's state, on the CPU; every process calls this and gets all of it.

        Over several processes each stage's state comes from the process that trains it. The names are those of
        `petra_core.models.sequential(stages).state_dict()`, so any process, or another program, can load it there.

        Raises:
            TypeError: a module has extra state that is no tensor.
            ChannelError: another process has died or does not call this.

        """
        own = self._own_stages
        first = sum(len(stage.parts()) for stage in self.stages[: own.start])
        tensors: dict[str, Tensor] = {}
        for name, value in sequential(self.stages[own.start : own.stop]).state_dict().items():
            if not isinstance(value, Tensor):
                raise TypeError(f"{name} is a {type(value).__name__}, and only tensors can be gathered")
            number, rest = name.split(".", 1)
            tensors[f"{int(number) + first}.{rest}"] = value.detach().to("cpu", copy=True)
        return tensors if self._channel is None else self._channel.gather(tensors)

    @property
    def in_flight(self) -> int:
        """Micro-batches that have entered and whose last backward is still to come."""
        return self._clock.in_flight

    @property
    def depth(self) -> int:
        """Ticks from the entry of a micro-batch to its last backward."""
        return self._clock.depth

    def step(self, inputs: Value, target: Tensor) -> Tensor | None:
        """Let one micro-batch enter: one tick, or all ticks of that micro-batch if the method lets one pass at a time.

        The micro-batch is copied, so its memory may be used again at once. Over several processes each takes the same
        step with the same micro-batch.

        Args:
            inputs: a tensor or a tuple of tensors, what stage 0 takes; [batch, channels, height, width] for images.
            target: what the loss takes; int64 [batch] for cross-entropy.

        Returns:
            The loss (a scalar, detached) of the micro-batch that reached the head in this tick; None while the pipeline
            fills, and in processes that do not own the head, or do not have this micro-batch of its replicas.

        Raises:
            ChannelError: another process has died or hangs.
            ValueError: the shape or dtype differs from that of the micro-batches before, or the processes were given
                different micro-batches.
            NonFiniteError: the loss is infinite or not a number. On a GPU it may be noticed some ticks later.
            StageError: a stage would not train as plain autograd trains it (`petra_core.inspection`).
            RuntimeError: an exception broke off an earlier step, or this is inside torch.inference_mode().

        """
        self._refuse_after_broken_tick()
        if torch.is_inference_mode_enabled():
            raise RuntimeError(
                "a pipeline cannot train inside torch.inference_mode(), which records no graphs; call step() and "
                "drain() outside of it (evaluate() works inside)"
            )
        streams = as_streams(inputs)
        check_target(target)
        if self._channel is not None:
            self._channel.check_step(self.micro_batches, streams, target, self._learning_rate)
        self._shapes.check(self.micro_batches, (*streams, target))
        self._unfinished_tick = True  # until all has arrived: an interrupt must not leave half a micro-batch
        first, last = self._workers[0], self._workers[-1]
        number = self.micro_batches
        if first.index == 0 and self._is_own(number):
            first.receive(Message(number, tuple(stream.detach().clone() for stream in streams)), first.from_below)
        if last.is_head and self._is_own(number):
            last.receive(Message(number, (target.detach().clone(),)), last.targets)
        self.micro_batches += 1
        self._unfinished_tick = False
        losses = [self._tick(enter=True)]
        while not self._clock.may_enter:
            losses.append(self._tick(enter=False))
        return next((loss for loss in losses if loss is not None), None)

    def drain(self) -> list[Tensor]:
        """Finish what is in flight, without new micro-batches. Returns the losses that came out, oldest first.

        Gradients of fewer than k micro-batches stay accumulated: they enter the next update if training goes on.
        """
        losses = []
        while self._clock.in_flight:
            loss = self._tick(enter=False)
            if loss is not None:
                losses.append(loss)
        self._look_at_losses()
        return losses

    @torch.no_grad()
    def evaluate(self, inputs: Value) -> Tensor:
        """The network's output (logits) with the current weights, in evaluation mode.

        What is in flight is not touched. Over several processes all take part, and all get the output; of a stage's
        replicas the first works, with the mean of their running statistics.

        Args:
            inputs: what stage 0 takes, such as images [batch, channels, height, width].

        Returns:
            What the head's module returns, such as logits [batch, classes], on the device of the last stage.

        Raises:
            ValueError: a stage wrote to its input in place.

        """
        self._catch_up()
        streams = as_streams(inputs)
        with in_evaluation_mode([worker.stage for worker in self._workers]), self.averaged_statistics():
            if self._channel is not None:
                streams = self._channel.evaluation_input(streams)
            for worker in self._workers if self._replica == 0 else ():
                streams = worker.evaluate(streams)
            if self._channel is not None:
                streams = self._channel.evaluation_output(streams)
        return streams[0].to(self._workers[-1].device)  # from another process it may come through the CPU

    @torch.no_grad()
    def forward_aside(self, stage: int, micro_batch: int, inputs: Value) -> Value:
        """What the forward of a micro-batch at a stage of this process would give at the next tick; nothing is kept.

        For observers. It has the weights that the forward would use, in the stage's present mode, and with a seed the
        random numbers that it would draw; without one, dropout draws new ones. BatchNorm in training mode counts it in
        its running statistics, unless it is called inside `petra_core.buffers.FrozenBuffers`.

        Args:
            stage: its number j.
            micro_batch: its number m.
            inputs: what the stage takes.

        Raises:
            ValueError: the stage is not one of this process.

        """
        if stage not in self._own_stages:
            raise ValueError(f"stage {stage} is not in this process, which has {[*self._own_stages]}")
        self._catch_up()
        worker = self._workers[stage - self._own_stages.start]
        return as_value(worker.evaluate(as_streams(inputs), micro_batch))

    def check_finite(self) -> None:
        """See that all losses so far and all weights of this process are finite. Raises: NonFiniteError."""
        self._look_at_losses()
        self._catch_up()
        check_weights(self.micro_batches - 1, self._workers)

    def averaged_statistics(self) -> contextlib.AbstractContextManager[None]:
        """Context in which running statistics are their mean over the replicas of each stage; all processes enter it.

        Each replica moves its own. `evaluate` enters it by itself; around many evaluations the means are made once.
        """
        if self._channel is None:
            return contextlib.nullcontext()
        return self._channel.averaged_statistics(nn.ModuleList(worker.stage for worker in self._workers))

    def set_learning_rate(self, learning_rate: float) -> None:
        """Use `learning_rate` for every parameter, from the next tick on."""
        self._learning_rate = learning_rate
        for optimizer in self.optimizers:
            set_rate(optimizer, learning_rate)

    def memory(self) -> MemoryReport:
        """Bytes that each stage of this process holds, by kind: now, and at their peak so far."""
        self._catch_up()
        self._collect_all()
        return MemoryReport(tuple(worker.memory() for worker in self._workers))

    @contextlib.contextmanager
    def recording(self) -> Iterator[Recording]:
        """Record the ticks executed inside the context; `recording.schedule` can be printed, validated and drawn."""
        recording = Recording(self._clock)
        self._recordings.append(recording)
        try:
            yield recording
        finally:
            self._recordings.remove(recording)

    @contextlib.contextmanager
    def tracing(self, device: int = 0) -> Iterator[Trace]:
        """Note the times of what is done inside the context; `petra_core.tracing.timeline` makes a timeline of them.

        Args:
            device: number of this process among the devices of the timeline: its rank.

        Raises:
            RuntimeError: the pipeline is being traced already.

        """
        if self.trace is not None:
            raise RuntimeError(
                "this pipeline is being traced already: leave that context before another one is entered"
            )
        self.trace = trace = Trace(device, overlapped=self.method.overlapped)
        try:
            yield trace
        finally:
            self.trace = None

    def state_dict(self) -> dict[str, Any]:
        """A copy, on the CPU, of everything that a bitwise resume needs, also when the pipeline is full.

        Over several processes each has the state of its own stages, and None for the others; put together they are that
        of a pipeline in one process, unless stages are replicated: each replica's state is of use to that replica only.

        Tensors and plain data only (`torch.load(weights_only=True)` reads it). Without a seed it holds the state of
        torch's global generators, which `load_state_dict` then sets.

        Raises:
            NonFiniteError: a loss since the last look or a weight is not finite; such a state is not worth keeping.
            RuntimeError: a tick was broken off by an exception.

        """
        self._refuse_after_broken_tick()
        self._look_at_losses()
        self._catch_up()
        self._collect_all()
        own_states = {worker.index: worker.state_dict() for worker in self._workers}
        state: dict[str, Any] = copied(
            {
                "format": STATE_FORMAT,
                **self._settings,
                "clock": self._clock.state_dict(),
                "micro_batches": self.micro_batches,
                "shapes": self._shapes.first,
                "random": None if self._seeded else capture_all(worker.device for worker in self._workers),
                "workers": [own_states.get(index) for index in range(len(self.stages))],
            }
        )
        check_states(self.micro_batches - 1, state["workers"])
        return state

    def __getstate__(self) -> dict[str, Any]:
        """The attributes, for copy.deepcopy and pickle. Raises: TypeError: graphs or threads are in use."""
        if (self.method.overlapped and self.micro_batches) or (self.method.keeps_graph and self.in_flight):
            raise TypeError(
                f"a pipeline of {self.method} with {self.in_flight} micro-batches in flight cannot be copied or "
                f"pickled, since graphs and threads cannot; make one of copies of the stages and load state_dict()"
            )
        return self.__dict__

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, in a pipeline made with the same stages and settings.

        Raises:
            CheckpointError: the state is of another format, method, k or other settings, of another number of stages or
                replicas, or does not fit.

        """
        check_state(
            state,
            self._settings,
            stages=len(self.stages),
            own_stages=self._own_stages,
            seeded=self._seeded,
        )
        state = copied(state)
        self._deferred = None  # of a state that is replaced
        self._unfinished_tick = self._loading = True  # until all is loaded: half a state must not be trained
        self._collect_all()  # what is on its way here is part of what is forgotten
        self._clock.load_state_dict(state["clock"])
        for worker in self._workers:
            try:
                worker.load_state_dict(state["workers"][worker.index])
            except (KeyError, ValueError, RuntimeError) as error:
                raise CheckpointError(
                    f"the state of stage {worker.index} does not fit this pipeline: {error}"
                ) from error
        self.micro_batches = state["micro_batches"]
        self._shapes.first = state["shapes"]
        self._losses.clear()
        if state["random"] is not None:
            restore_all(state["random"], (worker.device for worker in self._workers))
        self._unfinished_tick = self._loading = False

    def _tick(self, *, enter: bool) -> Tensor | None:
        self._refuse_after_broken_tick()
        self._catch_up()
        self._unfinished_tick = True
        loss: Tensor | None = None
        sent: list[tuple[int, Message]] = []  # to which stage, what
        number = self._clock.tick_number
        tick = self._clock.tick(enter=enter)
        if self._channel is not None:
            self._channel.begin(tick)
        with self.conductor.tick():
            for worker in self._in_turn:
                for action in tick[worker.index]:
                    # The clock's turn is that of all replicas; of it this process's micro-batches, and every update.
                    if action.kind is not Kind.UPDATE and not self._is_own(action.number):
                        continue
                    self._collect(worker, number, action)  # a forward does not wait for its turn's backward
                    new_loss = self.conductor.run(self._act, worker, action, sent, self.trace)
                    loss = new_loss if new_loss is not None else loss
        if self._channel is not None:
            self._channel.end()
        for index, message in sent:
            self._deliver(self._workers[index - self._own_stages.start], message)
        for recording in self._recordings:
            recording.ticks.append(tick)
        self._unfinished_tick = False
        return loss

    def _act(self, worker: Worker, action: Action, sent: list[tuple[int, Message]]) -> Tensor | None:
        """Do one action. Returns the loss, if it is the head's forward."""
        if action.kind is Kind.FORWARD:
            message = worker.forward(action.number)
            if worker.is_head:
                assert message.streams is not None
                self._losses.add(action.number, message.streams[0])
                return message.streams[0]
            self._send(worker.index + 1, message, sent)
        elif action.kind is Kind.RECONSTRUCT:
            ahead = worker.reconstruct(action.number)
            if ahead is not None:
                self._send(worker.index - 1, ahead, sent)
        elif action.kind is Kind.BACKWARD:
            downwards = worker.backward(action.number)
            if downwards is not None:
                self._send(worker.index - 1, downwards, sent)
        else:
            worker.update()
        return None

    def _send(self, stage: int, message: Message, sent: list[tuple[int, Message]]) -> None:
        """Send to a stage of this process at the end of the tick, to one of another process now or then."""
        if stage in self._own_stages:
            sent.append((stage, message))
        else:
            assert self._channel is not None
            self._channel.send(stage, message)

    def _is_own(self, micro_batch: int) -> bool:
        """Whether a micro-batch is this process's, of those that have the same stages."""
        return micro_batch % self._count == self._replica

    def _collect(self, worker: Worker, tick: int, action: Action | None) -> None:
        """Deliver what an action of a worker needs from other processes; without any, all that they have sent."""
        if self._channel is None:
            return
        trace = self.trace
        with contextlib.nullcontext() if trace is None else trace.waiting(worker.index, tick, worker.device):
            for message in self._channel.collect(worker.index, action):
                self._deliver(worker, message)

    def _collect_all(self) -> None:
        for worker in self._workers:
            self._collect(worker, self._clock.tick_number, None)

    def _deliver(self, worker: Worker, message: Message) -> None:
        worker.receive(message, worker.from_below if message.gradients is None else worker.from_above)

    def _look_at_losses(self) -> None:
        """See that all losses so far are finite; if not, this pipeline cannot go on. Raises: NonFiniteError."""
        before, self._unfinished_tick = self._unfinished_tick, True  # so that an error leaves it refusing to go on
        self._losses.look()
        self._unfinished_tick = before

    def _catch_up(self) -> None:
        """Do the bookkeeping that repeated steps have deferred (`petra_core.devices.captured`).

        Every method that reads what the workers hold calls it first. It is forgotten only once it is done: an exception
        in the middle leaves it to the next call, which does all of it.
        """
        if self._deferred is not None:
            self._deferred()
            self._deferred = None

    def _refuse_after_broken_tick(self) -> None:
        if self._loading:
            raise RuntimeError(
                "loading a state into this pipeline failed, so it has half of that state; load a state that fits, into "
                "this pipeline or a new one"
            )
        if self._unfinished_tick:
            raise RuntimeError(
                "an exception broke off a step of this pipeline, so its stages no longer fit together; "
                "load a checkpoint, into this pipeline or a new one"
            )
