"""Record when a run executes its actions, as a timeline that can be compared with a simulated one.

A profiler shows kernels and Python frames, which are hard to map to a schedule, and slows the run. A traced pipeline
records the begin and end of each action of the schedule, and the time that it waits for messages. Tracing wraps the
pipeline's executor, so a pipeline that is not traced has no overhead. Tracing does not change results.

    with tracing(pipeline) as trace:
        for x, y in batches:
            pipeline.step(x, y)
    make_timeline(trace.events).chrome_trace()

On the CPU, times come from `time.perf_counter`. On a GPU the host runs ahead, so the trace records CUDA events and
reads them only when its times are requested. It does not synchronise before that, except once at the beginning. Both
times it waits for the current stream and not for the device, where a send may end only after a later step of another
process, which may be waiting for this one. As in the simulation
(`reproduce.modelling.simulation`), a reconstruction (R) counts as part of its backward, and so does the time to start
sending a message. In a method that overlaps reconstructions (PAREPROP), they are separate events, concurrent with the
backward of the stage above.

The processes of one Linux machine share a clock. The clocks of several machines differ: `gather_events` aligns them at
a barrier, which is accurate to within the duration of the barrier.
"""

import contextlib
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from petra_core.devices.execution import Act, Sent, SequentialExecutor
from petra_core.pipeline import Pipeline
from petra_core.staleness import Action, Kind
from petra_core.worker import Worker
from reproduce.drawing.timeline import Event, Timeline

__all__ = ["WAIT", "Trace", "TracingExecutor", "gather_events", "make_timeline", "tracing"]

WAIT = "wait"  # kind of an event in which a stage waits for messages; the event's number is the step

Moment = float | torch.cuda.Event


class Trace:
    """Actions of one process, in the order of execution.

    Args:
        device: Index of the process among the devices of the timeline, which is its rank.
        overlapped: Whether reconstructions run separately from their backwards.

    """

    def __init__(self, device: int = 0, *, overlapped: bool = False) -> None:
        self.device = device
        self._overlapped = overlapped
        self._begun: dict[int, Moment] = {}  # by stage
        self._spans: list[tuple[str, int, int, torch.device, Moment, Moment]] = []
        self._zeros: dict[torch.device, tuple[float, torch.cuda.Event]] = {}  # simultaneous host time and event

    def begin(self, stage: int, where: torch.device) -> None:
        """Record that a stage begins an action on device `where`, unless a reconstruction has already begun."""
        if stage not in self._begun:
            self._begun[stage] = self._now(where)

    def end(self, kind: str, stage: int, number: int, where: torch.device) -> None:
        """Record the end and the kind of a stage's action.

        A reconstruction does not end here but continues as part of its backward, unless `overlapped` is set.

        Args:
            kind: Kind of the action.
            stage: Index of the stage.
            number: Number of the micro-batch or update.
            where: Device of the stage.

        """
        if kind != Kind.RECONSTRUCT.value or self._overlapped:
            self._spans.append((kind, stage, number, where, self._begun.pop(stage), self._now(where)))

    @contextlib.contextmanager
    def waiting(self, stage: int, step: int, where: torch.device) -> Iterator[None]:
        """Record the duration of a context as a wait, which may be between a reconstruction and its backward."""
        begun = self._now(where)
        yield
        self._spans.append((WAIT, stage, step, where, begun, self._now(where)))

    @property
    def events(self) -> list[Event]:
        """All actions and waits. Reading this synchronises with the current streams."""
        for device in self._zeros:
            torch.cuda.current_stream(device).synchronize()
        return [
            Event(self.device, (kind, stage, number), self._seconds(where, begin), self._seconds(where, end))
            for kind, stage, number, where, begin, end in self._spans
        ]

    def _now(self, where: torch.device) -> Moment:
        if where.type != "cuda":
            return time.perf_counter()
        if where not in self._zeros:
            stream, zero = torch.cuda.current_stream(where), _event()
            stream.synchronize()  # once, so that the event and the host clock refer to the same time
            zero.record(stream)
            self._zeros[where] = time.perf_counter(), zero
        moment = _event()
        moment.record(torch.cuda.current_stream(where))
        return moment

    def _seconds(self, where: torch.device, moment: Moment) -> float:
        if isinstance(moment, float):
            return moment
        clock, zero = self._zeros[where]
        return clock + 1e-3 * float(zero.elapsed_time(moment))


class TracingExecutor(SequentialExecutor):
    """Executor that records the actions and waits of another executor.

    Args:
        executor: Executor of the actions.
        trace: Trace to record in.

    """

    def __init__(self, executor: SequentialExecutor, trace: Trace) -> None:
        self._executor, self._trace = executor, trace

    def together(self) -> contextlib.AbstractContextManager[None]:
        return self._executor.together()

    def waiting(self, worker: Worker, step: int) -> contextlib.AbstractContextManager[None]:
        return self._trace.waiting(worker.index, step, worker.device)

    def run(self, act: Act, worker: Worker, action: Action, sent: Sent) -> None:
        def run_traced(worker: Worker, action: Action, sent: Sent) -> None:
            self._trace.begin(worker.index, worker.device)
            act(worker, action, sent)
            self._trace.end(action.kind.value, worker.index, action.number, worker.device)

        self._executor.run(run_traced, worker, action, sent)


@contextlib.contextmanager
def tracing(pipeline: Pipeline, device: int = 0) -> Iterator[Trace]:
    """Record the times of all actions of a pipeline inside the context.

    Args:
        pipeline: The pipeline.
        device: Index of this process among the devices of the timeline, which is its rank.

    Raises:
        RuntimeError: If the pipeline is being traced already.

    """
    if isinstance(pipeline.executor, TracingExecutor):
        raise RuntimeError("this pipeline is being traced already: leave that context before another one is entered")
    before, trace = pipeline.executor, Trace(device, overlapped=pipeline.method.overlapped)
    pipeline.executor = TracingExecutor(before, trace)
    try:
        yield trace
    finally:
        pipeline.executor = before


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch gives it no types


def make_timeline(events: Sequence[Event], *, waits: bool = False) -> Timeline:
    """Combine the events of one trace, or of several processes, into one timeline, which begins at 0.

    Args:
        events: Events of a trace, or the result of `gather_events`.
        waits: Whether to include waits for messages. Measures of the timeline, such as its bubble, would count them as
            work.

    """
    chosen = [event for event in events if waits or event.name[0] != WAIT]
    start = min((event.begin for event in chosen), default=0.0)
    chosen.sort(key=lambda event: (event.device, event.begin, event.end))
    return Timeline(
        tuple(event._replace(begin=event.begin - start, end=event.end - start) for event in chosen),
        max((event.device for event in events), default=-1) + 1,
    )


def gather_events(trace: Trace, gather: Callable[[Any], list[Any]]) -> list[Event]:
    """Return the events of all processes, by `Group.gather`. All must call it.

    Times of other machines are converted to the clock of rank 0's machine.
    """
    gather(None)  # all read their clocks at the same time
    all_ranks = gather([platform.node(), time.perf_counter(), trace.events])
    first_machine, first_clock, _ = all_ranks[0]
    gathered: list[Event] = []
    for machine, clock, events in all_ranks:
        shift = 0.0 if machine == first_machine else first_clock - clock
        gathered += [Event(device, tuple(name), begin + shift, end + shift) for device, name, begin, end in events]
    return gathered
