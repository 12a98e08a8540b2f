"""Write the error messages of wrong command lines and of wrong settings of cells to errors.txt.

    python -m tests.reproduce.errors

A case (see `tests/messages.py`) is a command line, a module of another program with options, `training` or `forward`
with changes of the settings of a cell in JSON, or `python` with an expression that uses the names of this module.
"""

# ruff: noqa: F401  # errors.txt uses the imported names
import contextlib
import importlib
import json
import re
import shlex
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import click
import torch
from click.testing import CliRunner
from torch import nn

from petra_core import BufferedStage, HeadStage, models
from reproduce.cells.kinds import CellError, from_dict
from reproduce.cells.rates import LearningRateSchedule
from reproduce.commands.cli import main
from reproduce.forward_gradients import blocks
from reproduce.forward_gradients.settings import Derivative, ForwardGradient, Guess, Space
from reproduce.forward_gradients.training import ForwardGradients
from reproduce.modelling.formula import evaluate
from reproduce.modelling.synchronous_schedules import gpipe, interleaved, one_f_one_b
from reproduce.models.bdia import BdiaStage, Quantise
from reproduce.models.invertible_revnet import invertible_revnet
from reproduce.models.permutation import PixelUnshuffleStage
from reproduce.models.revroberta import revroberta
from reproduce.models.revswin import revswin
from reproduce.models.revvit import revvit
from reproduce.models.sizes import HierarchicalSize, TransformerSize
from reproduce.models.vit import gpt
from reproduce.records.benchmarks import Comparison, Goal, Series
from tests import toys, transformers
from tests.messages import message_of_expression, rewrite
from tests.reproduce.cells.test_cells import FORWARD, TRAINING
from tests.reproduce.data.test_language import CELL as LANGUAGE
from tests.reproduce.forward_gradients import test_forward_gradients as forward
from tests.reproduce.measures.test_probed_cells import CELLS as PROBED
from tests.reproduce.records.test_benchmark_records import benchmark, with_slow

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


def message_of(case: str) -> str:
    """Return the message that a case ends with. It must leave no files.

    Raises:
        AssertionError: The case ends in another way than with an error of the user.

    """
    kind, _, changes = case.partition(" ")
    if kind == "python":
        return message_of_expression(changes, globals())
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


if __name__ == "__main__":
    rewrite(FILE, message_of)
