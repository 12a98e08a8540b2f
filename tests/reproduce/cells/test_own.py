"""Users' networks as `module:function`: in cells, in `partition`, and in `train` with its checkpoints and records."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from petra_core import BufferedStage, CheckpointError, HeadStage, ReversibleStage, methods
from reproduce.cells import catalogue, networks, own
from reproduce.cells.kinds import TrainingCell, from_dict
from reproduce.commands.train import cell_by_hand
from reproduce.distributed.group import UnsupportedError
from reproduce.measures.context import Context, Stopped
from reproduce.records import volumes
from reproduce.records.record import Record, RecordError
from reproduce.running.execution import execute
from tests.own_networks import SOURCE, write_module
from tests.processes import call


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a user's module, and return its name, which is another one for every test."""
    name = f"users_{tmp_path.name.replace('-', '_')}"
    write_module(tmp_path, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def cell(model: str, **settings: object) -> TrainingCell:
    made = cell_by_hand({"model": model, "dataset": "digits", "accumulation": 1, "epochs": 1} | settings)
    assert isinstance(made, TrainingCell)
    return made


def test_model_path_is_in_identity_and_not_imported_on_load(module: str, tmp_path: Path) -> None:
    """The path module:function is part of the identity, and loading a record does not import the module."""
    first, second = cell(f"{module}:stages"), cell(f"{module}:sequential")
    assert first.identity != second.identity
    assert (first.stem, first.width) == (own.STEM, own.WIDTH)
    assert networks.title_of(first) == f"own network {module}:stages"
    elsewhere = dataclasses.replace(first, model="gone.away:stages", timing="1f1b", stages=(1, 2, 1))
    again = from_dict(json.loads(json.dumps(elsewhere.to_dict())))
    assert again == elsewhere
    for text in (again.name, volumes.path_of(again, tmp_path).name):
        assert "gone-away-stages" in text
        assert ":" not in text


def test_build_accepts_list_sequential_and_micro_batch(module: str) -> None:
    """A user's function may return a list of stages, an nn.Sequential, or a network with a micro-batch."""
    stages = own.build(f"{module}:stages")
    assert [type(stage) for stage in stages] == [BufferedStage, ReversibleStage, ReversibleStage, HeadStage]
    assert [type(stage) for stage in own.build(f"{module}:sequential")] == [BufferedStage, BufferedStage, HeadStage]
    assert own.micro_batch(f"{module}:stages") is None
    batch = own.micro_batch(f"{module}:with_batch")
    assert batch is not None
    assert batch[0][0].shape == (7, 5)


def test_stages_option_must_fit_the_function(module: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"has 4 blocks .*got 1,1, which has 2"):
        execute(Record(tmp_path / "record", cell(f"{module}:stages", stages=(1, 1))), Context())


@pytest.mark.parametrize("command", [["train", "--output", "runs/never"], ["partition", "--processes", "2"]])
@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("one_channel", r"cannot be evaluated on samples of --dataset digits, .*float32 \[2, 3, 8, 8\]: .*channels"),
        ("few_classes", r"has the shape \[2, 7\], expected \[2, 10\], with at least 10 classes in dimension 1"),
        ("without_flatten", r"has the shape \[2, 10, 1, 1\], expected \[2, 10\]"),
        ("drawn_by_numpy", r"a second call of the function with the same seed of torch gives other weights"),
    ],
)
def test_network_not_fitting_data_is_refused_before_recording(
    module: str, function: str, problem: str, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`train` and `partition` refuse a network that does not fit the data set, and write no record."""
    monkeypatch.chdir(tmp_path)
    result = call(*command, "--model", f"{module}:{function}", "--dataset", "digits", code=2)
    assert re.search(problem, result.output), result.output
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("function", "subject"), [("stages", "batch 32, PETRA"), ("with_batch", "the micro-batch of")])
def test_partition_times_own_network(module: str, function: str, subject: str) -> None:
    """`partition` times a user's network on the data set or on the network's micro-batch."""
    result = call("partition", "--model", f"{module}:{function}", "--dataset", "digits", "--repetitions", 1, code=0)
    assert f"own network {module}:{function}" in result.output
    assert subject in result.output
    assert "balanced: " in result.output
    assert "--processes 2 --partition " in result.output


@pytest.fixture
def stopping() -> Callable[[int], Context]:
    def context(after: int) -> Context:
        asked = iter(range(10**6))
        return Context(should_stop=lambda: next(asked) >= after)

    return context


def test_own_network_resumes_only_with_same_file(
    module: str, tmp_path: Path, stopping: Callable[[int], Context]
) -> None:
    """A checkpoint of a user's network is resumed only with the same version of its file."""
    own_cell = cell(f"{module}:stages", method=methods.PETRA.name, batch_size=64, timing="1f1b")
    whole, stopped = Record(tmp_path / "whole", own_cell), Record(tmp_path / "stopped", own_cell)
    assert str(execute(whole, Context())) == "done"
    with pytest.raises(Stopped):
        execute(stopped, stopping(5))
    file = tmp_path / f"{module}.py"
    file.write_text(f"{SOURCE}\n# another version", encoding="utf-8")
    with pytest.raises(CheckpointError, match=rf"another version of the file of {module}:stages; restore that file"):
        execute(stopped, Context())
    file.write_text(SOURCE, encoding="utf-8")
    execute(stopped, Context())
    first, second = whole.read().result, stopped.read().result
    assert first is not None
    assert second is not None
    assert first["network"] == own.source(own_cell.model)
    assert len(first["network"]["sha256"]) == 64
    assert first["staleness"] == [3, 2, 1, 0]
    assert first["train_loss"] == second["train_loss"]
    assert first["test_accuracy"] > 20
    file.write_text(f"{SOURCE}\n# another version", encoding="utf-8")
    with pytest.raises(RecordError, match=rf"another version of the file of {module}:stages"):
        execute(whole, Context())


def test_hash_follows_imported_modules_of_the_folder(module: str, tmp_path: Path) -> None:
    """The hash of a network changes with a module that its module imports, and not with another one."""
    alone = own.source(f"{module}:stages")["sha256"]
    assert alone == hashlib.sha256(SOURCE.encode()).hexdigest()
    package = tmp_path / f"{module}_package"
    package.mkdir()
    (package / "__init__.py").write_text("from .network import make\n", encoding="utf-8")
    (package / "network.py").write_text(f"from {module} import stages as make\n", encoding="utf-8")
    first = own.source(f"{module}_package:make")["sha256"]
    (tmp_path / f"{module}_broken.py").write_text("# another version", encoding="utf-8")
    assert own.source(f"{module}_package:make")["sha256"] == first
    (tmp_path / f"{module}.py").write_text(f"{SOURCE}\n# another version", encoding="utf-8")
    assert own.source(f"{module}_package:make")["sha256"] != first


def test_accuracy_of_own_text_network_is_that_of_its_predictions(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The classes of a user's network are in dimension 1, as `cross_entropy` requires, for text too."""
    text = cell(f"{module}:of_text", dataset="pydoc", image_size=256, method=methods.BACKPROPAGATION.name)
    record = Record(tmp_path / "text", text)
    execute(record, Context())
    result = record.read().result
    assert result is not None
    # A bigram model of English knows the byte after a space or vowel better than by chance of 1 in 256.
    assert result["test_accuracy"] > 10
    assert result["test_bits_per_byte"] < 6


def test_equal_weights_may_contain_nan(module: str) -> None:
    """A buffer with nan, such as a statistic that is not known yet, is equal in both calls of the function."""
    own.check_samples(f"{module}:with_nan", catalogue.by_name("digits"), 8)
