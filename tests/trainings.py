"""Train cells for tests: stop them, resume them, and compare everything that they record except times."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from petra_core import checkpoint
from reproduce.measures.context import Context, Observer, Stopped
from reproduce.measures.run_options import RunOptions
from reproduce.records.record import Record, Status, scan
from reproduce.running.execution import execute
from reproduce.running.grid_options import GridOptions
from reproduce.running.messages import Progress
from reproduce.running.worker import work
from tests.compare import assert_bitwise_equal

TIMES = ("train_seconds", "evaluation_seconds", "images_per_second")


class StopAfter(Observer):
    """Request a stop after a number of ticks."""

    def __init__(self, ticks: int) -> None:
        self.left = ticks

    def tick(self, done, total, loss):
        self.left -= 1

    def should_stop(self) -> bool:
        return self.left <= 0


class Notices(Observer):
    """Collect the notices."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)


def run(cell, folder, **chosen):
    """Run a cell. Keywords are options of the context or of `RunOptions`."""
    options = {field.name: chosen.pop(field.name) for field in dataclasses.fields(RunOptions) if field.name in chosen}
    record = Record(folder, cell)
    state = execute(record, Context(options=RunOptions(**options), model_file=folder / "model.pt", **chosen))
    return record, state


def stop_after(ticks, folder, cell, match=None, **chosen):
    stop = StopAfter(ticks)
    with pytest.raises(Stopped, match=match):
        run(cell, folder, observer=stop, should_stop=stop.should_stop, **chosen)


def without_times(values):
    return {key: value for key, value in values.items() if key not in TIMES}


def recorded(folder):
    """Return everything in a finished record except times."""
    metrics = [without_times(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return metrics, without_times(json.loads((folder / "result.json").read_text()))


def records(root):
    """Return the content of the finished records of a grid, by name."""
    runs = [run for run in scan(root).records if run.state.final]
    return {run.cell.name: ([*map(without_times, run.metrics)], without_times(run.result)) for run in runs}


def outcome(folder):
    """Return everything in a finished record except times, and the bytes of the weights."""
    weights = torch.load(folder / "model.pt", weights_only=True)
    return *recorded(folder), {name: tensor.numpy().tobytes() for name, tensor in weights.items()}


def assert_stops_change_no_bit(stops, cell, folder, whole=None, **chosen):
    """Run a cell, stopped after these ticks, and compare it with an uninterrupted run.

    That run is made if its folder `whole` is not given.
    """
    if whole is None:
        whole = folder / "whole"
        assert run(cell, whole, **chosen)[1].status is Status.DONE
    for before, ticks in itertools.pairwise((0, *stops)):
        stop_after(ticks - before, folder / "parts", cell, f"micro-batch {ticks} of", **chosen)
        assert not (folder / "parts" / "result.json").exists()
    run(cell, folder / "parts", **chosen)
    assert outcome(folder / "parts") == outcome(whole)


def reports(cells, root, should_stop=lambda: False, **options):
    """Return the reports of one worker in this process, without its progress."""
    messages = []
    settings = GridOptions(root=root, jobs=1, data_root=root / "data", **options)
    work(cells, settings, messages.append, should_stop, torch.device("cpu"), [settings.retry_failed] * len(cells))
    return [message for message in messages if not isinstance(message, Progress)]


def kinds(messages):
    """Return the type of each message and the index of its cell."""
    return [(type(message), message.index) for message in messages]


def weights_and_metrics(folder: Path) -> tuple[Any, Any]:
    """Return weights, and metrics without times and peak bytes.

    A process counts a message from another one when it takes it, so fewer wait in its inbox.
    """
    metrics = [{name: value for name, value in line.items() if name != "peak_bytes"} for line in recorded(folder)[0]]
    return checkpoint.load(folder / "model.pt"), metrics


def assert_same_training(output: Path, expected: tuple[Any, Any]) -> None:
    weights, metrics = weights_and_metrics(output)
    assert_bitwise_equal(weights, expected[0])
    assert metrics == expected[1]
    assert not (output / "checkpoint").exists()
    assert not (output / "checkpoint.pt").exists()
