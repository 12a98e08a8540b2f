"""Test micro-batches of other shapes after a drain, and learning rates of parameter groups."""

import copy

import pytest
from torch.nn import functional as F

from petra_core import Pipeline, methods
from petra_core.methods import Method
from petra_core.models import sequential
from tests import toys
from tests.compare import assert_bitwise_equal, assert_close


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_shape_may_change_after_drain(method: Method) -> None:
    """After a drain, micro-batches of another shape train as in plain PyTorch under every method."""
    stages = toys.network(4)
    k = 6 if method.double_buffered else 1
    p = Pipeline(copy.deepcopy(stages), method, accumulation=k, optimizer=toys.sgd)
    model = sequential(plain := copy.deepcopy(stages))
    optimizer = toys.sgd(list(model.parameters()))
    for number, size in enumerate((4, 4, 2, 5, 4, 3), 1):
        x, y = toys.batches(1, size=size, seed=number)[0]
        x = x if size > 3 else x[..., :5]  # another image size too
        loss = F.cross_entropy(model(x), y)
        (loss / k).backward()
        if number % k == 0:
            optimizer.step()
            optimizer.zero_grad()
        assert_close(p.step(x, y), loss.detach())
        graph = p.memory().stages[-1].peak["graph"]
        p.drain()
        assert p.memory().stages[-1].now["graph"] == 0
        assert graph > 0
    assert_close(dict(sequential(p.stages).state_dict()), dict(sequential(plain).state_dict()))


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
