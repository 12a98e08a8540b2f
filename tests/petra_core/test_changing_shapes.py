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
    assert_trains_as_plain_training(toys.network(4), method, 1, data)


def test_shape_change_requires_drain_also_after_resume() -> None:
    """Another shape raises ValueError while micro-batches are in flight; a resumed drained pipeline accepts it."""
    (x, y), (small, labels) = toys.batches(1)[0], toys.batches(1, size=2)[0]
    p = toys.pipeline(toys.network(4), seed=1)
    p.step(x, y)
    with pytest.raises(ValueError, match=r"call drain\(\) before a micro-batch of another shape, .*drop_last=True"):
        p.step(small, labels)
    p.drain()
    resumed = toys.pipeline(toys.network(4), seed=1)
    resumed.load_state_dict(p.state_dict())
    assert_bitwise_equal(resumed.step(small, labels), p.step(small, labels))
