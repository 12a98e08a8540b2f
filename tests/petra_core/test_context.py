"""Test context: streams that reversible stages pass on unchanged and that their functions read, with gradients."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from petra_core import BufferedStage, HeadStage, Pipeline, ReversibleStage, Stage, merge, methods
from petra_core.methods import Method
from petra_core.models import sequential
from petra_core.prediction.memory import predict
from tests import toys
from tests.compare import assert_bitwise_equal, assert_close

WIDTH, TOKENS = 4, 5


class Stem(nn.Module):
    """A stem that maps (tokens, mask, time) to two streams and the context: mask, time embedding and long skip."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.time = nn.Linear(3, WIDTH), nn.Linear(1, WIDTH)

    def forward(self, value: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
        tokens, mask, time = value
        h = torch.tanh(self.embed(tokens))
        return h, h, mask, torch.tanh(self.time(time))[:, None], h


class Attention(nn.Module):
    """Masked attention that depends on the time embedding and ignores the long skip."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.scale = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor, mask: Tensor, time: Tensor, _skip: Tensor) -> Tensor:
        q, k, v = self.qkv(x * (1 + self.scale(time))).chunk(3, -1)
        scores = (q @ k.mT).masked_fill(~mask[:, None], -1e9)
        return self.dropout(torch.tanh(scores.softmax(-1) @ v))


class Skip(nn.Module):
    """A function that reads the long skip."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, _mask: Tensor, _time: Tensor, skip: Tensor) -> Tensor:
        return torch.tanh(self.linear(torch.cat((x, skip), -1)))


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * WIDTH, 3)

    def forward(self, streams: tuple[Tensor, ...]) -> Tensor:
        x, x_tilde, mask, _, _ = streams
        return self.linear(((torch.cat((x, x_tilde), -1)) * mask[..., None]).mean(1))


def network(dropout: bool = False) -> list[Stage]:
    torch.manual_seed(0)
    functions = (Attention(), Attention(), Skip(), Attention())
    blocks = [ReversibleStage(function, context=True) for function in functions]
    stages = [BufferedStage(Stem()), *blocks[:2], merge(blocks[2:]), HeadStage(Head())]
    for module in (module for stage in stages for module in stage.modules() if isinstance(module, nn.Dropout)):
        module.p *= dropout
    return [stage.double() for stage in stages]


def batches(count: int) -> list[tuple[tuple[Tensor, ...], Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            (
                torch.randn(3, TOKENS, 3, generator=generator, dtype=torch.float64),
                torch.arange(TOKENS) < torch.randint(1, TOKENS, (3, 1), generator=generator),
                torch.rand(3, 1, generator=generator, dtype=torch.float64),
            ),
            torch.randint(3, (3,), generator=generator),
        )
        for _ in range(count)
    ]


def made(stages: list[Stage], method: Method, **settings: Any) -> Pipeline:
    k = 8 if method.double_buffered else 1
    return Pipeline(copy.deepcopy(stages), method, accumulation=k, optimizer=toys.sgd, **settings)


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_context_trains_as_plain_pytorch(method: Method) -> None:
    """With one micro-batch in flight, a network with context trains as plain PyTorch under every method."""
    stages = network()
    p = made(stages, method)
    data = batches(max(4, p.accumulation))
    model = sequential(plain := copy.deepcopy(stages))
    optimizer = toys.sgd(list(model.parameters()))
    for number, (x, y) in enumerate(data, 1):
        loss = F.cross_entropy(model(x), y)
        (loss / p.accumulation).backward()
        if number % p.accumulation == 0:
            optimizer.step()
            optimizer.zero_grad()
        assert_close(p.step(x, y), loss.detach())
        p.drain()
    assert_close(dict(sequential(p.stages).state_dict()), dict(sequential(plain).state_dict()))


@pytest.mark.parametrize("method", [methods.PETRA, methods.APPROXIMATE_INPUTS, methods.DELAYED_GRADIENTS], ids=str)
def test_full_pipeline_resumes_and_has_predicted_bytes(method: Method) -> None:
    """A full pipeline with context resumes bitwise and has the predicted peak bytes."""
    stages, data = network(dropout=True), batches(24)
    undisturbed, resumed = made(stages, method, seed=1), made(stages, method, seed=1)
    for x, y in data[:20]:
        undisturbed.step(x, y)
    resumed.load_state_dict(undisturbed.state_dict())
    for p in (undisturbed, resumed):
        for x, y in data[20:]:
            p.step(x, y)
    assert_bitwise_equal(resumed.state_dict(), undisturbed.state_dict())
    predicted = predict(stages, method, *data[0], optimizer=toys.sgd)
    assert [dict(s.peak) for s in undisturbed.memory().stages] == [dict(s.peak) for s in predicted]


def test_third_stream_without_context_raises() -> None:
    """Further streams without context=True raise a ValueError that names the option."""
    stages = network()
    stages[1] = ReversibleStage(nn.Identity())
    with pytest.raises(ValueError, match=r"takes two streams, got 5; .*context=True"):
        made(stages, methods.PETRA).step(*batches(1)[0])
