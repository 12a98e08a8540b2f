"""Test dropout: masks are equal in forward and backward, and each stage has a separate random stream."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from petra_core import Pipeline, ReversibleStage, methods
from petra_core.methods import Method
from petra_core.randomness import RandomStream, capture, replay
from tests import toys
from tests.compare import assert_bitwise_equal
from tests.properties import evaluations

pytestmark = pytest.mark.convolutions

CPU = torch.device("cpu")


class Spying(nn.Module):
    """Dropout that records its masks."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.functional.dropout(torch.ones_like(x), 0.5, self.training)
        self.masks.append(mask)
        return torch.tanh(x) * mask


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("method", methods.PAPER, ids=str)
def test_micro_batch_uses_one_mask(method: Method, seed: int | None) -> None:
    """Forward and backward of a micro-batch use one mask; other micro-batches and stages use different ones."""
    # memcnn draws a new mask in the backward, so its gradients belong to another network.
    spies = [Spying(), Spying(), Spying()]
    net = [toys.stem(2), *(ReversibleStage(nn.Sequential(nn.Conv2d(2, 2, 1), spy)) for spy in spies), toys.head(2)]
    # Inspection is off, because its evaluations would add masks.
    p = Pipeline([stage.double() for stage in net], method, optimizer=toys.sgd, seed=seed, inspect=False)
    count, state = 11, torch.get_rng_state()
    toys.train(p, toys.batches(count))
    assert torch.equal(torch.get_rng_state(), state) == (seed is not None), "a seed does not touch the global generator"
    for spy in spies:
        different = {tuple(mask.flatten().tolist()) for mask in spy.masks}
        assert len(different) == count
        # With approximate inputs there is no update between forward and backward of the last micro-batches, so they
        # need two evaluations.
        assert count * min(evaluations(method), 2) <= len(spy.masks) <= count * evaluations(method)
    assert not torch.equal(spies[0].masks[0], spies[1].masks[0])


def test_random_stream_depends_on_seed_and_stage() -> None:
    """A stream depends on seed and stage, continues after each use, and its draws can be replayed."""

    def first_draw(seed: int, stage: int) -> tuple[float, ...]:
        with RandomStream(CPU, seed, stage):
            return tuple(torch.rand(4).tolist())

    places = [(seed, stage) for seed in (0, 1) for stage in (0, 1)]
    assert len({first_draw(*place) for place in places * 2}) == 4
    stream = RandomStream(CPU, 3, 0)
    with stream:
        first = torch.rand(3)
    drawn = stream.drawn
    with stream:
        pass
    assert stream.drawn is None
    with stream:
        second = torch.rand(3)
    assert not torch.equal(first, second)
    before = capture(CPU)
    with replay(drawn, CPU):
        assert_bitwise_equal(torch.rand(3), first)
    assert_bitwise_equal(capture(CPU), before)


def test_random_stream_moves_between_device_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream keeps the state of generators that exist on both devices; a CUDA generator starts from the seed."""

    class Generator:
        def __init__(self, device: torch.device) -> None:
            self._state = torch.zeros(16, dtype=torch.uint8)
            self._real = None if device.type == "cuda" else torch.default_generator.clone_state()

        def manual_seed(self, number: int) -> Any:
            self._state[0] = number % 256
            return self if self._real is None else self._real.manual_seed(number)

        def get_state(self) -> Tensor:
            return self._state

    device = [torch.zeros(16, dtype=torch.uint8)]
    monkeypatch.setattr(torch, "Generator", Generator)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda _: device[0].clone())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, _: device.__setitem__(0, state))
    on_cpu, on_gpu, new = (RandomStream(torch.device(name), 3, 0) for name in ("cpu", "cuda:0", "cuda:0"))
    with on_cpu:
        torch.rand(3)
    on_gpu.load(on_cpu.state)
    assert_bitwise_equal(on_gpu.state, (on_cpu.state[0], new.state[1]))
    outside = device[0]
    with on_gpu:
        assert_bitwise_equal(device[0], new.state[1])
        device[0] = torch.full((16,), 7, dtype=torch.uint8)  # as after a draw
    assert_bitwise_equal(device[0], outside)
    assert on_gpu.drawn is not None
    on_cpu.load(on_gpu.state)
    assert_bitwise_equal(on_cpu.state, on_gpu.state[:1])
    with on_cpu:
        torch.rand(3)


def test_masks_do_not_depend_on_other_stages() -> None:
    """A stage's masks do not depend on the number of draws in other stages."""

    # Property 3: the draws of a stage depend only on the actions of this stage. The first reversible stage has the same
    # masks if the stages above draw more numbers.
    def masks_of_stage_1(more: int) -> list[Tensor]:
        spy = Spying()
        rest = [ReversibleStage(nn.Sequential(nn.Conv2d(2, 2, 1), *(nn.Dropout(0.1) for _ in range(more))))]
        net = [toys.stem(2), ReversibleStage(spy), *rest, toys.head(2)]
        toys.train(Pipeline([stage.double() for stage in net], methods.PETRA, seed=4), toys.batches(6))
        return spy.masks

    assert_bitwise_equal(masks_of_stage_1(0), masks_of_stage_1(2))
