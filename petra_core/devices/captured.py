"""Record the steps of a pipeline once and replay them; on a GPU each step is one CUDA graph.

A GPU executes the small kernels of a stage faster than the host can launch them. As long as the host launches each
kernel, stages that could work concurrently gain nothing. A CUDA graph removes the host: the kernels of a step are
recorded once, in branches that do not wait for one another (`OverStreams`), and one launch replays them all.

In lockstep, stage j lags j steps behind stage 0 (`Pipeline.stagger`). Then no stage waits for another within a step,
and all forwards and backwards can run concurrently. With less staleness, fewer can: in asynchronous 1F1B the forwards
of a step run one after the other, from stage 0 upwards, concurrently with the backwards of all stages. In
backpropagation every action waits for the one before.

A graph replays kernels at the addresses at which they were recorded. Every tensor that outlives a step therefore needs
a *static buffer*: messages, targets, kept inputs and accumulated gradients. A static buffer has at least four places,
which are written in turn, so that no tensor is read in the step in which it is written
(`petra_core.devices.static_buffers`). Weights, optimizer state and running statistics are updated in place and need no
static buffer. Since the places alternate, one recording is not enough. There is a round of at least twelve recordings.
Their number is a multiple of k, because the number of a step modulo k determines which stages update in it.

At a replay, Python only advances the counters. Its other bookkeeping (versions of weights, the place of each tensor)
follows from the number of the last step. It is deferred until the pipeline is evaluated, takes a plain step, or
returns its state or memory.

    place 0 ──▶ │ stage 0 │ ──▶ place 1        step m + 1 reads the results of step m
    place 0 ──▶ │ stage 1 │ ──▶ place 1        step m + 2 does the same from place 1 to place 2

Methods that process one micro-batch at a time are recorded in the same way, so backpropagation and PETRA can be
compared without the time for launches from the host. The following cannot be recorded:

- DELAYED_GRADIENTS, APPROXIMATE_INPUTS and PIPEDREAM_2BW hold graphs or stashed weights of several micro-batches in
  flight, which have no static buffers.
- Dropout needs the state of the generator at the forward to draw the same mask again, and only Python can read it.

The recorder is an argument: `cuda` in production, an interpreter of single operations in the tests. Everything except
`cuda` is therefore tested without a GPU.
"""

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from petra_core.devices.execution import Act, Sent, SequentialExecutor
from petra_core.devices.overlapped import get_stream
from petra_core.devices.static_buffers import StaticBuffers, period
from petra_core.inspection.ownership import INSPECTED
from petra_core.inspection.values import check_shapes
from petra_core.messages import Channel
from petra_core.pipeline import Pipeline
from petra_core.stages import ReversibleStage
from petra_core.staleness import Action, Kind, forward_lags
from petra_core.tape import Operator, Streams, Value, as_streams, combine_streams
from petra_core.targets import Target, convert_tensors, flatten
from petra_core.worker import Worker


class UnrecordableError(ValueError):
    """Error raised when the steps of a pipeline cannot be recorded. Plain steps remain possible."""


#: Runs a function once, and returns a function that repeats it on the same memory.
Record = Callable[[Callable[[], None]], Callable[[], None]]

#: Makes a micro-batch: the inputs of the pipeline and the target.
Batch = Callable[[], tuple[Value, Target]]


class CapturedSteps:
    """Runner of a pipeline's steps from recordings (CUDA graphs) in steady state: use `step`, not `pipeline.step`.

    With `step_from`, the recording includes the creation of the micro-batch.

    Steps pass through three phases:

    1. Plain steps, until the pipeline is full.
    2. Rehearsals: Python runs the steps and copies every tensor that outlives a step to its static buffer. This phase
       ends when all tensors in flight are in static buffers and each step of a round has been rehearsed. It has at
       least k + 1 steps, and at least `INSPECTED`, since an inspection reads values from the device. Rehearsals also
       take place after a resume, when the pipeline is full from the beginning: libraries create handles, plans and
       compiled kernels at their first use in a process, which is not possible while a device records.
    3. Each step of a round is recorded once. All further steps are replays.

    Between steps the pipeline is in a consistent state: it can be evaluated, saved and drained. After a direct call of
    `pipeline.step`, or after a state was loaded, its tensors are not in the buffers. Make a new `CapturedSteps` then.

    Args:
        pipeline: Pipeline with torch.optim.SGD or without optimizer. SGD is switched to the fused kernel with the
            learning rate in a tensor, so that the rate can change between replays. The plain steps use this kernel too,
            so that a resumed run and an uninterrupted run compute the same.
        record: Function that records a step.
        executor: Executor of the actions of a recorded step. None runs them one after the other.

    Attributes:
        period: Number of recordings. Step n uses recording n modulo `period`.
        executor: Executor of the actions of a recorded step.

    Raises:
        UnrecordableError: If the method, a delay rule, context, clipping by the norm of the whole network, a hook, a
            trace, the optimizer or several processes prevent recording.

    """

    def __init__(self, pipeline: Pipeline, record: Record, executor: SequentialExecutor | None = None) -> None:
        if (obstacle := _obstacle(pipeline)) is not None:
            raise UnrecordableError(obstacle)
        self._pipeline, self._record = pipeline, record
        k, pipelined = pipeline.accumulation, pipeline.method.pipelined
        self.period = period(k) if pipelined else k
        staleness = pipeline.staleness
        self._rehearsals = staleness[0] + self.period if pipelined else max(INSPECTED, k + 1)  # that remain
        self.executor = executor or SequentialExecutor()
        self._buffers = StaticBuffers(self.period)
        self._recordings: dict[int, Callable[[], None]] = {}
        self._snapshots: dict[int, Callable[[], None]] = {}  # by recording: sets Python's state after a step
        self._loss: Tensor | None = None  # static buffer of the loss
        self._entered: tuple[Streams, Target] | None = None  # static buffers of the caller's micro-batch
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
        """True if all further steps are replays."""
        return len(self._recordings) == self.period

    def step(self, inputs: Value, target: Target) -> Tensor | None:
        """Run one step with a new micro-batch, as `Pipeline.step` does.

        Returns:
            The loss (a scalar) of the micro-batch that the head processes in this step, or None while the pipeline
            fills. In lockstep this is an earlier micro-batch than the entering one.

        Raises:
            NonFiniteError: If a loss is infinite or not a number. On a GPU this may be detected some steps later.
            RuntimeError: If the pipeline has done something else since the last step, or an exception interrupted that
                step.
            UnrecordableError: If recording would begin, and a stage has drawn random numbers or the loss has metrics.
            ValueError: If the shape or dtype differs from that of the previous micro-batches.

        """
        self._enter(as_streams(inputs), target)
        return self.step_from(self._read_batch)

    def step_from(self, batch: Batch) -> Tensor | None:
        """Run one step with a micro-batch that `batch` makes on the device. Its operations are recorded too.

        Args:
            batch: Function that makes the micro-batch. It reads and writes memory at fixed addresses, such as a
                counter, and does not copy values to the host. Pass the same function at every step, since a replay
                contains the recorded one.

        Returns:
            The loss, as `step` returns it.

        Raises:
            ValueError: If the steps were recorded with another source of micro-batches. The other errors are those of
                `step`.

        """
        pipeline = self._pipeline
        if (here := _position(pipeline)) != self._position:
            raise RuntimeError(
                f"the pipeline is at {here}, and the last recorded step left it at {self._position}; after anything "
                f"else that moves it make new CapturedSteps"
            )
        if self._batch not in (None, batch):
            raise ValueError(
                "these steps were recorded with another source of micro-batches, which a repetition would take: give "
                "`step_from` the same function at every step, or `step` all micro-batches"
            )
        self._batch = batch
        try:
            if not pipeline.full:
                return pipeline.step(*batch())
            replays = not self._rehearsals
            if replays:
                self._replay()
            else:
                self._rehearse()
            assert self._loss is not None
            loss = self._loss.clone()
            if replays:  # the step itself has noted the loss otherwise
                pipeline.note_loss(loss)
            return loss
        finally:
            self._position = _position(pipeline)

    def _rehearse(self) -> None:
        """Run a step by Python and copy all tensors that outlive it to their static buffers."""
        if self._loss is None:
            for worker in self._pipeline.workers:
                worker.move_held(lambda queue, place, user, tensors: self._buffers.allow_external(tensors))
        self._buffers.step = self._pipeline.micro_batches
        self.step_in_buffers(SequentialExecutor())
        self._rehearsals -= 1

    def _replay(self) -> None:
        """Replay a step that reads and writes at the fixed addresses of its recording, or prepare the recording."""
        pipeline = self._pipeline
        phase = pipeline.micro_batches % self.period
        if not self._snapshots:
            try:
                _check_steps(pipeline)
            except UnrecordableError:
                pipeline.lags = (0,) * len(pipeline.stages)  # plain steps follow, without stages that lag behind
                raise
        if phase in self._recordings:
            pipeline.repeat(self._recordings[phase], self._snapshots[phase])
        else:
            self._buffers.freeze()
            self.prepare(phase)

    def prepare(self, phase: int) -> None:
        """Run the step of a phase that is not recorded, and record it. A subclass may do so in several rounds.

        Args:
            phase: Number of the step modulo `period`.

        """
        self.run_by_python(phase, lambda: self._record_as(phase, lambda: self.step_in_buffers(self.executor)))

    def _enter(self, streams: Streams, target: Target) -> None:
        """Copy the caller's micro-batch to the static buffers from which steps read it."""
        pipeline = self._pipeline
        given = (*streams, *flatten(target)[1])
        check_shapes(pipeline.shapes, pipeline.micro_batches, given)
        if self._entered is None:
            buffer_for = partial(torch.empty_like, device=pipeline.workers[0].device)
            self._entered = tuple(map(buffer_for, streams)), convert_tensors(target, buffer_for)
        buffers = (*self._entered[0], *flatten(self._entered[1])[1])
        for buffer, tensor in zip(buffers, given, strict=True):
            # A non-blocking copy from pinned memory could still be running when the caller overwrites that memory.
            buffer.copy_(tensor, non_blocking=not tensor.is_pinned())

    def _read_batch(self) -> tuple[Value, Target]:
        """Return the micro-batch that `_enter` has copied."""
        assert self._entered is not None
        return self._entered

    def record_work(self, phase: int, work: Callable[[], None]) -> None:
        """Record work that does the same as the step of a phase that Python has run. This also runs the work."""
        self._pipeline.repeat(partial(self._record_as, phase, work), self._snapshots[phase])

    def _record_as(self, phase: int, work: Callable[[], None]) -> None:
        self._recordings[phase] = self._record(work)

    def run_by_python(self, phase: int, step: Callable[[], None]) -> None:
        """Run a step by Python without host reads, and store a snapshot of the pipeline's state after it."""
        self._buffers.step = self._pipeline.micro_batches
        with self._pipeline.without_host_reads():
            step()
        self._snapshots[phase] = self._pipeline.snapshot()

    def step_in_buffers(self, executor: SequentialExecutor) -> None:
        """Run a step with `executor`, and copy all tensors that outlive it to their static buffers."""
        assert self._batch is not None
        inputs, target = self._batch()
        with self._moving_results(executor), fork(executor.streams):
            loss = self._pipeline.step(inputs, target)
        assert loss is not None
        self._loss = self._buffers.keep_fixed("loss", loss)

    @contextlib.contextmanager
    def _moving_results(self, executor: SequentialExecutor) -> Iterator[None]:
        """Copy the results of every action inside the context to their static buffers, in the streams of `executor`."""
        pipeline = self._pipeline
        before = pipeline.executor
        pipeline.executor, executor.after_action = executor, self._move_results
        # Merged blocks are left out: most of their sums stay within the stage.
        combining = [
            (worker, worker.stage)
            for worker in pipeline.workers
            if isinstance(worker.stage, ReversibleStage) and pipeline.method.pipelined
        ]
        for worker, stage in combining:
            stage.combine = partial(self._combine, worker)
        try:
            yield
        finally:
            pipeline.executor, executor.after_action = before, None
            for _, stage in combining:
                stage.combine = combine_streams

    def _combine(self, worker: Worker, name: str, operation: Operator, left: Tensor, right: Tensor) -> Tensor:
        """Compute a sum of a worker's coupling, directly into its static buffer if the result will be sent."""
        if name == "input" and not worker.return_input:
            return combine_streams(name, operation, left, right)
        return self._buffers.combine(worker.index, name, operation, left, right)

    def _move_results(self, worker: Worker, action: Action, new: Sent) -> Sent:
        """Copy the results of an action, and the tensors that the worker keeps, to buffers if they outlive the step.

        Returns:
            The messages of the action (`new`) with the tensors of the static buffers.

        """
        buffers = self._buffers
        if action.kind is Kind.BACKWARD:
            for parameter, gradient in worker.gradients.items():
                if self._pipeline.accumulation > 1:  # otherwise the update uses it now
                    worker.gradients[parameter] = buffers.keep_fixed(parameter, gradient)
        if not self._pipeline.method.pipelined:  # nothing else outlives the step
            return new
        # Stage j runs its backward of a micro-batch `after[j]` steps after the micro-batch has entered. The stage below
        # uses the message and passes a part of it to the stage below that. The same holds for messages upwards.
        stage, lags = worker.index, self._pipeline.lags
        after = [staleness + lag for staleness, lag in zip(self._pipeline.staleness, lags, strict=True)]
        down = after[max(stage - 2, 0)] - after[stage]
        up = lags[min(stage + 2, len(lags) - 1)] - lags[stage]
        if action.kind is Kind.FORWARD:

            def keep(queue: str, place: int, user: Kind, tensors: Streams) -> Streams:
                waits = user is Kind.FORWARD
                if place == 0 and not waits:  # a backward of this step takes the oldest
                    return tensors
                return buffers.keep((stage, queue, place), tensors, place + (up + 1 if waits else down))

            worker.move_held(keep)
        needed = up if action.kind is Kind.FORWARD else down
        return [
            (to, message.with_tensors(buffers.keep((stage, action.kind), message.tensors, needed)))
            for to, message in new
        ]


def _position(pipeline: Pipeline) -> str:
    """Describe the position of a pipeline: its micro-batches in total and at the last drain, and its loaded states."""
    return f"micro-batch {pipeline.micro_batches}, drained at {pipeline.drained} (states loaded: {pipeline.loads})"


def _obstacle(pipeline: Pipeline) -> str | None:
    """Return why the steps of a pipeline cannot be recorded; None if they can."""
    method, channel = pipeline.method, type(pipeline.channel)
    if method.pipelined and (method.keeps_graph or method.stashes_weights):
        return (
            f"steps of {method} cannot be recorded: it holds graphs or weights of several micro-batches, which have no "
            f"fixed place; PETRA, DSP and the methods that let one micro-batch pass at a time can"
        )
    if any(worker.rules for worker in pipeline.workers):
        return "a delay rule needs the number of updates, which a CUDA graph cannot read; call pipeline.step()"
    if method.overlapped or channel is not Channel:  # others compare micro-batches on the host
        return f"recording needs one process and sequential execution, got {method} and {channel.__name__}"
    if any(getattr(part, "context", False) for stage in pipeline.stages for part in stage.parts()):
        return "context may pass more than two stages, but a static buffer is valid for two; call pipeline.step()"
    if pipeline.common_clip is not None:
        return "clipping by the norm of the whole network is done by Python, between the stages"
    hooks = any(worker.before_update or worker.after_backward or worker.clip for worker in pipeline.workers)
    if hooks or type(pipeline.executor) is not SequentialExecutor:
        return "a recorded step calls no hooks and traces; remove before_update, after_backward and custom executors"
    if kinds := {type(optimizer) for optimizer in pipeline.optimizers} - {torch.optim.SGD}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        return f"recorded steps update by torch.optim.SGD, which has a fused form; got {names}"
    return None


def _check_steps(pipeline: Pipeline) -> None:
    """Check what only the steps so far have shown.

    Raises:
        UnrecordableError: If a stage draws random numbers, or the loss has metrics.

    """
    if pipeline.metrics:
        raise UnrecordableError("a loss with metrics makes them by Python, which a recorded step does without")
    # It is not enough to look at the generator states that are kept for micro-batches in flight: methods that process
    # one micro-batch at a time keep none between steps.
    if drawing := [worker.index for worker in pipeline.workers if worker.stream.ever_drawn]:
        raise UnrecordableError(
            f"stages {drawing} draw random numbers (dropout), and a backward could not draw those of its forward again "
            f"without asking the generator for its state, which a recorded step cannot; set dropout to 0"
        )


class OverStreams(SequentialExecutor):
    """Executor that spreads a step over CUDA streams: one branch for the F of each stage, one for its R, B and U.

    All branches begin together, and the step ends when all have finished. Within a stage, U waits for F, which reads
    the weights that U changes. The head has one branch, since its B differentiates its F. A stage with buffers that an
    evaluation may write has one branch too (`Worker.forward_apart`). Between stages, a branch waits for a neighbour's
    branch if it needs its message in the same step. In lockstep no branch waits, since each stage lags one step behind
    the one below. In asynchronous 1F1B each F waits for the F below, and between stages of equal staleness each B waits
    for the B above. Branches are numbered from the last stage down; branch n runs in stream n modulo the number of
    streams.

    F and R of a stage evaluate the same function but stay separate. Joined calls would save at most 37 of the 280
    operations of RevNet-18 (without views) and cost 20 for BatchNorm, and F would not run concurrently with B.

    Use this only within a recorded step, where all messages are in static buffers. Elsewhere the allocator could reuse
    the memory of a message while another stream still reads it.

    Args:
        streams: CUDA streams, at least one. 2 J - 1 are enough for all branches.
        staleness: Staleness of every stage.

    """

    def __init__(self, streams: Sequence[torch.cuda.Stream], staleness: Sequence[int]) -> None:
        self.streams = streams
        self._last = len(staleness) - 1
        self._waits_below, self._waits_above = waiting(staleness)
        self._forwards: dict[int, torch.cuda.Event] = {}  # by stage: end of its F in this step
        self._backwards: dict[int, torch.cuda.Event] = {}  # by stage: end of its B

    def run(self, act: Act, worker: Worker, action: Action, sent: Sent) -> None:
        stage = worker.index
        apart = action.kind is Kind.FORWARD and worker.forward_apart
        branch = 2 * (self._last - stage) - apart
        stream = self.streams[branch % len(self.streams)]
        with torch.cuda.stream(stream):
            if action.kind is Kind.FORWARD and stage in self._waits_below:
                stream.wait_event(self._forwards[stage - 1])
            if action.kind in (Kind.RECONSTRUCT, Kind.BACKWARD) and stage in self._waits_above:
                stream.wait_event(self._backwards[stage + 1])
            if action.kind is Kind.UPDATE:
                stream.wait_event(self._forwards[stage])
            super().run(act, worker, action, sent)
            if action.kind is Kind.FORWARD:
                self._forwards[stage] = stream.record_event()
            elif action.kind is Kind.BACKWARD:
                self._backwards[stage] = stream.record_event()


@contextlib.contextmanager
def fork(streams: Sequence[torch.cuda.Stream]) -> Iterator[None]:
    """Fork streams, if any, from the caller's stream at the beginning of a context, and join them at its end."""
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream(stream.device))
    try:
        yield
    finally:
        for stream in streams:
            torch.cuda.current_stream(stream.device).wait_stream(stream)


def waiting(staleness: Sequence[int]) -> tuple[set[int], set[int]]:
    """Return the stages whose F waits for the F below in the same step, and those whose B waits for the B above."""
    lags = forward_lags(staleness)
    after = [number + lag for number, lag in zip(staleness, lags, strict=True)]
    below = {stage for stage in range(1, len(lags)) if lags[stage] == lags[stage - 1]}
    above = {stage for stage in range(len(lags) - 1) if after[stage] == after[stage + 1]}
    return below, above


def cuda_device(pipeline: Pipeline) -> torch.device:
    """Return the CUDA device of all stages.

    Raises:
        UnrecordableError: If the stages are on several devices, or not on a CUDA device.

    """
    devices = {worker.device for worker in pipeline.workers}
    device = min(devices, key=str)
    if len(devices) > 1 or device.type != "cuda":
        raise UnrecordableError(
            f"a CUDA graph needs all stages on one CUDA device, they are on {', '.join(sorted(map(str, devices)))}"
        )
    return device


def cuda(pipeline: Pipeline, *, streams: int | None = None) -> CapturedSteps:
    """Return a runner that records the pipeline's steps as CUDA graphs.

    Args:
        pipeline: Pipeline to record.
        streams: Number of CUDA streams. None for 2 J - 1, one for each branch; further streams would stay empty. An
            even number puts all F into one half of the streams, and R, B and U, which take three times as long, into
            the other. A method that processes one micro-batch at a time uses one stream, since its stages wait for one
            another.

    Raises:
        UnrecordableError: If the stages are not all on one CUDA device, or `CapturedSteps` cannot record the pipeline.
        ValueError: If `streams` is below 1.

    """
    device = cuda_device(pipeline)
    streams = 2 * len(pipeline.stages) - 1 if streams is None else streams
    if streams < 1:
        raise ValueError(f"stages run in at least one stream, got streams={streams}")
    executor = None
    if streams > 1 and pipeline.method.pipelined:
        branches = [get_stream(device, 1 + n) for n in range(streams)]
        executor = OverStreams(branches, pipeline.staleness)
    return CapturedSteps(pipeline, recorder(device), executor)


def recorder(device: torch.device) -> Record:
    """Return a recorder that makes CUDA graphs on `device`, which share one memory pool.

    Run the work several times in this process before it is recorded (see `CapturedSteps`). A graph contains addresses
    and keeps no tensor alive. The caller must keep the tensors as long as the graph is replayed.
    """
    pool = torch.cuda.graph_pool_handle()

    def record(work: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        # "thread_local", since other threads pin memory while they load data, which would abort a global capture.
        capture = torch.cuda.graph(graph, pool=pool, stream=get_stream(device, 0), capture_error_mode="thread_local")

        def repeat() -> None:
            with torch.cuda.device(device):
                graph.replay()

        with torch.cuda.device(device), _without_collecting(), warnings.catch_warnings():
            warnings.filterwarnings("error", "The CUDA Graph is empty")  # its replay would silently train nothing
            with capture:
                work()  # recorded, not executed
        repeat()
        return repeat

    return record


@contextlib.contextmanager
def _without_collecting() -> Iterator[None]:
    """Disable Python's garbage collection inside the context.

    Collecting an old CUDA graph during a capture would call functions of the device that abort the capture.
    """
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
