"""Test micro-batches of other shapes after a drain, and learning rates of parameter groups."""

import pytest

from petra_core import methods
from petra_core.methods import Method
from tests import toys
from tests.compare import assert_bitwise_equal
from tests.properties import assert_trains_as_plain_training


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_shape_may_change_after_drain(method: Method) -> None:
    """After a drain, micro-batches of another shape train as in plain PyTorch under every method."""
    sizes = (4, 4, 2, 5, 4, 3)
    data = [toys.batches(1, size=size, seed=number)[0] for number, size in enumerate(sizes)]
    data = [(x if len(x) > 3 else x[..., :5], y) for x, y in data]  # another image size too
    assert_trains_as_plain_training(toys.network(4), method, 1, data, inspect=False)


def test_shape_change_requires_drain_also_after_resume() -> None:
    """Another shape or dtype raises ValueError while micro-batches are in flight; a drained pipeline accepts it."""
    (x, y), (small, labels) = toys.batches(1)[0], toys.batches(1, size=2)[0]
    p, resumed = (toys.pipeline(toys.network(4), seed=1) for _ in range(2))
    p.step(x, y)
    resumed.load_state_dict(p.state_dict())
    for full in (p, resumed):
        for other in ((small, labels), (x.float(), y), (x[:, :2], y)):
            with pytest.raises(ValueError, match=r"micro-batch 1 has shapes .* call drain\(\) .* of another shape, "):
                full.step(*other)
    p.drain()
    resumed.load_state_dict(p.state_dict())
    assert_bitwise_equal(resumed.step(small, labels), p.step(small, labels))


def test_bytes_of_graphs_are_measured_again_after_a_load() -> None:
    """After a load, larger micro-batches were counted with the bytes of the graphs before it."""
    p, fresh = (toys.pipeline(toys.network(3)) for _ in range(2))
    state = p.state_dict()
    toys.train(p, toys.batches(4, size=1), drain=False)
    p.load_state_dict(state)
    for pipeline in (p, fresh):
        toys.train(pipeline, toys.batches(4, size=6))
    assert p.memory().peak("graph") == fresh.memory().peak("graph")
