"""Test that a separately run stage works as in the pipeline: the same evaluations, messages and weights."""

import pytest
import torch

from petra_core import Pipeline, methods, models
from petra_core.methods import Method
from petra_core.prediction.measuring import StageAlone, TurnSeconds, feeds
from petra_core.settings import Settings
from petra_core.stages import Stage
from tests import toys
from tests.properties import evaluations

pytestmark = pytest.mark.convolutions


def network() -> list[Stage]:
    torch.manual_seed(0)
    return models.chain(3, num_classes=10, channels=4)


def alone(stages: list[Stage], index: int, method: Method, *, waiting: int = 1, k: int = 1) -> StageAlone:
    x, y = torch.randn(2, 3, 8, 8), torch.randint(10, (2,))
    feed = feeds(stages, method, x, y)[index]
    settings = Settings(method=method, accumulation=k, seed=0)
    return StageAlone(stages[index], index, settings, feed, waiting=waiting, optimizer=toys.sgd)


@pytest.mark.parametrize("method", methods.PAPER, ids=str)
def test_turn_evaluates_as_often_as_method(method: Method) -> None:
    """A turn evaluates the function as often as the method does in the pipeline."""
    stages, seen = network(), []
    stage = alone(stages, 1, method, waiting=int(method.pipelined))
    for _ in range(3):
        stage.turn()
    stages[1].function[0].register_forward_hook(lambda *_: seen.append(1))  # type: ignore[index]  # a Sequential
    stage.turn()
    assert len(seen) == evaluations(method)


@pytest.mark.parametrize("method", [methods.PETRA, methods.DSP], ids=str)
def test_message_bytes_match_pipeline(method: Method) -> None:
    pipeline = Pipeline(network(), method, optimizer=toys.sgd)
    for _ in range(12):
        pipeline.step(torch.randn(2, 3, 8, 8), torch.randint(10, (2,)))
    held = [stage.now["messages"] for stage in pipeline.memory().stages]
    alike = [alone(network(), j, method, waiting=0 if j == 4 else 1) for j in range(5)]
    for stage in alike:
        stage.turn()
    for index in range(5):
        above = alike[index + 1].bytes_down if index < 4 else 0
        assert held[index] == 2 * above  # in lockstep the staleness of neighbours differs by 2
    pipeline = Pipeline(network(), method, optimizer=toys.sgd)
    pipeline.step(torch.randn(2, 3, 8, 8), torch.randint(10, (2,)))  # gradients have only reached stage 3
    assert [stage.peak["messages"] for stage in pipeline.memory().stages[1:3]] == [s.bytes_up for s in alike[:2]]
    streams = 4 if method is methods.PETRA else 2  # two of the gradient, two of a reconstructed input
    assert (alike[4].bytes_up, alike[4].bytes_down) == (0, streams * 2 * 4 * 8 * 8 * 4)


@pytest.mark.parametrize("k", [1, 3])
def test_turn_updates_after_every_kth_backward(k: int) -> None:
    stage = alone(network(), 1, methods.PETRA, k=k)
    turns = [stage.turn() for _ in range(6)]
    assert [turn.update is not None for turn in turns] == [(number + 1) % k == 0 for number in range(6)]
    assert stage.worker.version == 6 // k
    assert all(isinstance(turn, TurnSeconds) and turn.forward > 0 and turn.backward > 0 for turn in turns)


def test_waiting_micro_batches_have_entered():
    """A stage with waiting=3 has already sent the messages of three micro-batches."""
    stage = alone(network(), 1, methods.PETRA, waiting=3, k=3)
    assert [message.micro_batch for message in stage._sent] == [0, 1, 2]
