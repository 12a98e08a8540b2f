"""The pipeline, which executes two sweeps over the stages per micro-batch.

In a step one micro-batch enters. First its forward runs at every stage, upwards from stage 0. Then, downwards from the
head, every stage j runs the backward of the micro-batch that entered d_j steps before, where d is the staleness
(`petra_core.staleness`). Every other order of execution must give the same results. Step 7 of J = 4 stages in lockstep,
d = (6, 4, 2, 0):

          ┌─────────┐      ┌─────────┐      ┌─────────┐      ┌─────────┐
    x7 ──▶│ stage 0 │─ F7 ▶│ stage 1 │─ F7 ▶│ stage 2 │─ F7 ▶│ stage 3 │──▶ loss of 7
          │   B1    │◀─────│   B3    │◀─────│   B5    │◀─────│   B7    │
          └─────────┘  of  └─────────┘  of  └─────────┘  of  └─────────┘
                     step 5           step 5           step 5

Stage j + 1 computed the gradient that stage j needs for B(m - d_j) in step m - d_j + d_{j+1}, which is at most m.
Methods that process one micro-batch at a time have d = 0: the backward immediately follows the forward.
"""

import contextlib
import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from petra_core.checkpoint import copy_tree
from petra_core.clipping import Clip, check_clip
from petra_core.devices.execution import Sent, SequentialExecutor
from petra_core.devices.overlapped import OverlappedExecutor
from petra_core.errors import CheckpointError, check_number
from petra_core.inspection.evaluations import Inspection
from petra_core.inspection.guards import check_call
from petra_core.inspection.modules import check_factory, check_stages
from petra_core.inspection.ownership import INSPECTED
from petra_core.inspection.states import STATE_FORMAT, check_state
from petra_core.inspection.values import PendingLosses, Shapes, check_shapes, check_weights
from petra_core.ledger import MemoryReport
from petra_core.messages import Channel, Message
from petra_core.methods import Method
from petra_core.optimizers import OptimizerFactory, set_rate
from petra_core.randomness import capture_all, restore_all
from petra_core.settings import Settings
from petra_core.stages import HeadStage, Stage, in_evaluation_mode, sequential
from petra_core.staleness import Action, Kind, backward_actions, forward_lags
from petra_core.tape import Value, as_streams, as_value
from petra_core.targets import Target, flatten
from petra_core.update_rule import UpdateRule
from petra_core.worker import AfterBackward, BeforeUpdate, Worker, devices_of


class Pipeline:
    """A trainer of a list of stages with one of the methods.

    Args:
        stages: The stages. Stage 0 receives the micro-batch, and the last stage is the head (`HeadStage`). The
            parameters that require gradients now are trained; freeze others before.
        method: One of `petra_core.methods`.
        accumulation: Number of backwards per update of a stage, k, at least 1. An update uses their mean gradient.
        staleness: Number of micro-batches that enter each stage between the forward and the backward of one
            (`petra_core.staleness`). None for lockstep if the method is pipelined, otherwise for 0 at every stage.
        optimizer: Factory that is called once per stage with the list of its parameters and returns their optimizer. A
            function with two required arguments is called with the list of (name, parameter) and the number of the
            stage. None leaves the weights unchanged, so that only `before_update` uses gradients.
        delay: Rules that compensate for delay under a pipelined method, such as `[PredictedWeights(), GapAware()]` of
            `petra_core.delay`, or user-defined rules (`petra_core.update_rule`). Empty for the plain optimizer.
        seed: Seed of the random numbers (dropout). Every stage has a separate stream, made from (seed, stage), so
            results do not depend on where other stages run. None for torch's global generators, as in plain training.
        autocast: Dtype of automatic mixed precision inside the stages, such as torch.bfloat16. Weights and streams
            between stages stay float32. None for the caller's autocast context. The engine does not scale losses, so
            with torch.float16 gradients below 6e-8 become 0.
        before_update: Function that is called as (stage index, version, stage) before every update, when the `.grad` of
            each parameter contains the mean gradient. It may change the gradients.
        after_backward: Function that is called with a `petra_core.worker.Backward` after every backward of every stage,
            for measurements. It must not change the tensors.
        clip: Clipping of the gradients of an update by their norm (`petra_core.clipping`), after `before_update`. None
            for no clipping.
        channel: Connection to other processes that own some of the stages (`petra_core.distributed`). Every process
            must create the pipeline with the same arguments and take the same steps; the channel compares them. A
            process trains only the stages that it owns, and the others may be on the meta device. Needs a seed. None
            if this process trains all stages.
        inspect: Whether to inspect the first micro-batches (`petra_core.inspection`) and reject a stage that would not
            train as with plain autograd. The inspection evaluates some blocks twice. Set it to False for measurements
            that count evaluations or memory from the first micro-batch. `petra_core.check` inspects without training.

    Attributes:
        stages: All stages, including those of other processes.
        workers: Workers of the stages that this process trains, in order.
        channel: Connection to the other processes.
        micro_batches: Number of micro-batches that have entered.
        drained: Number of micro-batches that had entered at the last drain. Their backwards are done.
        loads: Number of states that have been loaded.
        shapes: Shapes and dtypes of the micro-batches, which are equal between two drains; None before the first.
        settings: The settings (`petra_core.settings`), which include `method`, `accumulation` and `staleness`.
        staleness: Staleness of each stage.
        lags: Number of steps by which each stage lags behind stage 0 when `step` returns (`stagger`).
        optimizers: Optimizers of the stages that have one.
        common_clip: Clipping by the norm of all stages, which then update together; None otherwise.
        executor: Executor of the actions of a step. `petra_core.devices.execution.SequentialExecutor()` runs them in
            sequence.

    Raises:
        TypeError: If an element of `stages` is not a stage, or an argument has the wrong type.
        ValueError: If the last stage is not a head, a parameter belongs to two stages, a residual function can never
            learn (`petra_core.inspection.modules.check_residual`), k is below 1, the method does not allow the
            staleness or the clipping, autocast is another dtype than float16 or bfloat16, a rule for delay does not
            support the method or the optimizer, two rules for delay contradict each other, or the optimizer of a stage
            has parameters of other stages.

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
        if not isinstance(stages, Iterable):
            raise TypeError(
                f"stages is a {type(stages).__name__}, expected a list of stages; put it into a list: [stage]"
            )
        self.stages = tuple(stages)
        check_stages(self.stages)
        self.settings = Settings(
            method=method, accumulation=accumulation, staleness=staleness, delay=delay, autocast=autocast, seed=seed
        )
        self.method = method
        check_factory(optimizer)
        for name, function in (("before_update", before_update), ("after_backward", after_backward)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be a function or None, got {function!r}")
        check_clip(clip, method)
        self.common_clip = None if clip is None or clip.per_stage else clip
        self.micro_batches = 0
        self.channel = Channel(range(len(self.stages)), len(self.stages)) if channel is None else channel
        self.staleness = self.settings.vector(len(self.stages))
        compared = {**self.settings.as_state(len(self.stages)), "method": method, "seed": seed, "clip": clip}
        self.channel.check_settings(compared, self.stages, optimizer)
        if method.overlapped and not self.channel.owns_all:
            raise ValueError(
                f"{method} overlaps the work of stages of one process, and these are in several; use PETRA there, or "
                f"REVERSIBLE_BACKPROPAGATION, which has the same gradients"
            )
        self.executor = OverlappedExecutor() if method.overlapped else SequentialExecutor()
        self._own_stages = self.channel.stages
        self.drained = self.loads = 0
        self.lags = (0,) * len(self.stages)
        self._done = [0] * len(self._own_stages)  # number of steps that each stage of this process has done
        reconstructing = [method.reconstructs and stage.parts()[-1].invertible for stage in self.stages]
        self._inspection = Inspection(self.stages, autocast) if inspect else None
        devices = devices_of([self.stages[index] for index in self._own_stages])
        self.workers = [
            Worker(
                self.stages[index],
                index,
                device,
                self.settings,
                optimizer,
                return_input=index > 0 and reconstructing[index - 1],
                before_update=before_update,
                after_backward=after_backward,
                clip=clip if self.common_clip is None else None,
                inspection=self._inspection,
            )
            for index, device in zip(self._own_stages, devices, strict=True)
        ]
        self.optimizers = [worker.optimizer for worker in self.workers if worker.optimizer is not None]
        self.shapes: Shapes = None
        self._loss: Tensor | None = None  # of the head's last forward in the current step
        self._losses = PendingLosses(self.workers)
        self._recordings: list[list[tuple[int, Action]]] = []
        self._broken = False  # whether no step can follow
        self._learning_rate: float | None = None  # the last rate that was set for stage 0
        self._deferred: Callable[[], None] | None = None  # updates the state of the workers after repeated steps
        self.channel.staleness = self.staleness

    @property
    def accumulation(self) -> int:
        """Number of backwards per update of a stage, k. It is fixed: with another k, make a new pipeline."""
        return self.settings.accumulation

    @property
    def model(self) -> nn.Sequential:
        """The network as a plain model from input to logits, which shares the weights of the stages.

        Raises:
            RuntimeError: If other processes train some of the stages.

        """
        own = self._own_stages
        if not self.channel.owns_all:
            raise RuntimeError(
                f"this process trains stages {own.start} to {own.stop - 1} of {len(self.stages)}, so here the plain "
                f"model would have untrained stages. Call gather() on every rank: it returns the state of the whole "
                f"plain model. For the modules as they are here, use petra_core.models.sequential(pipeline.stages)"
            )
        return sequential(self.stages)

    def gather(self) -> dict[str, Tensor]:
        """Return a copy of the plain model's state on the CPU.

        With several processes, every process must call this and receives the whole state. The state of each stage
        comes from the process that trains it. The names are those of
        `petra_core.models.sequential(stages).state_dict()`, so any process or another program can load the state.

        Raises:
            TypeError: If a module has extra state that is not a tensor.
            ChannelError: If another process has died or does not call this.
            RuntimeError: If an exception interrupted an earlier step.

        """
        self._refuse_after_broken_step()
        own = self._own_stages
        first = sum(len(stage.parts()) for stage in self.stages[: own.start])
        tensors: dict[str, Tensor] = {}
        for name, value in sequential(self.stages[own.start : own.stop]).state_dict().items():
            if not isinstance(value, Tensor):
                raise TypeError(f"{name} is a {type(value).__name__}, and only tensors can be gathered")
            number, rest = name.split(".", 1)
            tensors[f"{int(number) + first}.{rest}"] = value.detach().to("cpu", copy=True)
        return self.channel.gather(tensors)

    @property
    def observed_staleness(self) -> tuple[int, ...]:
        """The measured staleness of each stage of this process.

        This is the maximum number of micro-batches that have entered between a forward and its backward so far. It
        equals `staleness` once the pipeline has filled.
        """
        return tuple(worker.observed_staleness for worker in self.workers)

    @property
    def metrics(self) -> dict[str, Tensor]:
        """The metrics that the loss returned in the last forward of the head; empty in processes without the head.

        A loss returns metrics as `(value, {"accuracy": accuracy})`. They are detached and not differentiated.
        """
        head = self.workers[-1].stage.parts()[-1]
        return dict(head.metrics) if isinstance(head, HeadStage) else {}

    @property
    def in_flight(self) -> int:
        """Number of micro-batches that have entered and whose last backward is not done."""
        return min(self.staleness[0], self.micro_batches - self.drained)

    @property
    def full(self) -> bool:
        """Return whether all later steps have the same actions, except for updates."""
        lagging = self._done == self._limits()
        return lagging and self.in_flight == self.staleness[0] and all(worker.version for worker in self.workers)

    def step(self, inputs: Value, target: Target = None) -> Tensor | None:
        """Run the forward of one new micro-batch at every stage, and then the backwards that are due.

        The micro-batch is copied, so the caller may reuse its memory immediately. With several processes, each must
        take the same step with the same micro-batch.

        Args:
            inputs: Input of stage 0, a tensor or a tuple of tensors; [batch, channels, height, width] for images.
            target: Target of the loss, int64 [batch] for cross-entropy. It is a tensor, a tuple or dict of tensors, or
                None for a loss without a target, which is called as loss(output, None).

        Returns:
            The loss of this micro-batch (a scalar, detached); None in processes that do not own the head.

        Raises:
            ChannelError: If another process has died or hangs.
            TypeError: If the inputs or the target have the wrong type.
            ValueError: If the shape or dtype differs from that of earlier micro-batches, a tensor has a graph or is a
                trained parameter, or the processes have different micro-batches.
            NonFiniteError: If a loss is infinite or NaN. On a GPU it may be detected some steps later.
            StageError: If a stage would not train as with plain autograd (`petra_core.inspection`).
            RuntimeError: If an exception interrupted an earlier step, or in torch.inference_mode() or
                torch.nn.utils.parametrize.cached().

        """
        self._refuse_after_broken_step()
        streams = as_streams(inputs)
        keys, goals = flatten(target)
        check_call((*streams, *goals))
        self.channel.check_step(self.micro_batches, streams, target, self._learning_rate)
        self.shapes = check_shapes(self.shapes, self.micro_batches, (*streams, *goals))
        self._catch_up()
        with self._breaking():  # an interrupt would leave half of the micro-batch
            number = self.micro_batches
            self.micro_batches += 1
            first, last = self.workers[0], self.workers[-1]
            if first.index == 0:
                first.receive(Message(number, tuple(stream.detach().clone() for stream in streams)))
            if last.is_head:
                last.receive_target(keys, Message(number, tuple(goal.detach().clone() for goal in goals)))
            self._loss = None
            self._work(self._limits())
        return self._loss

    def drain(self) -> None:
        """Finish all micro-batches in flight. Later micro-batches may have other shapes.

        Gradients of fewer than k micro-batches stay accumulated and enter the next update. With several processes, all
        ranks must call this.

        Raises:
            NonFiniteError: If a loss is infinite or NaN.
            RuntimeError: If an exception interrupted an earlier step, or in torch.inference_mode() or
                torch.nn.utils.parametrize.cached().

        """
        self._refuse_after_broken_step()
        check_call()
        self._catch_up()
        with self._breaking():
            self._work([self.micro_batches + self.staleness[0]] * len(self.workers))
            self.drained = self.micro_batches
            self._done = [self.micro_batches] * len(self.workers)
            self._losses.look()
        self._forget_shapes()

    def evaluate(self, inputs: Value) -> Value:
        """Return the network's output (logits) with the current weights, in evaluation mode.

        Micro-batches in flight are not affected. With several processes, all must call this, and all receive the
        output.

        Args:
            inputs: Input of stage 0, such as images [batch, channels, height, width].

        Returns:
            The output of the head's module, such as logits [batch, classes], on the device of the last stage of this
            process. A tuple if the module returns several tensors.

        Raises:
            ValueError: If a stage wrote to its input in place.
            RuntimeError: If an exception interrupted an earlier step.

        """
        self._refuse_after_broken_step()
        self._catch_up()
        with in_evaluation_mode([worker.stage for worker in self.workers]):
            streams = self.channel.evaluation_input(as_streams(inputs))
            for worker in self.workers:
                streams = worker.evaluate(streams)
            streams = self.channel.evaluation_output(streams)
        # Output of another process may be on the CPU.
        return as_value(tuple(stream.to(self.workers[-1].device) for stream in streams))

    def check_finite(self) -> None:
        """Check that all losses so far and all weights of this process are finite.

        Raises:
            NonFiniteError: If one is infinite or NaN.
            RuntimeError: If an exception interrupted an earlier step.

        """
        self._refuse_after_broken_step()
        with self._breaking():
            self._losses.look()
        self._catch_up()
        check_weights(self.micro_batches - 1, self.workers)

    def set_learning_rate(self, learning_rate: float | Callable[[int], float]) -> None:
        """Use a learning rate for all updates from the next step on.

        The first parameter group of each optimizer gets this rate. For the other groups, the ratio to the first group
        stays the same as in the new optimizer.

        Args:
            learning_rate: The rate, or a function that returns the rate of a stage from its number. If optimizers have
                tensors as rates, a function needs one tensor for each stage: a shared one gets the rate of the last.

        Raises:
            TypeError: If a rate is not a number.
            ValueError: If a rate is negative or not finite, or if an optimizer was made with a rate of 0 for its first
                group and another rate for a later one.

        """

        def rate_of(stage: int) -> float:
            rate = learning_rate(stage) if callable(learning_rate) else learning_rate
            return check_number(f"the learning rate of stage {stage}", rate)

        self._learning_rate = rate_of(0)
        for worker in self.workers:
            if worker.optimizer is not None:
                set_rate(worker.optimizer, rate_of(worker.index), worker.rate_ratios)

    def stagger(self) -> None:
        """Let stages lag behind stage 0 by a number of steps from now on.

        With a seed, the results do not change. Without one, stages draw random numbers in another order.

        If stage j lags by j steps in lockstep, no stage waits for another one within a step, so all can run
        concurrently on one device (`petra_core.devices.captured`). `step` then returns the loss of the micro-batch that
        the head has processed, and an evaluation uses weights of stages after different numbers of steps. `drain` lets
        all stages catch up.

        Stage j lags (d_0 - d_j) / 2 steps, rounded down, with which stages wait least.

        Raises:
            ValueError: If the pipeline has several processes.

        """
        if not self.channel.owns_all:
            raise ValueError("stagger() is for one process; ranks already run ahead of each other. Remove the call")
        self.lags = forward_lags(self.staleness)

    @contextlib.contextmanager
    def without_host_reads(self) -> Iterator[None]:
        """Return a context whose steps read neither losses nor states of random generators from the device.

        A device can record such steps. No stage may draw random numbers. Call `note_loss` to check the losses.

        Raises:
            NonFiniteError: If an earlier loss is infinite or NaN.

        """
        with self._breaking():
            self._losses.look()
        for worker in self.workers:
            worker.stream.active = False
        try:
            yield
        finally:
            for worker in self.workers:
                worker.stream.active = True

    def snapshot(self) -> Callable[[], None]:
        """Return a function that restores the tensors that the stages hold now, for use in a later step.

        The function restores the same tensor objects with their later contents. It increases the numbers of
        micro-batches and updates by the number of steps since the snapshot, which must be a multiple of k.
        """
        number, states = self.micro_batches, [worker.state_in_flight() for worker in self.workers]

        def restore() -> None:
            for worker, state in zip(self.workers, states, strict=True):
                worker.load_in_flight(state, steps=self.micro_batches - number)

        return restore

    def repeat(self, work: Callable[[], None], snapshot: Callable[[], None]) -> None:
        """Let one micro-batch enter by repeating the computation of an earlier step.

        Only counters advance. The state of the stages is updated when it is next read.

        Args:
            work: Function that repeats the computation of the earlier step for all stages, in the same memory.
            snapshot: Result of `snapshot` after the earlier step, which was a multiple of k steps ago.

        Raises:
            RuntimeError: If an exception interrupted an earlier step.

        """
        self._refuse_after_broken_step()
        with self._breaking():
            work()
            self.micro_batches += 1
            limits = self._limits()
            for recording in self._recordings:
                steps = range(min(self._done), max(limits))
                turns = (turn for step in steps for turn in self._turns(step, limits))
                recording.extend((worker.index, action) for turn in turns for worker, action in turn)
            self._done, self._deferred = limits, snapshot

    def note_loss(self, loss: Tensor) -> None:
        """Check the loss of the last step, as `step` does except in `without_host_reads`.

        Args:
            loss: The loss, a scalar.

        Raises:
            NonFiniteError: If a loss is infinite or NaN. On a GPU it may be detected some steps later.

        """
        with self._breaking():
            self._losses.add(self.micro_batches - 1 - self.lags[-1], loss)

    def memory(self) -> MemoryReport:
        """Return the bytes that each stage of this process holds, by kind: current and peak."""
        self._catch_up()
        self._collect_all()
        return MemoryReport(copy.deepcopy(tuple(worker.ledger for worker in self.workers)))

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[tuple[int, Action]]]:
        """Return a context that lists the executed actions, each with its stage, in the order of execution."""
        recording: list[tuple[int, Action]] = []
        self._recordings.append(recording)
        try:
            yield recording
        finally:
            self._recordings = [other for other in self._recordings if other is not recording]

    def state_dict(self) -> dict[str, Any]:
        """Return a copy on the CPU of the state that a bitwise resume needs, including micro-batches in flight.

        With several processes, each returns the state of its local stages and None for the others. Merging them gives
        the single-process state.

        The state contains only tensors and plain data, so `torch.load(weights_only=True)` can read it. Without a seed
        it contains the state of torch's global generators, which `load_state_dict` restores.

        Raises:
            NonFiniteError: If a loss since the last check or a weight is not finite, because such a state is useless.
            RuntimeError: If an exception interrupted an earlier step.

        """
        self.check_finite()
        self._collect_all()
        own_states = {worker.index: worker.state_dict() for worker in self.workers}
        seeded = self.settings.seed is not None
        state = {
            "format": STATE_FORMAT,
            **self.settings.as_state(len(self.stages)),
            "micro_batches": self.micro_batches,
            "drained": self.drained,
            "behind": [self.micro_batches - done for done in self._done] if any(self.lags) else None,
            "shapes": self.shapes,
            "random": None if seeded else capture_all(worker.device for worker in self.workers),
            "workers": [own_states.get(index) for index in range(len(self.stages))],
            **({"run": self.channel.run} if self.channel.run else {}),
        }
        return dict(copy_tree(state))

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for copy.deepcopy and pickle.

        Raises:
            TypeError: If graphs or threads are in use.

        """
        self._catch_up()  # the deferred function would update the workers of this pipeline, not those of the copy
        if (self.method.overlapped and self.micro_batches) or (self.method.keeps_graph and self.in_flight):
            raise TypeError(
                f"a pipeline of {self.method} with {self.in_flight} micro-batches in flight cannot be copied or "
                f"pickled, since graphs and threads cannot; make one of copies of the stages and load state_dict()"
            )
        return self.__dict__

    def load_state_dict(self, state: Mapping[str, Any], *, other_method: bool = False) -> None:
        """Continue from a state, in a pipeline with the same stages and settings.

        The state names neither `clip` nor the value of `seed`, so a pipeline may continue with others. For a bitwise
        resume they must be equal.

        Args:
            state: A state of `state_dict`.
            other_method: Whether the method, the staleness and the rules for delay may differ from those of the state,
                which must have been taken after `drain`. Weights, optimizers, random streams and accumulated gradients
                are restored. For example, backpropagation can continue a training with PETRA.

        Raises:
            CheckpointError: If the state has another format, other settings or another number of stages, or does not
                fit.
            RuntimeError: In torch.inference_mode() or torch.nn.utils.parametrize.cached(), or over several processes if
                an exception interrupted an earlier step.

        """
        check_call()
        if not self.channel.owns_all:
            self._refuse_after_broken_step()  # its messages could arrive later
        changed = check_state(
            state, self.settings, stages=len(self.stages), own_stages=self._own_stages, other_method=other_method
        )
        behind = state["behind"] or [0] * len(self.stages)
        if any(behind) and not self.channel.owns_all:
            raise CheckpointError(
                "the state was saved between recorded steps, where stages lag behind stage 0, and over several "
                "processes none does; load it in one process, drain, and save again"
            )
        state = copy_tree(state)
        self._deferred = None  # it belongs to the state that is replaced
        self._broken = True
        self._collect_all()  # messages that are still arriving belong to the old state
        self._forget_shapes()
        load = functools.partial(Worker.load_state_dict, other_method=changed)
        for restore in (Worker.load_module, load):
            for worker in self.workers:
                try:
                    restore(worker, state["workers"][worker.index])
                except (KeyError, TypeError, ValueError, RuntimeError) as error:
                    raise CheckpointError(
                        f"the state of stage {worker.index} does not fit this pipeline: {error}"
                    ) from error
        self.micro_batches, self.drained = state["micro_batches"], state["drained"]
        self._done = [self.micro_batches - behind[index] for index in self._own_stages]
        for worker, done in zip(self.workers, self._done, strict=True):
            updates = max(self.drained, done - self.staleness[worker.index]) // self.accumulation
            if worker.version != updates:
                raise CheckpointError(
                    f"stage {worker.index} has made {worker.version} updates in the state, but at its micro-batch "
                    f"{self.micro_batches} it must have made {updates}; merge only states of the same step"
                )
        self.shapes = state["shapes"]
        self._losses = PendingLosses(self.workers)
        self.loads += 1
        self.channel.steps = 0  # compare the micro-batches of the ranks again
        self.channel.run = state.get("run", "")
        if state["random"] is not None:
            restore_all(state["random"], (worker.device for worker in self.workers))
        self._broken = False

    def _limits(self) -> list[int]:
        """Return the number of steps that each stage of this process has done when `step` returns."""
        return [self.micro_batches - self.lags[index] for index in self._own_stages]

    def _work(self, limits: Sequence[int]) -> None:
        """Execute the steps of each stage up to a limit.

        Earlier steps come first. Within a step, the forwards run from stage 0 up, then the backwards from the head
        down. Every message has therefore arrived when it is needed, even if stages lag behind stage 0.

        Args:
            limits: Number of steps that each stage of this process has done afterwards.

        """
        for step in range(min(self._done), max(limits)):
            self._expect(step)
            for turn in self._turns(step, limits):
                self._perform(turn)
            if self.common_clip is not None and (step + 1) % self.accumulation == 0:
                self._update_together(self.common_clip, step // self.accumulation)
        self._done = [max(done, limit) for done, limit in zip(self._done, limits, strict=True)]

    def _turns(self, step: int, limits: Sequence[int]) -> Iterator[list[tuple[Worker, Action]]]:
        """Yield the actions of a step in order, as lists of actions that may run concurrently.

        Args:
            step: Number of the step.
            limits: Number of steps that each stage of this process will have done. Stages that have done the step, or
                whose limit is lower, are left out.

        """
        progress = zip(self.workers, self._done, limits, strict=True)
        workers = [worker for worker, done, limit in progress if done <= step < limit]
        if step < self.micro_batches:
            for worker in workers[: -1 if self.method.overlapped else None]:
                yield [(worker, Action(Kind.FORWARD, step))]
        for worker in reversed(workers):
            if (number := self._due(worker.index, step)) is None:
                continue
            actions = backward_actions(self.method, number, self.accumulation, head=worker.is_head)
            turn = [(worker, a) for a in actions if self.common_clip is None or a.kind is not Kind.UPDATE]
            if self.method.overlapped:  # the R of the stage below runs concurrently with B
                turn = [(worker, action) for worker, action in turn if action.kind is not Kind.RECONSTRUCT]
                if worker.is_head:
                    turn.insert(0, (worker, Action(Kind.FORWARD, number)))
                if worker.index > 0:
                    turn.insert(0, (self.workers[worker.index - 1], Action(Kind.RECONSTRUCT, number)))
            yield turn

    def _update_together(self, clip: Clip, number: int) -> None:
        """Clip the gradients of all stages by their common norm, then update all stages."""
        for worker in reversed(self.workers):
            worker.prepare_update()
        trained = [parameter for worker in self.workers for parameter in worker.parameters]
        norms = [torch.linalg.vector_norm(p.grad).reshape(1) for p in trained if p.grad is not None]
        device = self.workers[-1].device
        own_norms = torch.cat([torch.empty(0, device=device), *(norm.to(device) for norm in norms)])
        all_norms = self.channel.gather({str(self._own_stages.start): own_norms}).values()
        norm = torch.linalg.vector_norm(torch.cat([*all_norms]))
        nn.utils.clip_grads_with_norm_(trained, clip.max_norm, norm, foreach=False)
        for worker in reversed(self.workers):
            self._perform([(worker, Action(Kind.UPDATE, number))])

    def _due(self, stage: int, step: int) -> int | None:
        """Return the micro-batch whose backward a stage executes in a step, or None."""
        number = step - self.staleness[stage]
        return number if self.drained <= number < self.micro_batches else None

    def _perform(self, actions: Sequence[tuple[Worker, Action]]) -> None:
        """Execute actions and then deliver their messages."""
        sent: Sent = []
        with self.executor.together():
            for worker, action in actions:
                self._collect(worker, action)
                self.executor.run(self._act, worker, action, sent)
                for recording in self._recordings:
                    recording.append((worker.index, action))
        for stage, message in sent:
            self.workers[stage - self._own_stages.start].receive(message)

    def _act(self, worker: Worker, action: Action, sent: Sent) -> None:
        """Execute one action, and add its messages to `sent`."""
        if action.kind is Kind.FORWARD:
            message = worker.forward(action.number)
            if worker.is_head:
                self._loss = message.tensors[0]
                if worker.stream.active:  # not in `without_host_reads`
                    self._losses.add(action.number, self._loss, current=action.number)
                return
            self._send(worker.index + 1, message, sent)
            if self.method.overlapped and worker.index == len(self.stages) - 2 and worker.parts[-1].reconstructs:
                # The R of this stage runs concurrently with the head's B, so it cannot wait for the head's message. The
                # stage keeps its output as the first part of that message.
                worker.receive(Message(action.number, message.streams, ()))
        elif action.kind is Kind.UPDATE:
            worker.update(prepared=self.common_clip is not None)
        else:
            act = worker.reconstruct if action.kind is Kind.RECONSTRUCT else worker.backward
            if (downwards := act(action.number)) is not None:
                self._send(worker.index - 1, downwards, sent)

    def _send(self, stage: int, message: Message, sent: Sent) -> None:
        """Add a message for a stage of this process to `sent`, or send it to another process over the channel."""
        if stage in self._own_stages:
            sent.append((stage, message))
        else:
            self.channel.send(stage, message)

    def _expect(self, step: int) -> None:
        """Prepare the channel for the messages of a step. The actions that need them wait for them (`_collect`)."""
        above = self._own_stages.stop
        returns = self._due(above, step) if above < len(self.stages) else None
        enters = step < self.micro_batches and self._own_stages.start > 0
        self.channel.expect(step if enters else None, returns)

    def _collect(self, worker: Worker, action: Action | None) -> None:
        """Deliver the messages of other processes that an action of a worker needs; None for all expected messages."""
        if self.channel.owns_all:
            return
        with self.executor.waiting(worker, self.micro_batches - 1):
            for message in self.channel.collect(worker.index, action):
                worker.receive(message)

    def _collect_all(self) -> None:
        for worker in self.workers:
            self._collect(worker, None)

    def _catch_up(self) -> None:
        """Update the state of the workers after repeated steps, which defer this (`petra_core.devices.captured`).

        Every method that reads the state of the workers calls this first. If an exception interrupts the update, the
        next call repeats all of it.
        """
        if self._deferred is not None:
            self._deferred()
            self._deferred = None

    def _forget_shapes(self) -> None:
        """Let the next micro-batches have other shapes."""
        self.channel.close()
        self.shapes = None
        for worker in self.workers:
            for part in worker.parts:
                part.graph_bytes = None
                part.watched_backwards = max(part.watched_backwards, INSPECTED)

    @contextlib.contextmanager
    def _breaking(self) -> Iterator[None]:
        """Return a context after which no step can follow if an exception leaves it."""
        before, self._broken = self._broken, True
        yield
        self._broken = before

    def _refuse_after_broken_step(self) -> None:
        if self._broken:
            raise RuntimeError(
                "an exception broke off a step of this pipeline or the loading of a state, or a hook calls this during "
                "a step; load a checkpoint, over several processes into a new pipeline, or call this after the step"
            )
