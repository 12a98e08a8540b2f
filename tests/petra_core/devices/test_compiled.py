"""Test that compiled functions give equal losses, gradients, statistics and random numbers, up to rounding."""

import copy
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import config as inductor

from petra_core import Pipeline, ReversibleStage, methods
from petra_core.devices import compiled
from petra_core.devices.compiled import compile_functions
from petra_core.methods import Method
from reproduce.records.record import Record
from tests import toys
from tests.example_cells import CHAIN, COMPLEXITY
from tests.trainings import assert_stops_change_no_bit, run

#: The compiler of torch 2.11 reads `.grad` of every input, and uses `torch.jit.script`.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]


def trained(method: Method, backend: str | None, residual: nn.Module | None = None) -> tuple[Pipeline, list[float]]:
    """Return a pipeline that was trained on twelve micro-batches and drained, and the losses.

    Args:
        method: Method of the pipeline.
        backend: Compiles the functions of the stages; None for eager mode.
        residual: Function of the reversible stage, and the only one that is compiled.

    """
    stages = toys.network(3)
    if residual is not None:
        stages[1] = ReversibleStage(residual)
    pipeline = toys.pipeline(stages, method, accumulation=2, seed=0, inspect=True)
    torch.compiler.reset()
    counters.clear()
    if backend is not None:
        compile_functions(pipeline.stages if residual is None else pipeline.stages[1:2], backend=backend)
    losses = toys.train(pipeline, toys.batches(12))
    assert (counters["stats"]["unique_graphs"] > 0) == (backend is not None)
    return pipeline, losses


def assert_close(one: tuple[Pipeline, list[float]], another: tuple[Pipeline, list[float]]) -> None:
    (other, losses), (plain, plain_losses) = one, another
    torch.testing.assert_close(losses, plain_losses, rtol=1e-9, atol=0)
    ours, theirs = other.model.state_dict(), plain.model.state_dict()
    assert list(ours) == list(theirs)
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-9, atol=1e-12, msg=name)
    [(images, _)] = toys.batches(1)
    torch.testing.assert_close(other.evaluate(images), plain.evaluate(images), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", [methods.PETRA, methods.BACKPROPAGATION], ids=str)
def test_compiled_training_equals_eager_up_to_rounding(method: Method) -> None:
    """Under PETRA one stage reconstructs its input, one stashes it and one keeps its graph.

    With torch's eager stance, evaluation compiles nothing and equals an eager evaluation bitwise.
    """
    ours, theirs = trained(method, "aot_eager"), trained(method, None)
    assert_close(ours, theirs)
    theirs[0].model.load_state_dict(ours[0].model.state_dict())
    counters.clear()
    [(images, _)] = toys.batches(1)
    with torch.compiler.set_stance("force_eager"):
        logits = ours[0].evaluate(images)
    assert not counters["stats"], "nothing is compiled"
    assert torch.equal(logits, theirs[0].evaluate(images))


def test_deepcopy_of_compiled_function_runs_on_meta_device() -> None:
    """`petra_core.prediction.memory` makes such a copy on the meta device."""
    stage = toys.network(3)[0]
    compile_functions([stage], backend="aot_eager")
    inputs = toys.batches(1)[0][0]
    first, _ = copy.deepcopy(stage.function).to("meta")(inputs.to("meta"))
    assert first.device.type == "meta"


@pytest.mark.slow
def test_inductor_replays_random_numbers_of_forward() -> None:
    """Recompute the graph of one reversible stage.

    The code is not vectorised, because trying that doubles inductor's time. The reference is a kept graph and not the
    plain function, because inductor of torch 2.11 draws other numbers than eager mode.
    """
    residual = nn.Sequential(nn.Linear(6, 6), nn.Dropout(), nn.Tanh()).double()  # has few kernels
    with inductor.patch({"cpp.simdlen": 1, "compile_threads": 1}):
        kept, reconstructed = (
            trained(method, "inductor", copy.deepcopy(residual))
            for method in (methods.BACKPROPAGATION, methods.REVERSIBLE_BACKPROPAGATION)
        )
    assert_close(reconstructed, kept)


def test_compiled_cell_is_recorded_and_resumes_bitwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of a trained cell contains `compiled`, and a compiled cell resumes bitwise."""
    monkeypatch.setattr(compiled, "compile_functions", partial(compile_functions, backend="aot_eager"))
    plain, _ = run(CHAIN, tmp_path / "plain")
    untrained, _ = run(COMPLEXITY, tmp_path / "untrained", compiled=True)
    assert not any("compiled" in record.read().environments[0] for record in (plain, untrained))
    assert_stops_change_no_bit([17], CHAIN, tmp_path, compiled=True)
    assert [entry["compiled"] for entry in Record.load(tmp_path / "whole").read().environments] == [True]
    ours, theirs = (torch.load(tmp_path / name / "model.pt", weights_only=True) for name in ("whole", "plain"))
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-3, atol=1e-4, msg=name)
