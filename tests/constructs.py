"""Put constructs of users' modules into networks that train as with plain autograd."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from petra_core import BufferedStage, HeadStage, ReversibleStage, Stage
from petra_core.models import ConcatStreams
from tests.toys import Wrap, computing
from tests.user_networks import batches, network


def vector() -> nn.Parameter:
    return nn.Parameter(torch.ones(4))


checkpointed = computing(lambda m, x: checkpoint(m.f, x, use_reentrant=False))


def normed(wrap: Wrap, *last: nn.Module) -> Wrap:
    # There is no bias before BatchNorm, because its gradient is zero up to rounding.
    return lambda f: wrap(nn.Sequential(*f[:2], nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4), *last))


def spectral(f: nn.Module) -> nn.Module:
    return nn.Sequential(f, parametrizations.spectral_norm(nn.Linear(4, 4)))


class Streams(nn.Module):
    """A first stage whose second stream shares memory with another tensor, or is a copy of it."""

    def __init__(self, kind: str, *, copied: bool) -> None:
        super().__init__()
        self.kind, self.copied = kind, copied
        self.linear, self.wide = nn.Linear(3, 4), nn.Linear(3, 8)
        self.query = nn.Parameter(torch.ones(4))
        self.whole = nn.Parameter(torch.ones(5, 4))
        self.register_buffer("mean", torch.zeros(5, 4))
        self.scratch = torch.zeros(5, 4, dtype=torch.float64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.linear(x)
        if self.kind == "view of a parameter":
            second = self.query.expand(len(x), -1)
        elif self.kind == "parameter":
            second = self.whole
        elif self.kind == "buffer":
            with torch.no_grad():
                self.mean = self.mean if self.mean.dtype is h.dtype else self.mean.to(h.dtype)
            second = self.mean
        elif self.kind == "memory of an attribute":
            self.scratch.copy_(x[:, :1].detach().expand(-1, 4))
            second = self.scratch
        elif self.kind == "both the same":
            second = h
        else:
            h, second = self.wide(x).chunk(2, 1)
        return h, second.clone() if self.copied else second


def aliased(kind: str, *, copied: bool) -> list[Stage]:
    torch.manual_seed(1)
    return [BufferedStage(Streams(kind, copied=copied)).double(), *network()[1:]]


def frozen() -> nn.Parameter:
    return nn.Parameter(torch.ones(4), requires_grad=False)


def closing(f: nn.Module) -> nn.Module:
    """Return a module with a closure that refers to the module, which a copy does not."""
    module = computing(lambda m, x: m.compute_by_closure(x))(f)
    module.compute_by_closure = lambda x: module.f(x)
    return module


def buffer(*values: float) -> Callable[[], nn.Buffer]:
    return lambda: nn.Buffer(torch.tensor(values[0] if len(values) == 1 else values))


def narrow(reversible: int = 3) -> list[Stage]:
    """Return a network whose first stage is reversible, for `narrow_batch`."""
    torch.manual_seed(0)
    blocks = [ReversibleStage(nn.Sequential(nn.SiLU(), nn.Linear(3, 3))) for _ in range(reversible)]
    return [*blocks, HeadStage(nn.Sequential(ConcatStreams(), nn.Linear(6, 2)))]


def narrow_batch() -> tuple[Any, Tensor]:
    """Return two streams in bf16 and a target."""
    x, y = batches(1)[0]
    return (x.bfloat16(), x.flip(0).bfloat16()), y


def sharing_frozen() -> list[Stage]:
    """Return a network whose stages share a frozen module."""
    torch.manual_seed(0)  # `network` does so later
    shared = nn.Linear(4, 4).requires_grad_(False)
    return network(lambda f: nn.Sequential(f, nn.Tanh(), shared))
