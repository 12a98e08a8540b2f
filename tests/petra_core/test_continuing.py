"""Test the results of training: a state that another method can continue, and the weights of the user's model."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from petra_core import BufferedStage, CheckpointError, HeadStage, Pipeline, ReversibleStage, checkpoint, methods
from petra_core.delay import GapAware, PredictedWeights, Rate
from petra_core.methods import Method
from petra_core.models import ConcatStreams, DuplicateStreams, sequential
from tests import toys
from tests.compare import assert_bitwise_equal, assert_close

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.mark.parametrize("then", [m for m in methods.ALL if not m.double_buffered and m is not methods.PETRA], ids=str)
def test_drained_petra_state_loads_into_other_method(then: Method) -> None:
    """With other_method=True, another method continues training from a drained state of PETRA."""
    stages, data = toys.network(4, dropout=0.2), toys.batches(7)
    first = toys.pipeline(stages, methods.PETRA, accumulation=2, seed=3)
    second = toys.pipeline(stages, then, accumulation=2, seed=3)
    one = toys.pipeline(stages, methods.PETRA, accumulation=2, seed=3)  # one at a time, as under all methods
    for x, y in data[:3]:  # leaves one gradient before its update
        first.step(x, y)
        first.drain()
        one.step(x, y)
        one.drain()
    state = first.state_dict()
    with pytest.raises(CheckpointError, match=r"method 'PETRA', .* load_state_dict\(state, other_method=True\)"):
        second.load_state_dict(state)
    second.load_state_dict(state, other_method=True)
    for x, y in data[3:]:
        assert_close(second.step(x, y), one.step(x, y))
        second.drain()
        one.drain()
    assert_close(dict(sequential(second.stages).state_dict()), dict(sequential(one.stages).state_dict()))
    for stage in second.memory().stages:
        assert not any(stage.now[kind] for kind in ("inputs", "stashed_weights", "messages", "graph"))


def test_other_method_may_add_correction() -> None:
    """With other_method=True, a delay correction may be added."""
    stages, data = toys.network(4), toys.batches(3)
    first = toys.pipeline(stages, methods.BACKPROPAGATION, seed=3)
    toys.train(first, data)
    corrected = Pipeline(copy.deepcopy(stages), methods.PETRA, optimizer=toys.sgd, delay=[Rate()], seed=3)
    corrected.load_state_dict(first.state_dict(), other_method=True)
    toys.train(corrected, data)


def test_checkpoint_of_earlier_commit_resumes() -> None:
    """Commit fa818780 wrote the checkpoint after 9 micro-batches and reached the weights below."""
    data = toys.batches(12)
    stages, rules = toys.network(3), [PredictedWeights(), GapAware()]
    p = Pipeline(stages, methods.DSP, accumulation=2, optimizer=toys.sgd, delay=rules)
    p.load_state_dict(checkpoint.load(GOLDEN / "checkpoint-fa818780.pt"))
    toys.train(p, data[9:])
    sums = [float(stage.function[-1].weight.detach().sum()) for stage in p.stages[1:]]  # type: ignore[index]  # Sequential
    assert sums == pytest.approx([-1.6896470963239247, 0.9546111013900839], rel=1e-9)


class Own(nn.Module):
    """A user's model with custom parameter names."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.out = nn.Linear(8, 2)

    def stages(self) -> list[BufferedStage | ReversibleStage]:
        stem = BufferedStage(nn.Sequential(self.embed, self.norm, DuplicateStreams()))
        return [stem, *map(ReversibleStage, self.blocks), HeadStage(nn.Sequential(ConcatStreams(), self.out))]


def test_user_model_trains_in_place_and_loads_gathered_state() -> None:
    """Stages train the user's model in place, and a gathered state loads into another model through its stages."""
    torch.manual_seed(0)
    model, other = Own(), Own()
    untrained = copy.deepcopy(model.state_dict())
    p = Pipeline(model.stages(), methods.PETRA, optimizer=toys.sgd)
    p.step(torch.randn(5, 3), torch.randint(2, (5,)))
    p.drain()
    assert any(not torch.equal(untrained[name], tensor) for name, tensor in model.state_dict().items())
    sequential(other.stages()).load_state_dict(p.gather())
    assert_bitwise_equal(dict(other.state_dict()), dict(model.state_dict()))


def test_state_may_lack_settings_that_are_newer() -> None:
    """Versions without delay rules and autocast saved neither; their states have no rule."""
    state = toys.pipeline(toys.network(3)).state_dict()
    del state["delay"], state["autocast"]
    toys.pipeline(toys.network(3)).load_state_dict(state)
    with_rule = Pipeline(toys.network(3), methods.PETRA, optimizer=toys.sgd, delay=[GapAware()])
    with pytest.raises(CheckpointError, match="the state has delay 'uncorrected', this pipeline has"):
        with_rule.load_state_dict(state)
