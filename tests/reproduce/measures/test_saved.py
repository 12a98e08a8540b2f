"""Test that a checkpoint that contradicts its cell is an error and never a result, as is a failure to read it."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from petra_core import CheckpointError, Pipeline, checkpoint
from reproduce.distributed.sharded import ShardedCheckpoint
from reproduce.measures.context import Context
from reproduce.records.record import Record, Status
from reproduce.running.execution import execute
from tests.example_cells import CHAIN
from tests.trainings import Notices, run, stop_after

pytestmark = pytest.mark.convolutions

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a training that was stopped in its second epoch."""
    folder = tmp_path_factory.mktemp("saved")
    stop_after(10, folder, CHAIN)
    return folder


def _group(**settings: Any) -> Change:
    return lambda state: state["workers"][1]["optimizer"]["param_groups"][0].update(settings)


def _tensor(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    def apply(state: dict[str, Any]) -> None:
        module = state["workers"][1]["module"]
        name = next(name for name in module if name.endswith("weight"))
        module[name] = change(module[name])

    return apply


CONTRADICTIONS: dict[str, Change] = {
    "of another cell": lambda state: state.update(identity="f"),
    "of another program": lambda state: [state.pop(name) for name in [*state] if name != "identity"],
    "batch -1": lambda state: state.update(batch=-1),
    "batch + 1": lambda state: state.update(batch=state["batch"] + 1),
    "batch 2^70": lambda state: state.update(batch=1 << 70),
    "epoch + 1": lambda state: state.update(epoch=state["epoch"] + 1),
    "epoch a text": lambda state: state.update(epoch="1"),
    "more micro-batches": lambda state: state["pipeline"].update(micro_batches=99),
    "no losses": lambda state: state.update(losses=torch.empty(0)),
    "seconds a text": lambda state: state.update(seconds="soon"),
    "peaks a number": lambda state: state.update(peaks=5),
    "pipeline a list": lambda state: state.update(pipeline=[]),
    "one stage less": lambda state: state["workers"].pop(),
    "no worker": lambda state: state["workers"].__setitem__(1, None),
    "nesterov": _group(nesterov=False),
    "dampening": _group(dampening=0.5, nesterov=False),
    "maximize": _group(maximize=True),
    "momentum": _group(momentum=0.5),
    "weight decay": _group(weight_decay=0.0),
    "other parameters": _group(params=[0]),
    "no group": lambda state: state["workers"][1]["optimizer"].update(param_groups=[]),
    "another shape": _tensor(lambda tensor: tensor[..., :1]),
    "a list": _tensor(torch.Tensor.tolist),
    **{
        f"without {name}": lambda state, name=name: state.pop(name)  # type: ignore[misc]  # a default binds it now
        for name in ("epoch", "batch", "loss_sum", "losses", "seconds", "peaks", "data", "pipeline", "workers")
    },
    **{
        f"pipeline without {name}": lambda state, name=name: state["pipeline"].pop(name)  # type: ignore[misc]  # also
        for name in ("micro_batches", "drained", "behind", "shapes")
    },
    **{
        f"worker without {name}": lambda state, name=name: state["workers"][1].pop(name)  # type: ignore[misc]  # also
        for name in ("module", "optimizer", "version", "parts", "random")
    },
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradicting_checkpoint_is_refused_and_kept(tmp_path: Path, saved: Path, name: str) -> None:
    """A checkpoint that contradicts its cell raises a CheckpointError, and no file changes."""
    state = checkpoint.load(saved / "checkpoint.pt")
    before = json.loads((saved / "config.json").read_text())
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    CONTRADICTIONS[name](state)
    checkpoint.save(tmp_path / "checkpoint.pt", state)
    harm = (tmp_path / "checkpoint.pt").read_bytes()
    remedy = "belongs to another cell; move it" if name == "of another cell" else "move it away|other files of digits"
    with pytest.raises(CheckpointError, match=remedy):
        run(CHAIN, tmp_path)
    assert (tmp_path / "checkpoint.pt").read_bytes() == harm
    assert not (tmp_path / "result.json").exists()
    assert json.loads((tmp_path / "config.json").read_text()) == before


@pytest.mark.parametrize("error", [MemoryError("22.9 GB"), RecursionError(), IndexError("memo"), AttributeError("x")])
@pytest.mark.parametrize("where", ["one process", "several"])
def test_error_while_reading_a_checkpoint_is_no_result(
    tmp_path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, where: str
) -> None:
    """A flipped bit in a table of contents requested 22.9 GB, which was recorded as the result "out of memory"."""
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)

    def fail(*_: object) -> None:
        raise error

    if where == "several":
        (tmp_path / "checkpoint.pt").unlink()
        (tmp_path / "checkpoint").mkdir()
        monkeypatch.setattr(ShardedCheckpoint, "exists", True)
        monkeypatch.setattr(ShardedCheckpoint, "load", fail)
    else:
        monkeypatch.setattr(checkpoint, "load", fail)
    with pytest.raises(CheckpointError, match=r"is damaged \(.*Error.*\); move it away"):
        run(CHAIN, tmp_path)
    assert Record(tmp_path, CHAIN).state().status is Status.PARTIAL


def test_non_finite_running_statistics_are_a_divergence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training losses do not show them, because BatchNorm uses them only in an evaluation."""
    drain = Pipeline.drain

    def broken(pipeline: Pipeline) -> Any:
        losses = drain(pipeline)
        next(b for name, b in pipeline.stages[3].named_buffers() if name.endswith("running_var")).fill_(float("inf"))
        return losses

    monkeypatch.setattr(Pipeline, "drain", broken)
    record, state = run(CHAIN, tmp_path)
    assert (state.status, state.reason) == (Status.FAILED, "diverged")
    assert "running_var of stage 3 is not finite" in str(record.read().result)


def test_non_finite_outputs_are_a_divergence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`argmax` accepts NaN as a class: such runs were done, with the accuracy of a guess."""
    evaluate = Pipeline.evaluate

    def overflowing(pipeline: Pipeline, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = evaluate(pipeline, inputs)
        logits[:3, 0] = float("nan")
        return logits

    monkeypatch.setattr(Pipeline, "evaluate", overflowing)
    record, state = run(CHAIN, tmp_path)
    assert (state.status, state.reason) == (Status.FAILED, "diverged")
    assert "the outputs for 3 tested samples are not finite after epoch 1" in str(record.read().result)


def test_resume_on_other_machine_or_code_gives_a_notice(
    tmp_path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run continues on another machine or with other code, with a notice of each difference."""
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    monkeypatch.setattr("reproduce.records.provenance.code", lambda: ({"commit": "f" * 40, "clean": True}, b""))
    observer = Notices()
    execute(Record(tmp_path, CHAIN), Context(observer=observer))
    notices = observer.notices
    # The saved run may have been started with variables that select kernels (CI does so).
    assert any(re.search(r"kernel_variables .*, now \{.*'ONEDNN_MAX_CPU_ISA': 'SSE41'", text) for text in notices), (
        notices
    )
    assert any(f"continues with {'f' * 40}" in text for text in notices), notices
