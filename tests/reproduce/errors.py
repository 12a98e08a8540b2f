"""Write the error messages of wrong command lines and of wrong settings of cells to errors.txt.

    python -m tests.reproduce.errors

A case (see `tests/messages.py`) is a command line, a module of another program with options, `training` or `forward`
with changes of the settings of a cell in JSON, or `python` with an expression that uses the names of this module.
`record`, `measurement`, `benchmark` and `manifest` make such a record, change one of its files and read it. The change
is in JSON: an object with new values, a list of a text and its replacement, a text in place of the file's, or null to
remove the file. `cell` is no error: its message contains the settings that `train` with these options derives, and the
notes about them.
"""

# ruff: noqa: F401  # errors.txt uses the imported names
import contextlib
import importlib
import json
import re
import shlex
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import click
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from petra_core import BufferedStage, HeadStage, methods, models
from petra_core.prediction.partition import Cost
from reproduce.cells import catalogue, own
from reproduce.cells.kinds import Cell, CellError, from_dict
from reproduce.cells.rates import learning_rate
from reproduce.cells.timing import even_partition
from reproduce.commands.cli import main
from reproduce.commands.train import cell_by_hand
from reproduce.data import cifar, imagenet32, manifest
from reproduce.data.errors import DataError
from reproduce.data.sample_hash import sample_order
from reproduce.distributed.partitioning import parse_partition
from reproduce.forward_gradients import blocks
from reproduce.forward_gradients.settings import Derivative, ForwardGradient, Guess, Space, Target
from reproduce.forward_gradients.training import ForwardGradients
from reproduce.grids import recipes
from reproduce.measures.complexity import measure_complexity
from reproduce.modelling.simulation import make_schedule, simulate
from reproduce.models.bdia import BdiaStage, Quantise
from reproduce.models.invertible_revnet import invertible_revnet
from reproduce.models.permutation import PixelUnshuffleStage
from reproduce.models.revroberta import masked_cross_entropy, revroberta
from reproduce.models.revswin import revswin
from reproduce.models.revvit import revvit
from reproduce.models.sizes import HierarchicalSize, TransformerSize
from reproduce.models.vit import gpt
from reproduce.records import reading, results
from reproduce.records.benchmarks import Comparison, Series, write
from tests import fake_records, toys, transformers
from tests.example_cells import COMPLEXITY, FORWARD, LANGUAGE, PROBED, TRAINING
from tests.fake_data import ARRAYS, MANIFEST, batch_file
from tests.fake_records import benchmark, snapshot, with_slow
from tests.messages import message_of_expression, rewrite
from tests.own_networks import write_module

FILE = Path(__file__).with_name("errors.txt")
#: Functions that start the work of a command.
WORK = (
    "reproduce.running.runner.run_grid",
    "reproduce.commands.process.train_here",
    "reproduce.commands.train.launch",
    "reproduce.commands.partition.time_network",
)
CELLS = {"training": TRAINING, "forward": FORWARD}
ACTIVATIONS = ForwardGradient(space=Space.ACTIVATIONS)
FORWARD_MODE = ForwardGradient(space=Space.ACTIVATIONS, derivative=Derivative.JVP)
TWO = torch.randn(3, 2), torch.zeros(3, dtype=torch.int64)  # a micro-batch with two features


def build(function: str) -> None:
    """Build a network of a user's module, `users`."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(sys, "path", [folder, *sys.path]):
        write_module(Path(folder), "users")
        own.build(function)


def make_record(folder: Path) -> Path:
    return fake_records.in_folder(fake_records.train(recipes.cell("smoke"), folder, 90.0)).path


def make_measurement(folder: Path) -> Path:
    record = fake_records.begin(COMPLEXITY, folder)
    record.finish(measure_complexity(COMPLEXITY))
    return fake_records.in_folder(record).path


def make_benchmark(folder: Path) -> Path:
    return write(benchmark(), folder).parent


def make_manifest(folder: Path) -> Path:
    (folder / "cifar10").mkdir()
    (folder / "cifar10" / manifest.NAME).write_text(MANIFEST.to_json(), encoding="utf-8")
    return folder / "cifar10"


def message_of_damage(kind: str, name: str, change: Any) -> str:
    """Return the problem of a record or a data set after a change of one of its files, which must stay as it is."""
    with tempfile.TemporaryDirectory() as folder:
        file = DAMAGED[kind](Path(folder)) / name
        text = file.read_text(encoding="utf-8")
        match change:
            case None:
                file.unlink()
            case str():
                file.write_text(change, encoding="utf-8")
            case list():
                assert change[0] in text
                file.write_text(text.replace(*change), encoding="utf-8")
            case dict():
                file.write_text(json.dumps(json.loads(text) | change), encoding="utf-8")
        before = snapshot(Path(folder))
        if kind == "manifest":
            with pytest.raises(DataError) as caught:
                manifest.read(file.parent)
            message = str(caught.value)
        else:
            read = results.read(Path(folder))
            assert not read.runs
            assert not read.benchmarks
            [problem] = (*read.problems, *read.benchmark_problems)
            message = str(problem)
        assert snapshot(Path(folder)) == before
        return message.replace(f"{folder}/", "").replace(folder, ".")


def cell_of(options: str) -> tuple[Cell, str]:
    """Return the cell that `train` makes from these options, and what it has printed by then."""
    made: list[Cell] = []

    def stop(settings: dict[str, Any]) -> None:
        made.append(cell_by_hand(settings))
        raise click.UsageError("far enough")

    with mock.patch("reproduce.commands.train.cell_by_hand", stop):
        result = CliRunner().invoke(main, ["train", *shlex.split(options)])
    assert made, f"{options}: {result.output}"
    return made[0], result.stderr.partition("Usage: ")[0].strip()


def message_of_cell(options: str) -> str:
    """Return the settings that differ from those without any option."""
    (cell, notes), (default, _) = cell_of(options), cell_of("")
    values = default.to_dict()
    changes = {name: value for name, value in cell.to_dict().items() if name not in values or value != values[name]}
    return f"{json.dumps(changes)} {notes}".strip()


def message_of(case: str) -> str:
    """Return the message that a case ends with. It must leave no files.

    Raises:
        AssertionError: The case ends in another way than with an error of the user.

    """
    kind, _, changes = case.partition(" ")
    if kind == "python":
        return message_of_expression(changes, globals())
    if kind == "cell":
        return message_of_cell(changes)
    if kind in DAMAGED:
        name, _, change = changes.partition(" ")
        return message_of_damage(kind, name, json.loads(change))
    if kind in CELLS:
        try:
            from_dict(CELLS[kind].to_dict() | json.loads(changes))
        except CellError as error:
            return str(error)
        raise AssertionError(f"{case}: the settings are accepted")
    started = AssertionError(f"{case}: the command line is accepted")
    command, words = main, shlex.split(case)
    if kind.startswith(("benchmarks.", "reproduce.")):
        script = importlib.import_module(kind)
        command, words = click.Command(kind, callback=partial(script.main, words[1:])), []
    with contextlib.ExitStack() as stack:
        for work in WORK:
            stack.enter_context(mock.patch(work, side_effect=started))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(contextlib.chdir(folder))
        result = CliRunner().invoke(command, words)
        left = [path.name for path in Path(folder).rglob("*")]
    assert isinstance(result.exception, SystemExit), f"{case}: {result.output} {result.exception!r}"
    assert not left, f"{case}: left {left}"
    assert not result.stdout or command is main, f"{case}: {result.stdout}"
    message = re.split("[Ee]rror: ", result.stderr, maxsplit=1)[-1].strip()
    message = message.replace(f"{Path(folder).resolve()}/", "")
    return message if result.exit_code == 2 else f"exit code {result.exit_code}: {message}"


DAMAGED = {
    "record": make_record,
    "measurement": make_measurement,
    "benchmark": make_benchmark,
    "manifest": make_manifest,
}

if __name__ == "__main__":
    rewrite(FILE, message_of)
