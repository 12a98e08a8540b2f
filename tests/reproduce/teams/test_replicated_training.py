"""`train --partition 3x2,3`: stages over processes that take turns, killed and gone on with, to the same bits."""

import json
import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from reproduce.commands.cli import main
from reproduce.records.record import Record
from tests.compare import assert_bitwise_equal
from tests.processes import children, wait_for
from tests.reproduce.teams.test_launch import OPTIONS, Start, outcome, start

__all__ = ["start"]  # the fixture

REPLICATED = (*OPTIONS, "--processes", "3", "--partition", "3x2,3")


@pytest.mark.slow
def test_two_processes_that_take_turns_go_on_after_a_kill_and_end_the_same(tmp_path: Path, start: Start) -> None:
    trace = tmp_path / "trace.json"
    undisturbed = start("train", *REPLICATED, "--output", str(tmp_path / "a"), "--trace", str(trace))
    text = undisturbed.said()
    assert undisturbed.returncode == 0, text
    assert text.count("epoch 3/3") == 1, "one of the processes reports"
    process = start("train", *REPLICATED, "--output", str(tmp_path / "b"))
    wait_for((tmp_path / "b" / "checkpoint" / "latest.json").exists)
    os.kill(children(process.pid)[1], signal.SIGKILL)
    text = process.said()
    assert process.returncode == 0, text
    assert "all start again from the last checkpoint (1 of 3)" in text
    (weights, metrics), (others, other_metrics) = outcome(tmp_path / "a"), outcome(tmp_path / "b")
    assert_bitwise_equal(weights, others)
    assert metrics == other_metrics
    assert metrics[-1]["train_loss"] < metrics[0]["train_loss"]
    record = Record.load(tmp_path / "a")
    assert record.cell.to_dict()["stage_replicas"] == (2, 2, 2, 1, 1, 1)
    [environment] = record.environments()
    assert (environment["partition"], environment["part_replicas"]) == ([3, 3], [2, 1])
    events = json.loads(trace.read_text())["traceEvents"]
    forwards = {(e["tid"], e["args"]["micro_batch"] % 2) for e in events if e["cat"] == "F" and e["args"]["stage"] < 3}
    assert forwards == {(0, 0), (1, 1)}, "each of the first two processes has its own micro-batches"
    assert {e["tid"] for e in events if e["cat"] == "U" and e["args"]["stage"] == 0} == {0, 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--partition", "3x2,3"), "are for 3 ranks, and there are 1"),
        (("--processes", "3", "--partition", "3x2,3", "-k", "3"), "2 replicas share the k=3 micro-batches"),
        (("--processes", "3", "--partition", "3x2,3", "--method", "backpropagation"), "one micro-batch pass at a time"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_starts(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    said = CliRunner().invoke(main, ["train", *OPTIONS, "--output", str(tmp_path / "run"), *arguments])
    assert said.exit_code != 0
    assert message in " ".join(said.output.split())
    assert not (tmp_path / "run").exists()
