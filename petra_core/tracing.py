"""What a run really did, with times, in the form in which `petra_core.prediction.simulation` predicts it.

A profiler shows kernels and Python frames, in which a schedule is hard to find again, and slows what it watches. Here a
pipeline that is traced notes when each action of the schedule begins and ends, and how long it waited for messages;
one that is not traced has one comparison with None an action more to do. Results do not change by it.

    with pipeline.tracing() as trace:
        for x, y in batches:
            pipeline.step(x, y)
    timeline([trace]).chrome_trace()

On the CPU times are those of `time.perf_counter`. On a GPU the host runs ahead, so events are put into the stream and
read when the trace is asked for its times: nobody waits for anything before that. Reconstructing a graph (R) is counted
to the backward that it is for, as in the model; so is the time in which a message is handed over to be sent. Under a
method that overlaps (PAREPROP) it is an event of its own, at the same time as the backward of the stage above.

The processes of one machine share a clock on Linux. Over several machines clocks differ: `gathered` compares them at a
barrier, which is right to within the time that a barrier takes.
"""

import contextlib
import platform
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from petra_core.schedule import Kind
from petra_core.timeline import Event, Timeline

__all__ = ["WAIT", "Trace", "gathered", "timeline"]

WAIT = "wait"  # the kind of an event in which a stage waited for messages; its number is that of the step

Moment = float | torch.cuda.Event


class Trace:
    """The actions of one process, in the order in which it did them.

    Args:
        device: number of the process among the devices of the timeline: its rank.
        overlapped: whether reconstructions are done apart from the backwards that they are for.

    """

    def __init__(self, device: int = 0, *, overlapped: bool = False) -> None:
        self.device = device
        self._overlapped = overlapped
        self._begun: dict[int, Moment] = {}  # by stage
        self._spans: list[tuple[str, int, int, torch.device, Moment, Moment]] = []
        self._zeros: dict[torch.device, tuple[float, torch.cuda.Event]] = {}  # host time and event of one moment

    def begin(self, stage: int, where: torch.device) -> None:
        """Note that a stage begins something on device `where`; a reconstruction that is under way goes on."""
        if stage not in self._begun:
            self._begun[stage] = self._now(where)

    def end(self, kind: str, stage: int, number: int, where: torch.device) -> None:
        """Note that what a stage has begun ends, and its kind; a reconstruction goes on, unless it is done apart."""
        if kind != Kind.RECONSTRUCT.value or self._overlapped:
            self._spans.append((kind, stage, number, where, self._begun.pop(stage), self._now(where)))

    @contextlib.contextmanager
    def waiting(self, stage: int, step: int, where: torch.device) -> Iterator[None]:
        """Note that inside messages are waited for, also between a reconstruction and its backward."""
        begun = self._now(where)
        yield
        self._spans.append((WAIT, stage, step, where, begun, self._now(where)))

    @property
    def events(self) -> list[Event]:
        """All that was done, and the times in which messages were waited for; waits for the device to have done it."""
        for device in self._zeros:
            torch.cuda.synchronize(device)
        return [
            Event(self.device, (kind, stage, number), self._seconds(where, begin), self._seconds(where, end))
            for kind, stage, number, where, begin, end in self._spans
        ]

    def _now(self, where: torch.device) -> Moment:
        if where.type != "cuda":
            return time.perf_counter()
        if where not in self._zeros:
            torch.cuda.synchronize(where)  # once, so that the event is of the moment at which the clock is read
            zero = _event()
            zero.record(torch.cuda.current_stream(where))
            self._zeros[where] = time.perf_counter(), zero
        moment = _event()
        moment.record(torch.cuda.current_stream(where))
        return moment

    def _seconds(self, where: torch.device, moment: Moment) -> float:
        if isinstance(moment, float):
            return moment
        clock, zero = self._zeros[where]
        return clock + 1e-3 * float(zero.elapsed_time(moment))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def timeline(traces: Sequence[Trace], *, waits: bool = False) -> Timeline:
    """The traces of all processes as one timeline, which begins at 0.

    Args:
        traces: of each process one.
        waits: whether to have the waiting for messages in it too. It is no work: measures of the timeline, such as its
            bubble, would count it as such.

    """
    events = [event for trace in traces for event in trace.events if waits or event.name[0] != WAIT]
    start = min((event.begin for event in events), default=0.0)
    events.sort(key=lambda event: (event.device, event.begin, event.end))
    return Timeline(
        tuple(Event(event.device, event.name, event.begin - start, event.end - start) for event in events),
        max((trace.device for trace in traces), default=-1) + 1,
    )


def gathered(trace: Trace) -> list[Trace]:
    """Every rank's trace, on all ranks of torch.distributed's default group; all call it at the same point.

    Traces of other machines are put on the clock of rank 0's.
    """
    dist.barrier()
    mine = (platform.node(), time.perf_counter(), trace.device, trace.events)
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, mine)
    first_machine, first_clock, _, _ = everybody[0]
    return [
        _read(device, events, 0.0 if machine == first_machine else first_clock - clock)
        for machine, clock, device, events in everybody
    ]


def _read(device: int, events: Sequence[Event], shift: float) -> Trace:
    trace = Trace(device)
    cpu = torch.device("cpu")
    trace._spans = [(*event.name, cpu, event.begin + shift, event.end + shift) for event in events]
    return trace
