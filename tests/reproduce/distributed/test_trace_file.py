"""Test `train --trace`: a Chrome trace of the full pipeline."""

import json
from pathlib import Path

import pytest

from reproduce.distributed import trace_file
from reproduce.distributed.group import SINGLE_PROCESS
from reproduce.distributed.trace_file import TraceFile
from reproduce.distributed.tracing import TracingExecutor
from reproduce.records.storage import StorageFullError
from tests import toys
from tests.compare import assert_bitwise_equal
from tests.processes import Start, call, reproduce

STAGES, TRACED = 4, 5
OPTIONS = [
    *("train", "--model", "chain2", "--stem", "stride2", "--width", "2", "--batch-size", "64", "--epochs", "1"),
    *("--threads", "1", "-k", "2", "--learning-rate", "0.02"),
]


def test_trace_starts_in_full_pipeline(tmp_path: Path) -> None:
    """The trace begins when the pipeline is full."""
    file = tmp_path / "deeper" / "trace.json"
    words = ("--trace", file, "--trace-micro-batches", TRACED)
    call(*OPTIONS, "--output", tmp_path / "run", *words, code=0)
    events = json.loads(file.read_text())["traceEvents"]
    first = 2 * STAGES
    assert [event["name"] for event in events if (event["cat"], event["args"]["stage"]) == ("F", 0)] == [
        f"F{m}" for m in range(first, first + TRACED)
    ]
    assert sum(event["cat"] == "B" for event in events) == STAGES * TRACED


def test_tracing_stops_when_the_file_is_written_and_changes_nothing(tmp_path: Path) -> None:
    """Otherwise it would stay in memory until the end of the run."""
    plain, pipeline = (toys.pipeline(toys.network(3), seed=1) for _ in range(2))
    file, traced = TraceFile(tmp_path / "trace.json", 2, SINGLE_PROCESS), []
    for x, y in toys.batches(12):
        plain.step(x, y)
        file.before_step(pipeline)
        traced.append(isinstance(pipeline.executor, TracingExecutor))
        pipeline.step(x, y)
    assert traced.count(True) == 2
    assert not traced[-1]
    assert_bitwise_equal(pipeline.state_dict(), plain.state_dict())


def test_short_run_writes_partial_trace_or_a_notice(tmp_path: Path) -> None:
    """A shorter run writes the events until its end, or states that nothing was traced."""
    file = tmp_path / "trace.json"
    call(*OPTIONS, "--output", tmp_path / "run", "--trace", file, "--trace-micro-batches", 1000, code=0)
    numbers = {event["args"]["micro_batch"] for event in json.loads(file.read_text())["traceEvents"]}
    assert max(numbers) == 1797 * 4 // 5 // 64 - 1  # the last complete micro-batch of the training set
    more = ("--batch-size", "600", "--output", str(tmp_path / "short"), "--trace", str(tmp_path / "none.json"))
    outcome = call(*OPTIONS, *more, code=0)
    assert "--trace: nothing was traced: the run ended before its pipeline was full" in outcome.output
    assert not (tmp_path / "none.json").exists()


@pytest.mark.slow
def test_several_processes_write_one_trace(tmp_path: Path, start: Start) -> None:
    """The stages of several processes are in one trace file, with their waits."""
    file = tmp_path / "trace.json"
    sharing = ("--processes", "2", "--partition", "2,2")
    more = ("--output", str(tmp_path / "run"), "--trace", str(file), "--trace-micro-batches", "3")
    start(reproduce, *OPTIONS, *sharing, *more).stderr()
    events = json.loads(file.read_text())["traceEvents"]
    assert {(event["tid"], event["args"]["stage"]) for event in events} == {(0, 0), (0, 1), (1, 2), (1, 3)}
    waits = {event["args"]["micro_batch"] for event in events if event["cat"] == "wait"}
    assert waits == {
        event["args"]["micro_batch"] for event in events if (event["cat"], event["args"]["stage"]) == ("F", 0)
    }


def test_unwritable_trace_does_not_stop_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the trace cannot be written, training completes with a warning."""

    def full(*_: object) -> None:
        raise StorageFullError(28, "no room to write the trace")

    monkeypatch.setattr(trace_file, "write_json", full)
    more = ("--output", str(tmp_path / "run"), "--trace", str(tmp_path / "trace.json"))
    outcome = call(*OPTIONS, *more, code=0)
    assert "WARNING: --trace: no trace was written" in outcome.output
    assert (tmp_path / "run" / "result.json").exists()
