"""Test that a trace has the executed actions with consistent times, and that tracing changes no results."""

import platform
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from petra_core import Pipeline, methods
from petra_core.distributed import ProcessChannel
from petra_core.messages import Message
from petra_core.methods import Method
from petra_core.tape import Tape
from reproduce.distributed import tracing as tracing_module
from reproduce.distributed.processes import gather_json
from reproduce.distributed.tracing import WAIT, gather_events, make_timeline, tracing
from tests import toys
from tests.compare import assert_bitwise_equal
from tests.processes import in_processes

SLOW = 0.01  # least seconds of an evaluation


def make(method: Method, channel: ProcessChannel | None = None) -> Pipeline:
    return Pipeline(toys.network(3), method, accumulation=2, optimizer=toys.sgd, seed=7, channel=channel)


@pytest.mark.parametrize("method", [methods.BACKPROPAGATION, methods.PETRA], ids=str)
def test_trace_has_executed_schedule_and_changes_nothing(method: Method) -> None:
    """A trace has the executed actions in order, and tracing leaves losses and states bitwise equal."""
    plain, traced = make(method), make(method)
    data = toys.batches(8)
    expected = toys.train(plain, data)
    with traced.recording() as recording, tracing(traced) as trace:
        assert toys.train(traced, data) == expected
        with pytest.raises(RuntimeError, match="being traced already"), tracing(traced):
            pass
    assert_bitwise_equal(traced.state_dict(), plain.state_dict())
    for stage in range(3):
        done = [f"{event.name[0]}{event.name[2]}" for event in trace.events if event.name[1] == stage]
        assert done == [str(a) for at, a in recording if at == stage and a.kind.value != "R"]
    recorded = make_timeline(trace.events)
    assert min(event.begin for event in recorded.events) == 0
    ends = [0.0, *(event.end for event in recorded.events)]
    assert all(event.begin >= end for event, end in zip(recorded.events, ends, strict=False))
    assert 0 < recorded.busy(0) <= recorded.seconds
    assert recorded.seconds_per_micro_batch() > 0
    before = len(trace.events)
    toys.train(traced, data)
    assert len(trace.events) == before, "nothing is traced outside the context"
    assert make_timeline([]).seconds == 0


@pytest.mark.parametrize("dropout", [0.0, 0.5], ids=["in two threads", "in one"])
def test_concurrent_reconstruction_is_event_of_its_stage(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its event once lasted until the next action ended, which belongs to another stage, or was missing."""
    stages = toys.network(4, dropout=dropout)
    pipeline = Pipeline(stages, methods.PAREPROP, optimizer=toys.sgd, seed=7)
    reconstruct = stages[1].reconstruct

    def slowly(*given: Any) -> Tape:
        time.sleep(SLOW)
        return reconstruct(*given)

    monkeypatch.setattr(stages[1], "reconstruct", slowly)
    with pipeline.recording() as recording, tracing(pipeline) as trace:
        toys.train(pipeline, toys.batches(2))
    for stage in range(4):
        done = [f"{event.name[0]}{event.name[2]}" for event in trace.events if event.name[1] == stage]
        assert done == [str(action) for at, action in recording if at == stage]
    assert all(event.end - event.begin >= SLOW for event in trace.events if event.name[:2] == ("R", 1))
    whole = make_timeline(trace.events)
    assert 0 < whole.busy(0) <= whole.seconds
    assert {event["tid"] for event in whole.chrome_trace()["traceEvents"] if event["cat"] == "R"} == {1}


def test_trace_on_gpu_waits_for_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that wait for their devices would wait for sends that the other one receives in a later step."""
    waits: list[str] = []
    stream = SimpleNamespace(synchronize=lambda: waits.append("stream"))
    moment = SimpleNamespace(record=lambda stream: None, elapsed_time=lambda later: 5.0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waits.append("device"))
    monkeypatch.setattr(tracing_module, "_event", lambda: moment)
    trace, gpu = tracing_module.Trace(), torch.device("cuda", 0)
    trace.begin(0, gpu)
    trace.end("F", 0, 0, gpu)
    assert [event.name for event in trace.events] == [("F", 0, 0)]
    assert waits == ["stream", "stream"]


DELAY = 0.05  # seconds


class Late(ProcessChannel):
    """A channel that delays every message."""

    def send(self, stage: int, message: Message) -> None:
        time.sleep(DELAY)
        super().send(stage, message)


def trace_two(rank: int) -> None:
    """Trace two ranks. In the second round, rank 1 pretends to be a machine whose clock is an hour ahead."""
    real_clocks = platform.node, time.perf_counter
    for other_machine in (False, True):
        if other_machine and rank:
            platform.node = lambda: "other"
            time.perf_counter = lambda: real_clocks[1]() + 3600
        # Do not compare the first micro-batches: ranks would wait for each other outside of any action.
        channel = (Late if rank == 0 else ProcessChannel)((2, 1), compare_every=None)
        pipeline = make(methods.PETRA, channel)
        pipeline.stages[1].function.register_forward_pre_hook(lambda *_: time.sleep(SLOW))
        with tracing(pipeline, rank) as trace:
            toys.train(pipeline, toys.batches(6))
        events = gather_events(trace, gather_json)
        channel.close()
        platform.node, time.perf_counter = real_clocks
        without_waits = make_timeline(events)
        assert {(event.device, event.name[1]) for event in without_waits.events} == {(0, 0), (0, 1), (1, 2)}
        at = {event.name: event for event in without_waits.events}
        for m in range(6):  # the backward includes its reconstruction, which is not waiting
            assert at["B", 1, m].end - at["B", 1, m].begin > SLOW
        tolerance = 0.02 if other_machine else 0.0  # seconds of a barrier
        for m in range(6):  # on one clock, a message arrives before it is used
            assert at["F", 2, m].begin + tolerance > at["F", 1, m].begin + DELAY
            assert at["B", 1, m].begin + tolerance > at["B", 2, m].begin
        waits = [event for event in events if event.name[0] == WAIT]
        # Most of the delay must appear as waiting of the receiving rank, not as its work.
        assert sum(event.end - event.begin for event in waits if event.device == 1) > 3 * DELAY
        assert without_waits.busy(1) < without_waits.busy(0)
        with_waits = make_timeline(events, waits=True)
        assert len(with_waits.events) == len(without_waits.events) + len(waits)
        assert {event["cat"] for event in with_waits.chrome_trace()["traceEvents"]} == {"F", "B", "U", "wait"}


@pytest.mark.slow
def test_traces_of_processes_share_one_clock() -> None:
    """Traces of two ranks are put on one clock, even if their clocks differ by an hour."""
    in_processes(2, trace_two)
