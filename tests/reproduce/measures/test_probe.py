"""Test that probes follow micro-batches through a run without changing it."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from petra_core import Pipeline, methods
from petra_core.methods import Method
from reproduce.measures.gradient_quality import GradientQuality
from reproduce.measures.probe import DIGITS, Probe, Values
from reproduce.measures.reconstruction import ReconstructionProbe
from tests import toys
from tests.compare import assert_bitwise_equal

PROBES: list[type[Probe]] = [GradientQuality, ReconstructionProbe]
STAGES = 6


def probed(probe: Probe | None, method: Method, micro_batches: int, *, k: int = 2, seed: int | None = 4) -> Pipeline:
    look = None if probe is None else probe.after_backward
    p = Pipeline(toys.network(STAGES), method, accumulation=k, optimizer=toys.sgd, seed=seed, after_backward=look)
    if probe is not None:
        probe.watch(p, micro_batches)
    return p


def train(probe: Probe, p: Pipeline, data: Sequence[tuple[Tensor, Tensor]]) -> list[float]:
    losses = []
    for x, y in data:
        probe.before_step(x, y)
        loss = p.step(x, y)
        losses += [] if loss is None else [loss.item()]
    return losses


@pytest.mark.parametrize("make", PROBES)
@pytest.mark.parametrize("method", [methods.PETRA, methods.APPROXIMATE_INPUTS], ids=str)
def test_probe_does_not_change_a_bit_of_training(method: Method, make: Callable[[int], Probe]) -> None:
    """Training with a probe gives the same losses, state and random state as without."""
    data = toys.batches(20)
    plain = probed(None, method, 20, seed=None)
    torch.manual_seed(8)
    expected = toys.train(plain, data, drain=False)
    after = torch.get_rng_state()

    probe = make(1 if (method is methods.PETRA) == (make is GradientQuality) else 7)
    p = probed(probe, method, 20, seed=None)
    torch.manual_seed(8)
    assert train(probe, p, data) == expected
    assert_bitwise_equal(torch.get_rng_state(), after)
    assert_bitwise_equal(p.state_dict(), plain.state_dict())  # weights, statistics, momentum, everything in flight
    assert [stage.now for stage in p.memory().stages] == [stage.now for stage in plain.memory().stages]
    assert all(module.training for stage in p.stages for module in stage.modules())
    assert probe.collect()["probes"] > 0


@pytest.mark.parametrize("make", PROBES)
def test_values_are_means_over_returned_micro_batches(make: Callable[[int], Probe]) -> None:
    """Collected values are means over the micro-batches that returned, each of which is listed by number."""
    data = toys.batches(30)
    every_second, one_by_one = make(2), make(2)
    train(every_second, probed(every_second, methods.PETRA, 30), data)
    p = probed(one_by_one, methods.PETRA, 30)
    single: dict[int, Values] = {}
    for number, batch in enumerate(data):
        train(one_by_one, p, [batch])
        look = one_by_one.collect()
        assert look["probes"] in (0, 1)
        if look["probes"]:
            single[number - 2 * (STAGES - 1)] = look["measured"]
        else:
            assert look == {"probes": 0, "measured": {}, "measured_at": []}
    whole = every_second.collect()
    assert whole["probes"] == 10
    assert [probe["micro_batch"] for probe in whole["measured_at"]] == list(single) == list(range(0, 20, 2))
    for measure, of_stages in whole["measured"].items():
        for j, value in enumerate(of_stages):
            values = [exact[measure][j] for exact in single.values() if exact[measure][j] is not None]
            assert value == (pytest.approx(sum(values) / len(values), rel=1e-12) if values else None)
            for probe in whole["measured_at"]:
                precise, rounded = single[probe["micro_batch"]][measure][j], probe["measured"][measure][j]
                assert rounded == (None if precise is None else pytest.approx(precise, rel=10.0 ** (1 - DIGITS)))
                assert len(str(rounded)) <= DIGITS + len("-0.0000e-16")


@pytest.mark.parametrize("make", PROBES)
def test_drained_micro_batches_are_not_followed(make: Callable[[int], Probe]) -> None:
    """Micro-batches in flight at a drain are not followed; invalid settings and random stages are refused."""
    data = toys.batches(40)
    probe = make(1)
    p = probed(probe, methods.PETRA, 40)
    train(probe, p, data[:15])
    assert probe.collect()["probes"] == 5
    p.drain()
    assert probe.collect()["probes"] == 0
    train(probe, p, data[15:])
    assert probe.collect()["probes"] == 15  # the pipeline was filled again: 25 entered, 10 had not returned
    with pytest.raises(ValueError, match="interval must be at least 1, got 0"):
        make(0)
    # Reconstruction in stages with random streams is tested in test_reconstruction.
    probe, seed = make(1), 1 if make is GradientQuality else None
    p = Pipeline(toys.network(4, dropout=0.5), methods.PETRA, seed=seed, after_backward=probe.after_backward)
    probe.watch(p, 20)
    with pytest.raises(ValueError, match="draws random numbers"):
        train(probe, p, toys.batches(9))


@pytest.mark.parametrize("make", PROBES)
def test_input_buffers_may_be_reused_immediately(make: Callable[[int], Probe]) -> None:
    """The caller may overwrite its input tensors after every step."""
    data = toys.batches(12)
    plain, probe = make(1), make(1)
    train(plain, probed(plain, methods.PETRA, 12), data)
    pipeline = probed(probe, methods.PETRA, 12)
    x, y = map(torch.empty_like, data[0])
    for images, labels in data:
        train(probe, pipeline, [(x.copy_(images), y.copy_(labels))])
    assert probe.collect() == plain.collect()
