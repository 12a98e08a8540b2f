"""The pipeline in one process: two sweeps per micro-batch, the reference for every other way of executing it.

A step lets one micro-batch enter. Its forward passes through all stages, upwards; then each stage, downwards, does the
backward of the micro-batch that entered d_j steps before, where d is the staleness (`petra_core.staleness`). Step 7 of
J = 4 stages in lockstep, d = (6, 4, 2, 0):

          ┌─────────┐      ┌─────────┐      ┌─────────┐      ┌─────────┐
    x7 ──▶│ stage 0 │─ F7 ▶│ stage 1 │─ F7 ▶│ stage 2 │─ F7 ▶│ stage 3 │──▶ loss of 7
          │   B1    │◀─────│   B3    │◀─────│   B5    │◀─────│   B7    │
          └─────────┘  of  └─────────┘  of  └─────────┘  of  └─────────┘
                     step 5           step 5           step 5

The gradient that stage j needs for B(m - d_j) was made by stage j + 1 in its step m - d_j + d_{j+1}, at most m. Methods
that let one micro-batch pass at a time have d = 0: the backward follows the forward at once.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from petra_core import staleness as staleness_of
from petra_core.checkpoint import copied
from petra_core.checks import (
    STATE_FORMAT,
    PendingLosses,
    Shapes,
    check_state,
    check_states,
    check_weights,
)
from petra_core.clipping import Clip, check_clip, norms
from petra_core.errors import CheckpointError
from petra_core.execution import Sent, executor_of
from petra_core.inspection import Inspection
from petra_core.inspection.modules import check_factory, check_stages
from petra_core.ledger import MemoryReport
from petra_core.messages import Channel, Message, check_channel
from petra_core.methods import Method
from petra_core.optimizers import OptimizerFactory, set_rate
from petra_core.randomness import capture_all, restore_all
from petra_core.settings import Settings
from petra_core.stages import HeadStage, Stage, in_evaluation_mode, sequential
from petra_core.staleness import Action, Kind, backward_actions
from petra_core.tape import Value, as_streams, as_value
from petra_core.targets import Target, flattened, unflattened
from petra_core.update_rule import UpdateRule
from petra_core.worker import AfterBackward, BeforeUpdate, Worker, devices_of


class Pipeline:
    """Trains a list of stages with one of the methods.

    Args:
        stages: stage 0 takes the micro-batch, the last is the head (`HeadStage`). Trained are those parameters that
            require gradients when the pipeline is made: freeze some before, not later.
        method: one of `petra_core.methods`.
        accumulation: k, at least 1. Each stage updates after every k of its backwards, with their mean gradient.
        staleness: of each stage, the micro-batches that enter between the forward and the backward of one
            (`petra_core.staleness`). None: lockstep for pipelined methods; the others have 0 everywhere.
        optimizer: called once a stage with the list of its parameters; returns their optimizer. A function of two
            arguments is called with the list of (name, parameter) and the number of the stage. None: weights stay as
            they are, and gradients are seen by `before_update` only.
        seed: every stage draws its random numbers (dropout) from a stream of its own, made from (seed, stage): results
            do not depend on where the other stages run. None: from torch's global generators, as plain training does.
        delay: rules of pipelined methods that compensate for delay, such as `[PredictedWeights(), GapAware()]` of
            `petra_core.delay`, or a rule of your own (`petra_core.update_rule`). Empty: the plain optimizer.
        autocast: dtype of automatic mixed precision inside the stages, such as torch.bfloat16; weights and
            the streams between stages stay float32. None: as the caller's own autocast context says.
        before_update: called as (stage index, version, stage) when each parameter's `.grad` holds the mean gradient of
            an update, just before it; may change the gradients.
        clip: clipping of the gradients of an update by their norm (`petra_core.clipping`); after `before_update`. None:
            no clipping.
        after_backward: called with a `petra_core.worker.Backward` after every backward of every stage: its gradients,
            and its input as reconstructed or kept. For measurements; it must not change what it is given.
        channel: connects this process to others that own some of the stages (`petra_core.distributed`). Every process
            makes the pipeline with the same arguments and takes the same steps, which is compared; it trains its own
            stages, and the others may be on the meta device. Needs a seed. None: all stages are trained here.
        inspect: whether to inspect the first micro-batches (`petra_core.inspection`) and refuse a stage that would not
            train as plain autograd trains it; some blocks are then evaluated twice. Later micro-batches are not
            inspected. False for measurements that count evaluations or memory from the first micro-batch on.
            `petra_core.check` does the same without training.

    Attributes:
        workers: of the stages that are trained here, in order.
        channel: to the other processes, or None.
        micro_batches: how many have entered.
        drained: how many had entered at the last drain: their backwards are done.
        shapes: of the micro-batches; all are like the first, in one process only until a drain.
        settings: the settings (`petra_core.settings`); `method`, `accumulation` and `staleness` are three of them.
        staleness: of each stage.
        lags: steps by which each stage lags behind stage 0 when `step` returns (`stagger`).
        optimizers: of the stages that have one.
        common_clip: clipping by the norm of all stages, which then update together; None without it.
        executor: does the actions of a step; with `petra_core.execution.SequentialExecutor()` none runs beside another.

    Raises:
        TypeError: something among the stages is no stage, or a setting is of another kind than it must be.
        ValueError: there is no head at the end, a parameter belongs to two stages, a residual function can never learn
            (`petra_core.inspection.modules.check_residual`), k is below 1, the staleness is no vector of the method,
            autocast has no such dtype, a rule for delay or clipping does not fit the method or the optimizer, two
            rules for delay contradict each other, a stage's optimizer has parameters of other stages.

    """

    def __init__(
        self,
        stages: Sequence[Stage],
        method: Method,
        *,
        accumulation: int = 1,
        staleness: Sequence[int] | None = None,
        optimizer: OptimizerFactory | None = None,
        delay: Sequence[UpdateRule] = (),
        seed: int | None = None,
        autocast: torch.dtype | None = None,
        before_update: BeforeUpdate | None = None,
        after_backward: AfterBackward | None = None,
        clip: Clip | None = None,
        channel: Channel | None = None,
        inspect: bool = True,
    ) -> None:
        self.stages = tuple(stages)
        check_stages(self.stages)
        self.settings = Settings(
            method=method, accumulation=accumulation, staleness=staleness, delay=delay, autocast=autocast, seed=seed
        )
        self.method, self.accumulation = method, accumulation
        check_factory(optimizer)
        check_clip(clip, method)
        if clip is not None and clip.per_stage:
            before_update = clip.after(before_update)
        self.common_clip = None if clip is None or clip.per_stage else clip
        self.micro_batches = 0
        check_channel(channel, len(self.stages), seed)
        self.channel = channel
        self.executor = executor_of(method, one_process=channel is None)
        self._own_stages = range(len(self.stages)) if channel is None else channel.stages
        self.staleness = self.settings.vector(len(self.stages))
        if channel is not None:
            channel.staleness = self.staleness
        self.drained = 0
        self.lags = (0,) * len(self.stages)
        self._done = [0] * len(self._own_stages)  # steps that each stage of this process has done
        reconstructing = [method.reconstructs and stage.parts()[-1].invertible for stage in self.stages]
        self._inspection = Inspection(self.stages, autocast) if inspect else None
        self.workers = [
            Worker(
                self.stages[index],
                index,
                device,
                self.settings,
                optimizer,
                hand_down=index > 0 and reconstructing[index - 1],
                below_head=index == len(self.stages) - 2,
                before_update=before_update,
                after_backward=after_backward,
                inspection=self._inspection,
            )
            for index, device in zip(
                self._own_stages, devices_of([self.stages[j] for j in self._own_stages]), strict=True
            )
        ]
        self.optimizers = [worker.optimizer for worker in self.workers if worker.optimizer is not None]
        self.shapes = Shapes()
        self._losses = PendingLosses(self.workers)
        self._recordings: list[list[tuple[int, Action]]] = []
        self._unfinished_step = False
        self._learning_rate: float | None = None  # of stage 0, that was set last
        if channel is not None:
            compared = {**self.settings.as_state(len(self.stages)), "method": method, "seed": seed, "clip": clip}
            channel.check_settings(compared, self.stages, optimizer)
        self._host_reads = True  # whether steps may wait for what the device has computed
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
        return tensors if self.channel is None else self.channel.gather(tensors)

    @property
    def observed_staleness(self) -> tuple[int, ...]:
        """Of each stage of this process, the most micro-batches that have entered between a forward and its backward.

        Counted as the actions are executed: of the whole training it equals `staleness`, if the pipeline has filled.
        """
        return tuple(worker.observed_staleness for worker in self.workers)

    @property
    def metrics(self) -> dict[str, Tensor]:
        """What the loss returned beside its value, of the micro-batch whose loss came last; empty in other processes.

        A loss returns metrics as `(value, {"accuracy": accuracy})`; they are detached, and not differentiated.
        """
        head = self.workers[-1].stage.parts()[-1]
        return dict(head.metrics) if isinstance(head, HeadStage) else {}

    @property
    def in_flight(self) -> int:
        """Micro-batches that have entered and whose last backward is still to come."""
        return min(self.staleness[0], self.micro_batches - self.drained)

    @property
    def full(self) -> bool:
        """Whether all steps from now on are alike, but for which stages update."""
        lagging = self._done == self._limits()
        return lagging and self.in_flight == self.staleness[0] and all(worker.version for worker in self.workers)

    def step(self, inputs: Value, target: Target = None) -> Tensor | None:
        """Let one micro-batch enter: its forward at every stage, then at every stage the backward that is due.

        The micro-batch is copied, so its memory may be used again at once. Over several processes each takes the same
        step with the same micro-batch.

        Args:
            inputs: a tensor or a tuple of tensors, what stage 0 takes; [batch, channels, height, width] for images.
            target: what the loss takes, int64 [batch] for cross-entropy: a tensor, a tuple or dict of tensors, or None
                for a loss of the output alone, which is called as loss(output, None).

        Returns:
            The loss (a scalar, detached) of this micro-batch; None in processes that do not own the head.

        Raises:
            ChannelError: another process has died or hangs.
            TypeError: the inputs or the target are of another kind.
            ValueError: the shape or dtype differs from that of the micro-batches before, or the processes were given
                different micro-batches.
            NonFiniteError: the loss is infinite or not a number. On a GPU it may be noticed some steps later.
            StageError: a stage would not train as plain autograd trains it (`petra_core.inspection`).
            RuntimeError: an exception broke off an earlier step, or this is inside torch.inference_mode().

        """
        self._refuse_after_broken_step()
        if torch.is_inference_mode_enabled():
            raise RuntimeError(
                "a pipeline cannot train inside torch.inference_mode(), which records no graphs; call step() and "
                "drain() outside of it (evaluate() works inside)"
            )
        streams = as_streams(inputs)
        keys, goals = flattened(target)
        if self.channel is not None:
            self.channel.check_step(self.micro_batches, streams, target, self._learning_rate)
        self.shapes.check(self.micro_batches, (*streams, *goals))
        self._catch_up()
        self._unfinished_step = True  # until all has arrived: an interrupt must not leave half a micro-batch
        number = self.micro_batches
        self.micro_batches += 1
        first, last = self.workers[0], self.workers[-1]
        if first.index == 0:
            first.receive(Message(number, tuple(stream.detach().clone() for stream in streams)))
        if last.is_head:
            last.receive_target(number, unflattened(keys, [goal.detach().clone() for goal in goals]))
        loss = self._work(self._limits())
        self._unfinished_step = False
        return loss

    def drain(self) -> None:
        """Finish what is in flight, without new micro-batches. The next micro-batches may have other shapes.

        Gradients of fewer than k micro-batches stay accumulated and enter the next update. Over several processes all
        ranks must call this.
        """
        self._refuse_after_broken_step()
        self._catch_up()
        self._unfinished_step = True
        self._work([self.micro_batches + self.staleness[0]] * len(self.workers))
        self.drained = self.micro_batches
        self._done = [self.micro_batches] * len(self.workers)
        self._unfinished_step = False
        self._look_at_losses()
        if self.channel is not None:
            self.channel.settle()
        self.shapes.first = None
        for worker in self.workers:
            worker.forget_shapes()

    @torch.no_grad()
    def evaluate(self, inputs: Value) -> Value:
        """The network's output (logits) with the current weights, in evaluation mode.

        What is in flight is not touched. Over several processes all take part, and all get the output.

        Args:
            inputs: what stage 0 takes, such as images [batch, channels, height, width].

        Returns:
            What the head's module returns, such as logits [batch, classes], on the device of the last stage; a tuple
            where that returns several tensors.

        Raises:
            ValueError: a stage wrote to its input in place.

        """
        self._catch_up()
        streams = as_streams(inputs)
        with in_evaluation_mode([worker.stage for worker in self.workers]):
            if self.channel is not None:
                streams = self.channel.evaluation_input(streams)
            for worker in self.workers:
                streams = worker.evaluate(streams)
            if self.channel is not None:
                streams = self.channel.evaluation_output(streams)
        home = self.workers[-1].device  # from another process the output may come through the CPU
        return as_value(tuple(stream.to(home) for stream in streams))

    @torch.no_grad()
    def forward_aside(self, stage: int, micro_batch: int, inputs: Value) -> Value:
        """What the forward of a micro-batch at a stage of this process would give in the next step; nothing is kept.

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
        worker = self.workers[stage - self._own_stages.start]
        return as_value(worker.evaluate(as_streams(inputs), micro_batch))

    def check_finite(self) -> None:
        """See that all losses so far and all weights of this process are finite. Raises: NonFiniteError."""
        self._look_at_losses()
        self._catch_up()
        check_weights(self.micro_batches - 1, self.workers)

    def set_learning_rate(self, learning_rate: float | Callable[[int], float]) -> None:
        """Use a learning rate for all updates from the next step on.

        The first parameter group of each optimizer gets this rate. Further groups keep the ratios to it that they had
        when the optimizer was made.

        Args:
            learning_rate: the rate, or a function that gives that of each stage by number.

        """
        self._learning_rate = learning_rate(0) if callable(learning_rate) else learning_rate
        for worker in self.workers:
            if worker.optimizer is not None:
                rate = learning_rate(worker.index) if callable(learning_rate) else learning_rate
                set_rate(worker.optimizer, rate, worker.rate_ratios)

    def stagger(self, lags: Sequence[int] | None = None) -> None:
        """Let stages lag behind stage 0 by so many steps from now on; the results do not change.

        Where stage j lags by j steps in lockstep, no stage waits for another one within a step, so all can work at the
        same time on one device (`petra_core.devices.captured`). `step` then returns the loss of the micro-batch that
        the head has done, and an evaluation has the weights of the moment. `drain` lets all stages catch up.

        Args:
            lags: of each stage; None for the largest with which each waits as little as can be:
                (d_0 - d_j) / 2, rounded down.

        Raises:
            ValueError: stage 0 lags, or a message would not be there when it is needed; or another process is waiting.

        """
        lags = staleness_of.entering_meanwhile(self.staleness) if lags is None else tuple(lags)
        room = [lower - upper for lower, upper in itertools.pairwise(self.staleness)]
        steps = [upper - lower for lower, upper in itertools.pairwise(lags)]
        fits = len(lags) == len(self.stages) and lags[0] == 0
        if not (fits and all(0 <= more <= most for more, most in zip(steps, room, strict=True))):
            raise ValueError(
                f"lags rise from 0 at stage 0, from stage to stage by at most what the staleness {self.staleness} "
                f"falls; got {lags}"
            )
        if self.channel is not None:
            raise ValueError("over several processes each is ahead as far as it can be: nothing is to be staggered")
        self.lags = lags

    @contextlib.contextmanager
    def without_host_reads(self) -> Iterator[None]:
        """Context whose steps ask the device for nothing: neither losses nor states of random generators.

        So a device can record them. No stage may draw random numbers; losses are looked at after `note_loss`.

        Raises:
            NonFiniteError: a loss before is infinite or not a number.

        """
        self._look_at_losses()
        self._allow_host_reads(allowed=False)
        try:
            yield
        finally:
            self._allow_host_reads(allowed=True)

    def _allow_host_reads(self, *, allowed: bool) -> None:
        self._host_reads = allowed
        for worker in self.workers:
            worker.stream.active = allowed

    def snapshot(self) -> Callable[[], None]:
        """Return a function that gives the stages what they hold now, as of the step at which it is called.

        The tensors are those of now, with the contents that they have then; numbers of micro-batches and of updates are
        larger by the steps in between, a multiple of k.
        """
        number, restores = self.micro_batches, [worker.snapshot() for worker in self.workers]

        def restore() -> None:
            for give_back in restores:
                give_back(self.micro_batches - number)

        return restore

    def repeat(self, work: Callable[[], None], snapshot: Callable[[], None]) -> None:
        """Let one micro-batch enter by `work`, which does for all stages what an earlier step has done.

        Only counters advance. What the stages hold is brought up to date when something asks for it.

        Args:
            work: computes what a step computes, in the same memory as that earlier step.
            snapshot: taken after that step, which was a multiple of k steps ago.

        Raises:
            RuntimeError: an exception broke off an earlier step.

        """
        self._refuse_after_broken_step()
        self._unfinished_step = True
        work()
        self.micro_batches += 1
        limits = self._limits()
        for recording in self._recordings:
            steps = range(min(self._done), max(limits))
            turns = (turn for step in steps for turn in self._turns(step, limits))
            recording.extend((worker.index, action) for turn in turns for worker, action in turn)
        self._done, self._deferred = limits, snapshot
        self._unfinished_step = False

    def note_loss(self, loss: Tensor) -> None:
        """Have the loss of the last step looked at, as `step` does unless it is `without_host_reads`.

        Raises:
            NonFiniteError: a loss is infinite or not a number. On a GPU it may be noticed some steps later.

        """
        self._unfinished_step = True  # so that an error leaves it refusing to go on
        self._losses.add(self.micro_batches - 1 - self.lags[-1], loss, in_forward=False)
        self._unfinished_step = False

    def memory(self) -> MemoryReport:
        """Bytes that each stage of this process holds, by kind: now, and at their peak so far."""
        self._catch_up()
        self._collect_all()
        return MemoryReport(tuple(worker.memory() for worker in self.workers))

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[tuple[int, Action]]]:
        """Record the actions executed inside the context, each with its stage, in the order of execution."""
        recording: list[tuple[int, Action]] = []
        self._recordings.append(recording)
        try:
            yield recording
        finally:
            self._recordings = [other for other in self._recordings if other is not recording]

    def state_dict(self) -> dict[str, Any]:
        """A copy, on the CPU, of everything that a bitwise resume needs, also when the pipeline is full.

        Over several processes each has the state of its own stages, and None for the others; put together they are that
        of a pipeline in one process.

        Tensors and plain data only (`torch.load(weights_only=True)` reads it). Without a seed it holds the state of
        torch's global generators, which `load_state_dict` then sets.

        Raises:
            NonFiniteError: a loss since the last look or a weight is not finite; such a state is not worth keeping.
            RuntimeError: a step was broken off by an exception.

        """
        self._refuse_after_broken_step()
        self._look_at_losses()
        self._catch_up()
        self._collect_all()
        own_states = {worker.index: worker.state_dict() for worker in self.workers}
        state: dict[str, Any] = copied(
            {
                "format": STATE_FORMAT,
                **self.settings.as_state(len(self.stages)),
                "micro_batches": self.micro_batches,
                "drained": self.drained,
                "behind": [self.micro_batches - done for done in self._done] if any(self.lags) else None,
                "shapes": self.shapes.first,
                "random": None
                if self.settings.seed is not None
                else capture_all(worker.device for worker in self.workers),
                "workers": [own_states.get(index) for index in range(len(self.stages))],
            }
        )
        check_states(self.micro_batches - 1, state["workers"])
        return state

    def __getstate__(self) -> dict[str, Any]:
        """The attributes, for copy.deepcopy and pickle. Raises: TypeError: graphs or threads are in use."""
        self._catch_up()  # else a copy would bring the workers of this pipeline up to date, not its own
        if (self.method.overlapped and self.micro_batches) or (self.method.keeps_graph and self.in_flight):
            raise TypeError(
                f"a pipeline of {self.method} with {self.in_flight} micro-batches in flight cannot be copied or "
                f"pickled, since graphs and threads cannot; make one of copies of the stages and load state_dict()"
            )
        return self.__dict__

    def load_state_dict(self, state: Mapping[str, Any], *, other_method: bool = False) -> None:
        """Continue from a state, in a pipeline with the same stages and settings.

        Args:
            state: A state of `state_dict`.
            other_method: Whether the method, the staleness and the rules for delay may differ from those of the state,
                which must have been taken after `drain`. Weights, optimizers, random streams and accumulated gradients
                are those of the state. So backpropagation can continue a training with PETRA.

        Raises:
            CheckpointError: If the state has another format, other settings or another number of stages, or does not
                fit.

        """
        changed = check_state(
            state, self.settings, stages=len(self.stages), own_stages=self._own_stages, other_method=other_method
        )
        if state["behind"] is not None and self.channel is not None:
            raise CheckpointError(
                "the state was saved between recorded steps, where stages lag behind stage 0, and over several "
                "processes none does; load it in one process, drain, and save again"
            )
        state = copied(state)
        self._deferred = None  # of a state that is replaced
        self._unfinished_step = self._loading = True  # until all is loaded: half a state must not be trained
        self._collect_all()  # what is on its way here is part of what is forgotten
        for worker in self.workers:
            try:
                worker.load_state_dict(state["workers"][worker.index], other_method=changed)
            except (KeyError, ValueError, RuntimeError) as error:
                raise CheckpointError(
                    f"the state of stage {worker.index} does not fit this pipeline: {error}"
                ) from error
        self.micro_batches, self.drained = state["micro_batches"], state["drained"]
        self._done = [self.micro_batches - steps for steps in state["behind"] or [0] * len(self._own_stages)]
        self.shapes.first = state["shapes"]
        self._losses.clear()
        if state["random"] is not None:
            restore_all(state["random"], (worker.device for worker in self.workers))
        self._unfinished_step = self._loading = False

    def _limits(self) -> list[int]:
        """Return how many steps each stage of this process has done when `step` returns."""
        return [self.micro_batches - self.lags[index] for index in self._own_stages]

    def _work(self, limits: Sequence[int]) -> Tensor | None:
        """Do the steps of the stages up to a limit for each.

        Lower steps come first; within a step the forwards from stage 0 up, then the backwards from the head down. So
        every message is there when it is needed, also where stages lag behind stage 0.

        Returns:
            The loss of the head's last forward, if there was one.

        """
        loss: Tensor | None = None
        for step in range(min(self._done), max(limits)):
            if self.channel is not None:
                self._expect(self.channel, step)
            for turn in self._turns(step, limits):
                new_loss = self._perform(turn)
                loss = new_loss if new_loss is not None else loss
            if self.common_clip is not None and (step + 1) % self.accumulation == 0:
                self._update_together(self.common_clip, step // self.accumulation)
        self._done = [max(done, limit) for done, limit in zip(self._done, limits, strict=True)]
        return loss

    def _turns(self, step: int, limits: Sequence[int]) -> Iterator[list[tuple[Worker, Action]]]:
        """Yield what the stages that are to do a step do in it, in order; what overlaps is in one list."""
        workers = [
            worker for worker, done, limit in zip(self.workers, self._done, limits, strict=True) if done <= step < limit
        ]
        if step < self.micro_batches:
            for worker in workers[: -1 if self.method.overlapped else None]:
                yield [(worker, Action(Kind.FORWARD, step))]
        for worker in reversed(workers):
            number = self._due(worker.index, step)
            if number is None:
                continue
            actions = backward_actions(self.method, number, self.accumulation, head=worker.is_head)
            turn = [
                (worker, action) for action in actions if self.common_clip is None or action.kind is not Kind.UPDATE
            ]
            if self.method.overlapped:  # R of the stage below is done here, beside B; the own R was done above
                turn = [(worker, action) for worker, action in turn if action.kind is not Kind.RECONSTRUCT]
                if worker.is_head:
                    turn.insert(0, (worker, Action(Kind.FORWARD, number)))
                if worker.index > 0:
                    turn.insert(0, (self.workers[worker.index - 1], Action(Kind.RECONSTRUCT, number)))
            yield turn

    def _update_together(self, clip: Clip, number: int) -> None:
        """Clip the gradients of all stages by their common norm, then update all stages."""
        gradients = [worker.prepare_update() for worker in reversed(self.workers)][::-1]
        of_stages = [norms(of_stage).to(self.workers[-1].device) for of_stage in gradients]
        if self.channel is not None:
            of_stages = list(self.channel.gather({str(self._own_stages.start): torch.cat(of_stages)}).values())
        clip.scale([gradient for of_stage in gradients for gradient in of_stage], torch.cat(of_stages))
        for worker in reversed(self.workers):
            self._perform([(worker, Action(Kind.UPDATE, number))])

    def _due(self, stage: int, step: int) -> int | None:
        """Return the micro-batch whose backward a stage does in a step, if there is one."""
        number = step - self.staleness[stage]
        return number if self.drained <= number < self.micro_batches else None

    def _perform(self, actions: Sequence[tuple[Worker, Action]]) -> Tensor | None:
        """Do actions, and deliver their messages when all are done. Return the loss of the head's forward, if any."""
        loss: Tensor | None = None
        sent: Sent = []
        with self.executor.together():
            for worker, action in actions:
                self._collect(worker, action)
                new_loss = self.executor.run(self._act, worker, action, sent)
                loss = new_loss if new_loss is not None else loss
                for recording in self._recordings:
                    recording.append((worker.index, action))
        for stage, message in sent:
            self.workers[stage - self._own_stages.start].receive(message)
        return loss

    def _act(self, worker: Worker, action: Action, sent: Sent) -> Tensor | None:
        """Do one action. Returns the loss, if it is the head's forward."""
        if action.kind is Kind.FORWARD:
            message = worker.forward(action.number)
            if worker.is_head:
                assert message.streams is not None
                if self._host_reads:
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

    def _send(self, stage: int, message: Message, sent: Sent) -> None:
        """Send to a stage of this process when the actions that are done together are done, else over the channel."""
        if stage in self._own_stages:
            sent.append((stage, message))
        else:
            assert self.channel is not None
            self.channel.send(stage, message)

    def _expect(self, channel: Channel, step: int) -> None:
        """Tell the channel which messages the neighbours send in this step; they are waited for where they are used."""
        above = self._own_stages.stop
        returns = self._due(above, step) if above < len(self.stages) else None
        enters = step < self.micro_batches and self._own_stages.start > 0
        channel.expect(step if enters else None, returns)

    def _collect(self, worker: Worker, action: Action | None) -> None:
        """Deliver the messages of other processes that an action of a worker needs; None for all expected messages."""
        if self.channel is None:
            return
        with self.executor.waiting(worker, self.micro_batches):
            for message in self.channel.collect(worker.index, action):
                worker.receive(message)

    def _collect_all(self) -> None:
        for worker in self.workers:
            self._collect(worker, None)

    def _look_at_losses(self) -> None:
        """See that all losses so far are finite; if not, this pipeline cannot go on. Raises: NonFiniteError."""
        before, self._unfinished_step = self._unfinished_step, True  # so that an error leaves it refusing to go on
        self._losses.look()
        self._unfinished_step = before

    def _catch_up(self) -> None:
        """Do the bookkeeping that repeated steps have deferred (`petra_core.devices.captured`).

        Every method that reads what the workers hold calls it first. It is forgotten only once it is done: an exception
        in the middle leaves it to the next call, which does all of it.
        """
        if self._deferred is not None:
            self._deferred()
            self._deferred = None

    def _refuse_after_broken_step(self) -> None:
        if self._loading:
            raise RuntimeError(
                "loading a state into this pipeline failed, so it has half of that state; load a state that fits, into "
                "this pipeline or a new one"
            )
        if self._unfinished_step:
            raise RuntimeError(
                "an exception broke off a step of this pipeline, so its stages no longer fit together; "
                "load a checkpoint, into this pipeline or a new one"
            )
