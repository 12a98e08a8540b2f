"""One tick recorded once and repeated from then on: on a GPU the whole tick as one CUDA graph.

Within a tick of PETRA no stage waits for another: all forwards and backwards could run at once, even on one device.
Backpropagation has no such freedom. But a GPU is quicker at the small kernels of a stage than the host is at asking for
them, so nothing is won until the host is out of the way. A CUDA graph does that: the kernels of a tick, in branches
that do not wait for one another (`OverStreams`), are recorded once, and the device repeats them at one word of the
host.

A graph repeats kernels at the addresses at which they were recorded. So whatever lives longer than a tick gets a home,
memory that never moves: messages, targets, kept inputs, accumulated gradients. A home has four places or more, which
are written in turn, so that nothing is read in the tick in which it is written (`petra_core.devices.homes`); weights,
optimizer state and running statistics are changed in place anyway. So there is not one recording but a round of at
least twelve, a multiple of k, since the number of a tick by k says which stages update in it. At a repetition Python
only advances the clock. The rest of its part, versions and which tensors are where, follows from the number of the last
step, so it is deferred until the pipeline is asked for its state or memory, is evaluated or takes a plain step.

    place 0 ──▶ │ stage 0 │ ──▶ place 1        tick t + 1, from what tick t has left; all stages are independent
    place 0 ──▶ │ stage 1 │ ──▶ place 1        tick t + 2 does the same from place 1 to place 2

Methods that let one micro-batch pass at a time are recorded a micro-batch at a time, so backpropagation can be measured
against PETRA with neither waiting for the host. Graphs and stashed weights of several micro-batches in flight have no
fixed place: DELAYED_GRADIENTS and APPROXIMATE_INPUTS are refused. So are random numbers: a mask is drawn again from the
state of the generator at its forward, for which Python has to ask.

The recorder is an argument: `cuda` here, an interpreter of single operations in the tests. So everything but `cuda` is
tested without a GPU.
"""

import contextlib
import gc
import warnings
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from petra_core import finite
from petra_core.concurrency import Act, InOrder, Sent, shared_stream
from petra_core.devices.homes import Homes, period
from petra_core.inspection import INSPECTED
from petra_core.ledger import payload
from petra_core.pipeline import Pipeline
from petra_core.randomness import RandomStream
from petra_core.schedule import Action, Kind
from petra_core.stages import ReversibleStage
from petra_core.tape import Streams, Value, as_streams, combined
from petra_core.tracing import Trace
from petra_core.worker import Message, Worker

__all__ = ["CapturedTicks", "OverStreams", "Record", "UnrecordableError", "cuda", "recorder"]


class UnrecordableError(ValueError):
    """The ticks of a pipeline cannot be recorded; the message says why. Its own steps can be taken."""


#: Does the work once, and returns what does it again on the same memory.
Record = Callable[[Callable[[], None]], Callable[[], None]]

#: Makes a micro-batch: what the pipeline takes, and the target.
Batch = Callable[[], tuple[Value, Tensor]]


class CapturedTicks:
    """Steps of a pipeline, repeated from recordings as soon as all are alike: use `step` in place of `pipeline.step`.

    With `step_from` the recording includes how the micro-batch is made.

    The first steps are plain ones, until the pipeline is as full as it gets. Then they are rehearsals, done by Python
    with all that they make put at home: until nothing else is in flight and each recording to come has been rehearsed,
    k + 1 times, and at least as often as a stage is inspected (`petra_core.inspection`), which asks the device for
    values. So every stage has once done all that it does, also where a pipeline is full from the beginning, after a
    resume: what libraries make at their first use in a process, such as handles, plans and compiled kernels, cannot be
    made while a device records.

    The pipeline remains whole between steps: it can be evaluated, saved and drained. After steps of its own, or a state
    that was loaded, its memory is elsewhere, and it takes another `CapturedTicks`.

    Args:
        pipeline: with torch.optim.SGD or none. From now on SGD is the fused one, whose learning rate is a tensor, so
            that it may change; in the plain steps too, so that a resumed run computes what one in one piece does.
        record: what records.
        conductor: does the actions of a recorded tick; None: one after the other.

    Attributes:
        period: the number of recordings: one for each remainder of a step's number by it.

    Raises:
        UnrecordableError: the method, the optimizer, a hook, a trace or several processes do not allow it.

    """

    def __init__(self, pipeline: Pipeline, record: Record, conductor: InOrder | None = None) -> None:
        _check(pipeline)
        self._pipeline = pipeline
        k, pipelined = pipeline.accumulation, pipeline.method.pipelined
        self.period = period(k) if pipelined else k
        self._rehearsals = pipeline.depth + self.period if pipelined else max(INSPECTED, k + 1)  # to be done
        self._record = record
        self._conductor = conductor or InOrder()
        self._homes = Homes(self.period)
        self._recordings: dict[int, Callable[[], None]] = {}
        self._states: dict[int, list[Callable[[int], None]]] = {}  # of each recording what a step leaves behind
        self._loss: Tensor | None = None  # its home
        self._last_losses = torch.empty(0)  # of repetitions, a ring; made once their dtype is known
        self._enters: Streams = ()  # homes of a micro-batch of the caller and its target
        self._batch: Batch | None = None  # makes the micro-batches of recorded steps
        self._ticks = pipeline._clock.tick_number
        for optimizer in pipeline.optimizers:
            for group in optimizer.param_groups:
                device = group["params"][0].device
                group |= {"fused": True, "foreach": False}
                group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=device).clone()

    @property
    def recorded(self) -> bool:
        """Whether all steps from now on are repetitions."""
        return len(self._recordings) == self.period

    def step(self, inputs: Value, target: Tensor) -> Tensor | None:
        """Let one micro-batch enter, as `Pipeline.step` does.

        Returns:
            The loss (a scalar) of the micro-batch that reached the head; None while the pipeline fills. It lies in a
            ring: after `petra_core.finite.LOOKED_AT_TOGETHER` more steps another loss is written there.

        Raises:
            NonFiniteError: a loss is infinite or not a number. On a GPU it may be noticed some steps later.
            RuntimeError: the pipeline has done something else since the last step, or an exception broke that off.
            UnrecordableError: steps would be recorded from now on, and a stage has drawn random numbers.
            ValueError: the shape or dtype differs from that of the micro-batches before.

        """
        return self._step(lambda: (inputs, target), (*as_streams(inputs), target))

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
        pipeline._refuse_after_broken_tick()
        if pipeline._clock.tick_number != self._ticks:
            raise RuntimeError(
                f"the pipeline is at tick {pipeline._clock.tick_number}, and the last recorded step left it at tick "
                f"{self._ticks}; after anything else that moves it make new CapturedTicks"
            )
        number = pipeline.micro_batches
        if not _is_full(pipeline):
            loss = pipeline.step(*batch())
        elif self._rehearsals > 0:
            loss = self._rehearsed(number, batch, given)
        else:
            loss = self._recorded(number, batch, given)
        self._ticks = pipeline._clock.tick_number
        return loss

    def _rehearsed(self, number: int, batch: Batch, given: Streams) -> Tensor:
        """Take a step by Python, after which all that it has made lies at home."""
        del given  # `batch` returns it
        pipeline = self._pipeline
        if self._loss is None:
            self._homes.welcome(_in_flight(pipeline))
        self._homes.tick = number
        with self._settling(InOrder()):
            loss = pipeline.step(*batch())
        assert loss is not None  # the pipeline is full
        self._loss = self._homes.fixed("loss", loss)
        self._rehearsals -= 1
        return loss

    def _recorded(self, number: int, batch: Batch, given: Streams) -> Tensor:
        """The step of micro-batch `number`, from its recording; recorded, if it is the first of its kind."""
        pipeline = self._pipeline
        if not self._recordings:
            _check_draws_nothing(pipeline)
            self._homes.close()
        self._take(number, batch, given)
        phase = number % self.period
        if phase in self._recordings:
            pipeline._unfinished_tick = True  # so that an error leaves it refusing to go on
            self._recordings[phase]()
            head = self._advance(number)
        else:
            head = self._first(number)
            pipeline._unfinished_tick = True
        assert self._loss is not None
        if not len(self._last_losses):
            self._last_losses = self._loss.new_empty(finite.LOOKED_AT_TOGETHER)
        loss = self._last_losses[head % len(self._last_losses)]
        loss.copy_(self._loss)
        pipeline._losses.add(head, loss, in_forward=False)
        pipeline._unfinished_tick = False
        return loss

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
        pipeline._shapes.check(number, given)
        if not self._enters:
            device = pipeline._workers[0].device
            self._enters = tuple(torch.empty_like(tensor, device=device) for tensor in given)
        for home, tensor in zip(self._enters, given, strict=True):
            # From pinned memory the device would read later than the caller may write there again.
            home.copy_(tensor, non_blocking=not tensor.is_pinned())

    def _entered(self) -> tuple[Value, Tensor]:
        """Return the micro-batch that was copied."""
        *streams, target = self._enters
        return tuple(streams), target

    def _first(self, number: int) -> int:
        """The first step of its phase, recorded. Returns the number of the micro-batch whose loss it gave."""
        pipeline, phase = self._pipeline, number % self.period
        pipeline._look_at_losses()
        heads: list[int] = []
        self._homes.tick = number
        with without_looking(pipeline, heads), self._settling(self._conductor):
            self._recordings[phase] = self._record(self._whole_step)
        self._states[phase] = [as_left(worker, number, pipeline.accumulation) for worker in pipeline._workers]
        return heads[-1]

    def _whole_step(self) -> None:
        """Do all that is recorded."""
        assert self._batch is not None
        loss = self._pipeline.step(*self._batch())
        assert loss is not None
        self._homes.fixed("loss", loss)

    @contextlib.contextmanager
    def _settling(self, conductor: InOrder) -> Iterator[None]:
        """Context in which every action puts at home what it has made, where and when `conductor` has it done.

        The deepest stages are first: their kernels leave most of a device idle, and larger ones can fill that.
        """
        pipeline = self._pipeline
        before, in_turn = pipeline.conductor, pipeline._in_turn
        pipeline.conductor, pipeline._in_turn = _Settling(conductor, self._settle), in_turn[::-1]
        # Of merged blocks most results stay within the stage, and what is narrowed is sent as another tensor.
        at_home = [
            (worker, worker.stage)
            for worker in pipeline._workers
            if isinstance(worker.stage, ReversibleStage) and pipeline.method.pipelined and worker._message_dtype is None
        ]
        for worker, stage in at_home:
            stage.combine = partial(self._combined, worker)
        try:
            yield
        finally:
            pipeline.conductor, pipeline._in_turn = before, in_turn
            for _, stage in at_home:
                stage.combine = combined

    def _combined(
        self, worker: Worker, name: str, operation: Callable[..., Tensor], left: Tensor, right: Tensor
    ) -> Tensor:
        """The result of an addition of a worker's coupling, at once at home if it will be sent."""
        if name == "input" and not worker._hand_down:
            return combined(name, operation, left, right)
        return self._homes.combined(worker.index, name, operation, left, right)

    def _settle(self, worker: Worker, action: Action, new: Sent) -> Sent:
        """Put at home what outlives the tick, of what an action of a worker has made and of what the worker keeps.

        Returns:
            The messages of the action, `new`, as they are to be sent.

        """
        homes = self._homes
        if action.kind is Kind.BACKWARD:
            for parameter in worker._parameters:
                if parameter.grad is not None and self._pipeline.accumulation > 1:  # else the update takes it at once
                    parameter.grad = homes.fixed(parameter, parameter.grad)
        if not self._pipeline.method.pipelined:  # nothing else is left when the step is over
            return new
        if action.kind is Kind.FORWARD:
            for number, part in enumerate(worker.parts):
                for place, entry in enumerate(part._memory):
                    if place > 0:  # the oldest goes in this tick, in the head it is the only one
                        needed = place + 2  # the backward hands it down, and the stage below a part of it once more
                        entry.kept = homes.lasting((worker.index, number, place), entry.kept, needed)
            for name, inbox in worker._inboxes():  # targets wait, and before and after stages with replicas all do
                for place in range(int(name == "from_above"), len(inbox)):  # whose oldest goes in this tick too
                    inbox[place] = self._message_at_home((worker.index, name, place), inbox[place], place + 2)
        return [(stage, self._message_at_home((worker.index, action.kind), message, 3)) for stage, message in new]

    def _message_at_home(self, key: Hashable, message: Message, needed: int) -> Message:
        """The message where it can be read for as many ticks, if a home can have so many places (`Homes.lasting`)."""
        streams, gradients = (
            None if given is None else self._homes.lasting((key, name), given, needed)
            for name, given in (("streams", message.streams), ("gradients", message.gradients))
        )
        return Message(message.micro_batch, streams, gradients)

    def _advance(self, number: int) -> int:
        """Advance the numbers by a step. Returns that of the micro-batch whose loss the step gave."""
        pipeline = self._pipeline
        pipeline.micro_batches += 1
        ticks = [pipeline._clock.tick(enter=True)]
        while not pipeline._clock.may_enter:
            ticks.append(pipeline._clock.tick(enter=False))
        for recording in pipeline._recordings:
            recording.ticks.extend(ticks)
        pipeline._deferred = partial(self._restore, number)
        return next(a.number for tick in ticks for a in tick[-1] if a.kind is Kind.FORWARD)

    def _restore(self, number: int) -> None:
        """Give the workers what they have after step `number`, which was a repetition."""
        for restore in self._states[number % self.period]:
            restore(number)


class _Settling(InOrder):
    """Has a conductor do the actions, each with what `settle` has to do after it."""

    def __init__(self, conductor: InOrder, settle: Callable[[Worker, Action, Sent], Sent]) -> None:
        self._conductor = conductor
        self._settle = settle

    def tick(self) -> contextlib.AbstractContextManager[None]:
        return self._conductor.tick()

    def run(self, act: Act, worker: Worker, action: Action, sent: Sent, trace: Trace | None) -> Tensor | None:
        def settled(worker: Worker, action: Action, sent: Sent) -> Tensor | None:
            new: Sent = []
            result = act(worker, action, new)
            sent += self._settle(worker, action, new)
            return result

        return self._conductor.run(settled, worker, action, sent, trace)


def _in_flight(pipeline: Pipeline) -> Iterator[Tensor]:
    """What is kept and what is on its way between steps."""
    for worker in pipeline._workers:
        for part in worker.parts:
            for entry in part._memory:
                yield from entry.kept
        for _, inbox in worker._inboxes():
            for message in inbox:
                yield from message.tensors


def as_left(worker: Worker, number: int, k: int) -> Callable[[int], None]:
    """What gives a worker all that it has now, after step `number`, when that step has been repeated as another one.

    The tensors are where they are now, since there the step writes them; the numbers grow with that of the step.
    """
    inboxes = [(inbox, list(inbox)) for _, inbox in worker._inboxes()]
    memories = [(part, list(map(replace, part._memory))) for part in worker.parts]
    gradients = [parameter.grad for parameter in worker._parameters]
    held = payload(gradient for gradient in gradients if gradient is not None)
    version = worker.version

    def restore(again: int) -> None:
        steps, updates = again - number, (again - number) // k
        worker.version = version + updates
        for inbox, messages in inboxes:
            for place, message in enumerate(messages):
                inbox[place] = replace(message, micro_batch=message.micro_batch + steps)
        for part, entries in memories:
            part._memory = deque(
                replace(entry, micro_batch=entry.micro_batch + steps, version=entry.version + updates)
                for entry in entries
            )
        for parameter, gradient in zip(worker._parameters, gradients, strict=True):
            parameter.grad = gradient
        for part in worker.parts:
            part.adopt_gradients()
        worker.ledger.set("gradients", held)

    return restore


def _check(pipeline: Pipeline) -> None:
    """See that ticks of the pipeline can be recorded. Raises: UnrecordableError: they cannot."""
    method = pipeline.method
    if method.pipelined and (method.keeps_graph or method.stashes_weights):
        raise UnrecordableError(
            f"ticks of {method} cannot be recorded: it holds graphs or weights of several micro-batches, which have no "
            f"fixed place; PETRA, DSP and the methods that let one micro-batch pass at a time can"
        )
    if any(worker.corrector or worker.predicts for worker in pipeline._workers):
        raise UnrecordableError(
            "a correction for delay, or a prediction of weights, follows the stage's count of updates, which a "
            "recorded tick does not see; take plain steps"
        )
    if method.overlapped or pipeline._channel is not None:
        raise UnrecordableError(
            f"ticks are recorded of one process that works in order; {method} or a channel is in the way"
        )
    if pipeline.trace is not None or any(w._before_update or w._after_backward for w in pipeline._workers):
        raise UnrecordableError(
            "hooks and traces are called by Python, which a recorded tick does without; take them off"
        )
    if any(type(optimizer) is not torch.optim.SGD for optimizer in pipeline.optimizers):
        kinds = ", ".join(sorted({type(optimizer).__name__ for optimizer in pipeline.optimizers}))
        raise UnrecordableError(f"recorded ticks update by torch.optim.SGD, which has a fused form; got {kinds}")


def _is_full(pipeline: Pipeline) -> bool:
    """Whether all of the pipeline's ticks from now on are alike, but for who updates."""
    full = not pipeline.method.pipelined or pipeline.in_flight == pipeline.depth
    return full and all(worker.version for worker in pipeline._workers)


def _check_draws_nothing(pipeline: Pipeline) -> None:
    # Not what is kept of micro-batches in flight: of those that pass one at a time nothing is, between steps.
    drawing = [worker.index for worker in pipeline._workers if any(stream.ever_drawn for stream in worker._streams)]
    if drawing:
        raise UnrecordableError(
            f"stages {drawing} draw random numbers (dropout), and a backward could not draw those of its forward again "
            f"without asking the generator for its state, which a recorded tick cannot; set dropout to 0"
        )


@contextlib.contextmanager
def without_looking(pipeline: Pipeline, heads: list[int]) -> Iterator[None]:
    """Context in which a tick asks nothing of the device: neither losses nor states of random generators."""
    losses, pipeline._losses = pipeline._losses, _Unseen(heads)
    streams = [worker._streams for worker in pipeline._workers]
    for worker in pipeline._workers:
        worker._streams = [_Still()]
    try:
        yield
    finally:
        pipeline._losses = losses
        for worker, worker_streams in zip(pipeline._workers, streams, strict=True):
            worker._streams = worker_streams


class _Unseen(finite.PendingLosses):
    """Losses that nobody may look at yet; `numbers` receives those of their micro-batches."""

    def __init__(self, numbers: list[int]) -> None:
        super().__init__(())
        self._numbers = numbers

    def add(self, micro_batch: int, loss: Tensor, *, in_forward: bool = True) -> None:
        del loss, in_forward
        self._numbers.append(micro_batch)


class _Still(RandomStream):
    """A stream that nobody draws from."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), None, 0)

    def __enter__(self) -> None:
        """Ask nothing of a generator."""

    def __exit__(self, *error: object) -> None:
        """Ask nothing of a generator."""


class OverStreams(InOrder):
    """Puts the work of a tick into CUDA streams: a branch for each stage's F, and one for its R, B and U.

    All branches begin together, and the tick ends with all. Between them only U waits for F, whose weights it changes.
    The head has one branch, since its B differentiates its F, and so has a stage with buffers that an evaluation may
    write (`Worker.forward_apart`). Branch n is in stream n mod the number of streams, the deepest stages' first.

    F and R of a stage evaluate the same function, so each convolution could be one over both micro-batches. Of
    the 280 operations of RevNet-18, views not counted, that would save at most the 20 convolutions and 17 ReLUs of R.
    But BatchNorm is of each micro-batch alone, and to join its two results again is an operation for each of its 20
    layers; and F would no longer be beside B. So there are two.

    Only within a recorded tick, where all that goes from stage to stage lies at home: elsewhere the allocator could
    give away a message's memory while another stream still reads it.

    Args:
        streams: at least one; 2 J - 1 are enough for all branches.
        stages: J.

    """

    def __init__(self, streams: Sequence[torch.cuda.Stream], stages: int) -> None:
        self._streams = streams
        self._last = stages - 1
        self._forwards: dict[int, torch.cuda.Event] = {}  # of each stage the end of its F

    @contextlib.contextmanager
    def tick(self) -> Iterator[None]:
        caller = torch.cuda.current_stream(self._streams[0].device)
        for stream in self._streams:
            stream.wait_stream(caller)
        yield
        for stream in self._streams:
            caller.wait_stream(stream)

    def run(self, act: Act, worker: Worker, action: Action, sent: Sent, trace: Trace | None) -> Tensor | None:
        apart = action.kind is Kind.FORWARD and worker.forward_apart
        branch = 2 * (self._last - worker.index) - apart
        stream = self._streams[branch % len(self._streams)]
        with torch.cuda.stream(stream):
            if action.kind is Kind.UPDATE:
                stream.wait_event(self._forwards[worker.index])
            result = super().run(act, worker, action, sent, trace)
            if action.kind is Kind.FORWARD:
                self._forwards[worker.index] = stream.record_event()
        return result


def cuda_device(pipeline: Pipeline) -> torch.device:
    """Return the CUDA device of all stages. Raises: UnrecordableError: they are elsewhere, or on several devices."""
    devices = {worker.device for worker in pipeline._workers}
    device = min(devices, key=str)
    if len(devices) > 1 or device.type != "cuda":
        raise UnrecordableError(
            f"a CUDA graph needs all stages on one CUDA device, they are on {', '.join(sorted(map(str, devices)))}"
        )
    return device


def cuda(pipeline: Pipeline, *, streams: int | None = None) -> CapturedTicks:
    """Return the pipeline's ticks as CUDA graphs of its device.

    Args:
        pipeline: to be recorded.
        streams: number of CUDA streams; more than 2 J - 1 stay empty. None: 2 J - 1, one for each branch. An even
            number puts all F into one half of the streams, and R, B and U, which take three times as long, into the
            other. A method that lets one micro-batch pass at a time has one stream, since its stages wait for one
            another in any case.

    Raises:
        UnrecordableError: the stages are not all on one CUDA device, or `CapturedTicks` has a reason to refuse.
        ValueError: there is no stream.

    """
    device = cuda_device(pipeline)
    if streams is None:
        streams = 2 * len(pipeline.stages) - 1
    if streams < 1:
        raise ValueError(f"stages run in at least one stream, got streams={streams}")
    conductor = None
    if streams > 1 and pipeline.method.pipelined:
        conductor = OverStreams([shared_stream(device, 1 + n) for n in range(streams)], len(pipeline.stages))
    return CapturedTicks(pipeline, recorder(device), conductor)


def recorder(device: torch.device) -> Record:
    """What records as CUDA graphs of `device`, all of which share their memory.

    What it is given must have been done in this process before, and more than once (see `CapturedTicks`). A graph has
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
