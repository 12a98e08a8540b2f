"""Test context: streams that reversible stages pass on unchanged and that their functions read, with gradients."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from petra_core import BufferedStage, HeadStage, ReversibleStage, Stage, merge, methods
from petra_core.methods import Method
from tests import toys
from tests.properties import assert_bytes_are_as_predicted, assert_resumes_bitwise, assert_trains_as_plain_training

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


def read_skip(m: Any, x: Tensor, _mask: Tensor, _time: Tensor, skip: Tensor) -> Tensor:
    return torch.tanh(m.f(torch.cat((x, skip), -1)))


def classify(m: Any, streams: tuple[Tensor, ...]) -> Tensor:
    x, x_tilde, mask, _, _ = streams
    return m.f(((torch.cat((x, x_tilde), -1)) * mask[..., None]).mean(1))


def network(dropout: bool = False) -> list[Stage]:
    torch.manual_seed(0)
    functions = (Attention(), Attention(), toys.computing(read_skip)(nn.Linear(2 * WIDTH, WIDTH)), Attention())
    blocks = [ReversibleStage(function, context=True) for function in functions]
    stages = [
        BufferedStage(Stem()),
        *blocks[:2],
        merge(blocks[2:]),
        HeadStage(toys.computing(classify)(nn.Linear(2 * WIDTH, 3))),
    ]
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


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_context_trains_as_plain_pytorch(method: Method) -> None:
    assert_trains_as_plain_training(network(), method, 1, batches(8))


@pytest.mark.parametrize("method", [methods.PETRA, methods.APPROXIMATE_INPUTS, methods.DELAYED_GRADIENTS], ids=str)
def test_full_pipeline_resumes_and_has_predicted_bytes(method: Method, tmp_path: Path) -> None:
    """A full pipeline with context resumes bitwise and has the predicted peak bytes."""
    stages, data = network(dropout=True), batches(16)
    assert_resumes_bitwise(lambda: toys.pipeline(stages, method, seed=1), data, 9, tmp_path)
    assert_bytes_are_as_predicted(stages, method, data[0], 1, toys.sgd)
