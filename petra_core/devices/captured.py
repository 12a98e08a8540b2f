"""One step recorded once and repeated from then on: on a GPU the whole step as one CUDA graph.

A GPU executes the small kernels of a stage faster than the host can launch them, so stages that could work at the same
time gain nothing from it as long as the host launches each kernel. A CUDA graph removes the host: the kernels of
a step, in branches that do not wait for one another (`OverStreams`), are recorded once, and the device repeats them at
one launch.

In lockstep stages lag behind stage 0, stage j by j steps (`Pipeline.stagger`). Then no stage waits for another within
a step: all forwards and backwards can run at once. With less staleness fewer can: in asynchronous 1F1B the forwards of
a step follow one another up through the stages, beside the backwards of all stages. Backpropagation has no such
freedom.

A graph repeats kernels at the addresses at which they were recorded. So whatever lives longer than a step gets a home,
memory that never moves: messages, targets, kept inputs, accumulated gradients. A home has four places or more, which
are written in turn, so that nothing is read in the step in which it is written (`petra_core.devices.homes`); weights,
optimizer state and running statistics are changed in place anyway. So there is not one recording but a round of at
least twelve, a multiple of k, since the number of a step by k says which stages update in it. At a repetition Python
only advances the counters. The rest of its part, versions and which tensors are where, follows from the number of the
last step, so it is deferred until the pipeline is asked for its state or memory, is evaluated or takes a plain step.

    place 0 ──▶ │ stage 0 │ ──▶ place 1        step m + 1, from what step m has left
    place 0 ──▶ │ stage 1 │ ──▶ place 1        step m + 2 does the same from place 1 to place 2

Methods that let one micro-batch pass at a time are recorded in the same way, so backpropagation can be measured against
PETRA with neither waiting for the host. Graphs and stashed weights of several micro-batches in flight have no fixed
place: DELAYED_GRADIENTS and APPROXIMATE_INPUTS are refused. So are random numbers: a mask is drawn again from the state
of the generator at its forward, for which Python has to ask.

The recorder is an argument: `cuda` here, an interpreter of single operations in the tests. So everything but `cuda` is
tested without a GPU.
"""

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from petra_core import checks
from petra_core.devices.homes import Homes, period
from petra_core.execution import Act, Sent, SequentialExecutor, shared_stream
from petra_core.inspection import INSPECTED
from petra_core.pipeline import Pipeline
from petra_core.prediction.tracing import TracingExecutor
from petra_core.stages import ReversibleStage
from petra_core.staleness import Action, Kind
from petra_core.tape import Streams, Value, as_streams, combined
from petra_core.targets import Keys, Target, flattened, unflattened
from petra_core.worker import Worker

__all__ = ["CapturedSteps", "OverStreams", "Record", "UnrecordableError", "cuda", "recorder"]


class UnrecordableError(ValueError):
    """The steps of a pipeline cannot be recorded; the message says why. Plain steps can be taken."""


#: Does the work once, and returns what does it again on the same memory.
Record = Callable[[Callable[[], None]], Callable[[], None]]

#: Makes a micro-batch: what the pipeline takes, and the target.
Batch = Callable[[], tuple[Value, Target]]


class CapturedSteps:
    """Steps of a pipeline, repeated from recordings as soon as all are alike: use `step` in place of `pipeline.step`.

    With `step_from` the recording includes how the micro-batch is made.

    The first steps are plain ones, until the pipeline is as full as it gets. Then they are rehearsals, done by Python
    with all that they make put at home: until nothing else is in flight and each recording to come has been rehearsed,
    k + 1 times, and at least as often as a stage is inspected (`petra_core.inspection`), which asks the device for
    values. So every stage has once done all that it does, also where a pipeline is full from the beginning, after a
    resume: what libraries make at their first use in a process, such as handles, plans and compiled kernels, cannot be
    made while a device records.

    The pipeline remains whole between steps: it can be evaluated, saved and drained. After steps of its own, or a state
    that was loaded, its memory is elsewhere, and it takes another `CapturedSteps`.

    Args:
        pipeline: with torch.optim.SGD or none. From now on SGD is the fused one, whose learning rate is a tensor, so
            that it may change; in the plain steps too, so that a resumed run computes what one in one piece does.
        record: what records.
        executor: does the actions of a recorded step; None: one after the other.

    Attributes:
        period: the number of recordings: one for each remainder of a step's number by it.
        logs: whether there is one more rehearsal of each recording, by `log`.

    Raises:
        UnrecordableError: the method, the optimizer, a hook, a trace or several processes do not allow it.

    """

    logs: ClassVar[bool] = False

    def __init__(self, pipeline: Pipeline, record: Record, executor: SequentialExecutor | None = None) -> None:
        _check(pipeline)
        self._pipeline = pipeline
        k, pipelined = pipeline.accumulation, pipeline.method.pipelined
        self.period = period(k) if pipelined else k
        staleness = pipeline.staleness
        self._still_to_log = self.period if self.logs else 0  # of the rehearsals that are still to be done
        filling = staleness[0] + self.period if pipelined else max(INSPECTED, k + 1)
        self._rehearsals = filling + self._still_to_log
        self._record = record
        self._executor = executor or SequentialExecutor()
        self._homes = Homes(self.period)
        self._recordings: dict[int, Callable[[], None]] = {}
        self._snapshots: dict[int, Callable[[], None]] = {}  # of each recording what a step leaves behind
        self._loss: Tensor | None = None  # its home
        self._last_losses = torch.empty(0)  # of repetitions, a ring; made once their dtype is known
        self._enters: Streams = ()  # homes of a micro-batch of the caller and its target
        self._target_keys: Keys = None  # of such a target, and its number of tensors
        self._targets = 1
        self._batch: Batch | None = None  # makes the micro-batches of recorded steps
        if pipelined:
            pipeline.stagger()
        self._position = _position(pipeline)
        for optimizer in pipeline.optimizers:
            for group in optimizer.param_groups:
                device = group["params"][0].device
                group |= {"fused": True, "foreach": False}
                group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=device).clone()

    @property
    def recorded(self) -> bool:
        """Whether all steps from now on are repetitions."""
        return len(self._recordings) == self.period

    def step(self, inputs: Value, target: Target) -> Tensor | None:
        """Let one micro-batch enter, as `Pipeline.step` does.

        Returns:
            The loss (a scalar) of the micro-batch that the head has done in this step, which lags in lockstep; None
            while the pipeline fills. It is in a ring: after `petra_core.checks.LOOKED_AT_TOGETHER` more steps another
            loss is written there.

        Raises:
            NonFiniteError: a loss is infinite or not a number. On a GPU it may be noticed some steps later.
            RuntimeError: the pipeline has done something else since the last step, or an exception broke that off.
            UnrecordableError: steps would be recorded from now on, and a stage has drawn random numbers.
            ValueError: the shape or dtype differs from that of the micro-batches before.

        """
        self._target_keys, goals = flattened(target)
        self._targets = len(goals)
        return self._step(lambda: (inputs, target), (*as_streams(inputs), *goals))

    def step_from(self, batch: Batch) -> Tensor | None:
        """Let the micro-batch enter that `batch` makes on the device, as a part of what is recorded.

        Args:
            batch: reads and writes memory that never moves, such as a counter, and asks nothing of the device. It is
                the same at every step, since a repeated step has the one that was recorded.

        Returns:
            The loss, as `step` does.

        Raises:
            ValueError: the steps were recorded with another source of micro-batches.

        """
        return self._step(batch, ())

    def _step(self, batch: Batch, given: Streams) -> Tensor | None:
        """Take a step with what `batch` makes; of a micro-batch of the caller `given` has its tensors."""
        pipeline = self._pipeline
        if (here := _position(pipeline)) != self._position:
            raise RuntimeError(
                f"the pipeline is at micro-batch {here[0]}, drained at {here[1]}, and the last recorded step left it "
                f"at {self._position[0]}, drained at {self._position[1]}; after anything else that moves it make new "
                f"CapturedSteps"
            )
        try:
            if not pipeline.full:
                return pipeline.step(*batch())
            if self._rehearsals > self._still_to_log:
                return self._rehearsed(batch)
            return self._in_place(batch, given)
        finally:
            self._position = _position(pipeline)

    def _rehearsed(self, batch: Batch) -> Tensor:
        """Take a step by Python, after which all that it has made lies at home."""
        pipeline = self._pipeline
        if self._loss is None:
            self._homes.welcome(
                tensor for worker in pipeline.workers for held in worker.held() for tensor in held.tensors
            )
        self._homes.step = pipeline.micro_batches
        with self._settling(SequentialExecutor()):
            loss = pipeline.step(*batch())
        assert loss is not None  # the pipeline is full
        self._loss = self._homes.fixed("loss", loss)
        self._rehearsals -= 1
        return loss

    def _in_place(self, batch: Batch, given: Streams) -> Tensor:
        """Take a step that reads and writes where its recording does: log it, record it or repeat it."""
        pipeline = self._pipeline
        number = pipeline.micro_batches
        phase = number % self.period
        if self._batch is None:
            _check_draws_nothing(pipeline)
            if pipeline.metrics:
                raise UnrecordableError("a loss with metrics makes them by Python, which a recorded step does without")
        self._take(number, batch, given)
        if self._rehearsals > 0:
            self._by_python(phase, lambda: self.log(phase, self._step_at_home))
            self._rehearsals = self._still_to_log = self._rehearsals - 1
        elif phase in self._recordings:
            pipeline.repeat(self._recordings[phase], self._snapshots[phase])
        else:
            self._homes.close()
            self._first(phase)
        assert self._loss is not None
        if not len(self._last_losses):
            self._last_losses = self._loss.new_empty(checks.LOOKED_AT_TOGETHER)
        loss = self._last_losses[number % len(self._last_losses)]
        loss.copy_(self._loss)
        pipeline.note_loss(loss)
        return loss

    def log(self, phase: int, step: Callable[[SequentialExecutor], None]) -> None:
        """Take the last rehearsal of a phase, if the class `logs`; a subclass can note what is done.

        Args:
            phase: remainder of the step's number by `period`.
            step: takes the step; its argument does the actions.

        """
        del phase
        step(SequentialExecutor())

    def work(self, phase: int) -> Callable[[], None] | None:
        """Return what is recorded of a phase in place of the step by Python; None for that step. For subclasses."""
        del phase
        return None

    def _take(self, number: int, batch: Batch, given: Streams) -> None:
        """Have recorded steps take the micro-batches of `batch`, or what the caller has given.

        Raises:
            ValueError: the steps were recorded with another source of micro-batches.

        """
        if given:
            self._enter(number, given)
            batch = self._entered
        if self._batch is None:
            self._batch = batch
        elif self._batch != batch:
            raise ValueError(
                "these steps were recorded with another source of micro-batches, which a repetition would take: give "
                "`step_from` the same function at every step, or `step` all micro-batches"
            )

    def _enter(self, number: int, given: Streams) -> None:
        """Copy a micro-batch of the caller to where recorded steps read it."""
        pipeline = self._pipeline
        pipeline.shapes.check(number, given)
        if not self._enters:
            device = pipeline.workers[0].device
            self._enters = tuple(torch.empty_like(tensor, device=device) for tensor in given)
        for home, tensor in zip(self._enters, given, strict=True):
            # From pinned memory the device would read later than the caller may write there again.
            home.copy_(tensor, non_blocking=not tensor.is_pinned())

    def _entered(self) -> tuple[Value, Target]:
        """Return the micro-batch that was copied."""
        inputs = len(self._enters) - self._targets
        return self._enters[:inputs], unflattened(self._target_keys, self._enters[inputs:])

    def _first(self, phase: int) -> None:
        """Record a phase, and do its step thereby."""
        if (work := self.work(phase)) is None:
            self._by_python(phase, lambda: self._record_as(phase, lambda: self._step_at_home(self._executor)))
        else:
            self._pipeline.repeat(partial(self._record_as, phase, work), self._snapshots[phase])

    def _record_as(self, phase: int, work: Callable[[], None]) -> None:
        self._recordings[phase] = self._record(work)

    def _by_python(self, phase: int, step: Callable[[], None]) -> None:
        """Have a step taken without host reads, and note what it leaves behind."""
        self._homes.step = self._pipeline.micro_batches
        with self._pipeline.without_host_reads():
            step()
        self._snapshots[phase] = self._pipeline.snapshot()

    def _step_at_home(self, executor: SequentialExecutor) -> None:
        """Take a step whose actions `executor` does, with all that it makes put at home."""
        assert self._batch is not None
        inputs, target = self._batch()
        together = executor.step() if isinstance(executor, OverStreams) else contextlib.nullcontext()
        with self._settling(executor), together:
            loss = self._pipeline.step(inputs, target)
        assert loss is not None
        self._homes.fixed("loss", loss)

    @contextlib.contextmanager
    def _settling(self, executor: SequentialExecutor) -> Iterator[None]:
        """Context in which every action puts at home what it has made, where and when `executor` has it done."""
        pipeline = self._pipeline
        before = pipeline.executor
        pipeline.executor = _Settling(executor, self._settle)
        # Of merged blocks most results stay within the stage.
        at_home = [
            (worker, worker.stage)
            for worker in pipeline.workers
            if isinstance(worker.stage, ReversibleStage) and pipeline.method.pipelined
        ]
        for worker, stage in at_home:
            stage.combine = partial(self._combined, worker)
        try:
            yield
        finally:
            pipeline.executor = before
            for _, stage in at_home:
                stage.combine = combined

    def _combined(
        self, worker: Worker, name: str, operation: Callable[..., Tensor], left: Tensor, right: Tensor
    ) -> Tensor:
        """The result of an addition of a worker's coupling, at once at home if it will be sent."""
        if name == "input" and not worker.hand_down:
            return combined(name, operation, left, right)
        return self._homes.combined(worker.index, name, operation, left, right)

    def _settle(self, worker: Worker, action: Action, new: Sent) -> Sent:
        """Put at home what outlives the step, of what an action of a worker has made and of what the worker keeps.

        Returns:
            The messages of the action, `new`, as they are to be sent.

        """
        homes = self._homes
        if action.kind is Kind.BACKWARD:
            for parameter in worker.parameters:
                if parameter.grad is not None and self._pipeline.accumulation > 1:  # else the update takes it at once
                    parameter.grad = homes.fixed(parameter, parameter.grad)
        if not self._pipeline.method.pipelined:  # nothing else is left when the step is over
            return new
        # Stage j does its backward of a micro-batch `after[j]` steps after that has entered. What it sends down is used
        # by the stage below and, in part, by the one below that; what it sends up in the same way by those above.
        stage, lags = worker.index, self._pipeline.lags
        after = [staleness + lag for staleness, lag in zip(self._pipeline.staleness, lags, strict=True)]
        down = after[max(stage - 2, 0)] - after[stage]
        up = lags[min(stage + 2, len(lags) - 1)] - lags[stage]
        if action.kind is Kind.FORWARD:
            for held in worker.held():
                waits = held.user is Kind.FORWARD
                if held.place > 0 or waits:  # the oldest goes in this step, if a backward takes it
                    needed = held.place + (up + 1 if waits else down)
                    held.exchange(homes.lasting((stage, held.queue, held.place), held.tensors, needed))
        needed = up if action.kind is Kind.FORWARD else down
        return [
            (to, message.with_tensors(homes.lasting((stage, action.kind), message.tensors, needed)))
            for to, message in new
        ]


class _Settling(SequentialExecutor):
    """Has a executor do the actions, each with what `settle` has to do after it."""

    def __init__(self, executor: SequentialExecutor, settle: Callable[[Worker, Action, Sent], Sent]) -> None:
        self._executor = executor
        self._settle = settle

    def together(self) -> contextlib.AbstractContextManager[None]:
        return self._executor.together()

    def run(self, act: Act, worker: Worker, action: Action, sent: Sent) -> Tensor | None:
        def settled(worker: Worker, action: Action, sent: Sent) -> Tensor | None:
            new: Sent = []
            result = act(worker, action, new)
            sent += self._settle(worker, action, new)
            return result

        return self._executor.run(settled, worker, action, sent)


def _position(pipeline: Pipeline) -> tuple[int, int]:
    """Return where a pipeline is: the micro-batches that have entered, in all and at the last drain."""
    return pipeline.micro_batches, pipeline.drained


def _check(pipeline: Pipeline) -> None:
    """Check that steps of the pipeline can be recorded. Raises: UnrecordableError: they cannot."""
    method = pipeline.method
    if method.pipelined and (method.keeps_graph or method.stashes_weights):
        raise UnrecordableError(
            f"steps of {method} cannot be recorded: it holds graphs or weights of several micro-batches, which have no "
            f"fixed place; PETRA, DSP and the methods that let one micro-batch pass at a time can"
        )
    if any(worker.rules for worker in pipeline.workers):
        raise UnrecordableError(
            "a rule for delay follows the stage's count of updates, which a recorded step does not see; take plain "
            "steps"
        )
    if method.overlapped or pipeline.channel is not None:
        raise UnrecordableError(
            f"steps are recorded of one process that works in order; {method} or a channel is in the way"
        )
    if any(getattr(part, "context", False) for stage in pipeline.stages for part in stage.parts()):
        raise UnrecordableError(
            "context passes many stages in the memory of one, and a home is kept for the next two: take plain steps"
        )
    if pipeline.common_clip is not None:
        raise UnrecordableError("clipping by the norm of the whole network is done by Python, between the stages")
    if isinstance(pipeline.executor, TracingExecutor) or any(
        w.before_update or w.after_backward for w in pipeline.workers
    ):
        raise UnrecordableError(
            "hooks and traces are called by Python, which a recorded step does without; take them off"
        )
    if any(type(optimizer) is not torch.optim.SGD for optimizer in pipeline.optimizers):
        kinds = ", ".join(sorted({type(optimizer).__name__ for optimizer in pipeline.optimizers}))
        raise UnrecordableError(f"recorded steps update by torch.optim.SGD, which has a fused form; got {kinds}")


def _check_draws_nothing(pipeline: Pipeline) -> None:
    # Not what is kept of micro-batches in flight: of those that pass one at a time nothing is, between steps.
    drawing = [worker.index for worker in pipeline.workers if worker.stream.ever_drawn]
    if drawing:
        raise UnrecordableError(
            f"stages {drawing} draw random numbers (dropout), and a backward could not draw those of its forward again "
            f"without asking the generator for its state, which a recorded step cannot; set dropout to 0"
        )


class OverStreams(SequentialExecutor):
    """Puts the work of a step into CUDA streams: a branch for each stage's F, and one for its R, B and U.

    All branches begin together, and the step ends with all. Within a stage U waits for F, whose weights it changes. The
    head has one branch, since its B differentiates its F, and so has a stage with buffers that an evaluation may write
    (`Worker.forward_apart`). Between stages a branch waits for that of a neighbour whose message it needs in the same
    step: in lockstep, where each stage lags by a step behind the one below, none does. In asynchronous 1F1B each F
    waits for the F below, and of stages with equal staleness each B waits for the B above. Branch n is in stream n mod
    the number of streams, the deepest stages' first.

    F and R of a stage evaluate the same function, so each convolution could be one over both micro-batches. Of
    the 280 operations of RevNet-18, views not counted, that would save at most the 20 convolutions and 17 ReLUs of R.
    But BatchNorm is of each micro-batch alone, and to join its two results again is an operation for each of its 20
    layers; and F would no longer be beside B. So there are two.

    Only within a recorded step, where all that goes from stage to stage lies at home: elsewhere the allocator could
    give away a message's memory while another stream still reads it.

    Args:
        streams: at least one; 2 J - 1 are enough for all branches.
        staleness: of every stage.
        lags: of every stage (`Pipeline.stagger`).

    """

    def __init__(self, streams: Sequence[torch.cuda.Stream], staleness: Sequence[int], lags: Sequence[int]) -> None:
        self._streams = streams
        self._last = len(lags) - 1
        self._waits_below, self._waits_above = waiting(staleness, lags)
        self._forwards: dict[int, torch.cuda.Event] = {}  # of each stage the end of its F in this step
        self._backwards: dict[int, torch.cuda.Event] = {}  # and of its B

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Surround a step: all streams begin where the caller's stream is, and the caller's waits for all of them."""
        caller = torch.cuda.current_stream(self._streams[0].device)
        for stream in self._streams:
            stream.wait_stream(caller)
        yield
        for stream in self._streams:
            caller.wait_stream(stream)

    def run(self, act: Act, worker: Worker, action: Action, sent: Sent) -> Tensor | None:
        stage = worker.index
        apart = action.kind is Kind.FORWARD and worker.forward_apart
        branch = 2 * (self._last - stage) - apart
        stream = self._streams[branch % len(self._streams)]
        with torch.cuda.stream(stream):
            if action.kind is Kind.FORWARD and stage in self._waits_below:
                stream.wait_event(self._forwards[stage - 1])
            if action.kind in (Kind.RECONSTRUCT, Kind.BACKWARD) and stage in self._waits_above:
                stream.wait_event(self._backwards[stage + 1])
            if action.kind is Kind.UPDATE:
                stream.wait_event(self._forwards[stage])
            result = super().run(act, worker, action, sent)
            if action.kind is Kind.FORWARD:
                self._forwards[stage] = stream.record_event()
            elif action.kind is Kind.BACKWARD:
                self._backwards[stage] = stream.record_event()
        return result


def waiting(staleness: Sequence[int], lags: Sequence[int]) -> tuple[set[int], set[int]]:
    """Return the stages whose F waits within a step for the F below, and those whose B waits for the B above."""
    after = [number + lag for number, lag in zip(staleness, lags, strict=True)]
    below = {stage for stage in range(1, len(lags)) if lags[stage] == lags[stage - 1]}
    above = {stage for stage in range(len(lags) - 1) if after[stage] == after[stage + 1]}
    return below, above


def cuda_device(pipeline: Pipeline) -> torch.device:
    """Return the CUDA device of all stages. Raises: UnrecordableError: they are elsewhere, or on several devices."""
    devices = {worker.device for worker in pipeline.workers}
    device = min(devices, key=str)
    if len(devices) > 1 or device.type != "cuda":
        raise UnrecordableError(
            f"a CUDA graph needs all stages on one CUDA device, they are on {', '.join(sorted(map(str, devices)))}"
        )
    return device


def cuda(pipeline: Pipeline, *, streams: int | None = None) -> CapturedSteps:
    """Return the pipeline's steps as CUDA graphs of its device.

    Args:
        pipeline: to be recorded.
        streams: number of CUDA streams; more than 2 J - 1 stay empty. None: 2 J - 1, one for each branch. An even
            number puts all F into one half of the streams, and R, B and U, which take three times as long, into the
            other. A method that lets one micro-batch pass at a time has one stream, since its stages wait for one
            another in any case.

    Raises:
        UnrecordableError: the stages are not all on one CUDA device, or `CapturedSteps` has a reason to refuse.
        ValueError: there is no stream.

    """
    device = cuda_device(pipeline)
    if streams is None:
        streams = 2 * len(pipeline.stages) - 1
    if streams < 1:
        raise ValueError(f"stages run in at least one stream, got streams={streams}")
    executor = None
    if streams > 1 and pipeline.method.pipelined:
        pipeline.stagger()
        branches = [shared_stream(device, 1 + n) for n in range(streams)]
        executor = OverStreams(branches, pipeline.staleness, pipeline.lags)
    return CapturedSteps(pipeline, recorder(device), executor)


def recorder(device: torch.device) -> Record:
    """What records as CUDA graphs of `device`, all of which share their memory.

    What it is given must have been done in this process before, and more than once (see `CapturedSteps`). A graph has
    the addresses of what that uses and does not keep it: whoever repeats it does.
    """
    pool = torch.cuda.graph_pool_handle()

    def record(work: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on: those that load data pin memory, at which a capture of all threads would break off.
        capture = torch.cuda.graph(graph, pool=pool, stream=shared_stream(device, 0), capture_error_mode="thread_local")

        def repeat() -> None:
            with torch.cuda.device(device):
                graph.replay()

        with torch.cuda.device(device), _without_collecting(), warnings.catch_warnings():
            warnings.filterwarnings("error", "The CUDA Graph is empty")  # to repeat it would train nothing, silently
            with capture:
                work()  # is not done by being recorded
        repeat()
        return repeat

    return record


@contextlib.contextmanager
def _without_collecting() -> Iterator[None]:
    """Context in which Python collects no garbage: a graph of before, if it is some, must not go while one is recorded.

    A capture breaks off at what its release asks of the device.
    """
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
