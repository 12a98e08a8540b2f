"""Test the results of training: a state that another method can continue, and the weights of the user's model."""

from pathlib import Path

import pytest

from petra_core import CheckpointError, Pipeline, checkpoint, methods
from petra_core.delay import GapAware, PredictedWeights
from petra_core.methods import Method
from petra_core.models import sequential
from tests import toys
from tests.compare import assert_close

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


def test_checkpoint_of_earlier_commit_resumes() -> None:
    """Commit fa818780 wrote the checkpoint after 9 micro-batches and reached the weights below."""
    data = toys.batches(12)
    stages, rules = toys.network(3), [PredictedWeights(), GapAware()]
    p = Pipeline(stages, methods.DSP, accumulation=2, optimizer=toys.sgd, delay=rules)
    p.load_state_dict(checkpoint.load(GOLDEN / "checkpoint-fa818780.pt"))
    toys.train(p, data[9:])
    sums = [float(stage.function[-1].weight.detach().sum()) for stage in p.stages[1:]]  # type: ignore[index]  # Sequential
    assert sums == pytest.approx([-1.6896470963239247, 0.9546111013900839], rel=1e-9)


def test_state_may_lack_settings_that_are_newer() -> None:
    """Versions without delay rules and autocast saved neither; their states have no rule."""
    state = toys.pipeline(toys.network(3)).state_dict()
    del state["delay"], state["autocast"]
    toys.pipeline(toys.network(3)).load_state_dict(state)
    with_rule = Pipeline(toys.network(3), methods.PETRA, optimizer=toys.sgd, delay=[GapAware()])
    with pytest.raises(CheckpointError, match="the state has delay 'uncorrected', this pipeline has"):
        with_rule.load_state_dict(state)
