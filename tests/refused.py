"""Put constructs into networks that the engine refuses, because it would train them otherwise than autograd."""

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from petra_core import Stage
from tests.constructs import buffer, frozen, vector
from tests.toys import Wrap, computing
from tests.user_networks import network


def counting(m: Any, x: Tensor) -> Tensor:
    m.count += 1
    return m.f(x) if m.count < 1000 else x


def counting_in_a_list(m: Any, x: Tensor) -> Tensor:
    m.calls[0] += 1
    return m.f(x) * m.calls[0]


def scaling(m: Any, x: Tensor) -> Tensor:
    m.scale *= 1.01
    return m.f(x) * m.scale


def renormalising(m: Any, x: Tensor) -> Tensor:
    """Read running statistics only after many evaluations, like batch renormalisation."""
    y = m.f(x) * (1 + m.mean * (1e-4 * m.count - 0.1).clamp(0, 1))
    with torch.no_grad():
        m.mean.lerp_(x.mean(), 0.1)
        m.count += 1
    return y


def tracking_with_gradients(m: Any, x: Tensor) -> Tensor:
    """Track statistics only in the evaluation that records a graph, as wrappers of checkpoints do."""
    if torch.is_grad_enabled():
        m.mean.lerp_(x.detach().mean(), 0.1)
    return m.f(x)


def annealed(m: Any, x: Tensor) -> Tensor:
    """Scale only the gradient, by a number of evaluations."""
    m.count += 1
    y = m.f(x)
    return y.detach() + (y - y.detach()) / (1 + m.count)


def normalising(m: Any, x: Tensor) -> Tensor:
    """Scale only the gradient, by running statistics of several elements."""
    y = m.f(x)
    m.scale = 0.9 * m.scale + 0.1 * x.detach().square().mean(0)
    return y.detach() + (y - y.detach()) / (1 + m.scale)


def remembered(m: Any, x: Tensor) -> Tensor:
    """Keep the result of every input."""
    key = x.detach().numpy().tobytes()
    if key not in m.results[0]:
        m.results[0][key] = m.f(x)
    return m.results[0][key]


def rarely(m: Any, x: Tensor) -> Tensor:
    """Draw from a private generator that is given by position."""
    return m.f(x) * (1 + torch.poisson(torch.full((), 1e-3, dtype=x.dtype), m.generators[0]))


@torch.no_grad()
def decay(tensor: Tensor) -> None:
    tensor.mul_(0.9)


#: Residual functions with side effects or hidden state.
IMPURE: dict[str, Wrap] = {
    "python": computing(lambda m, x: m.f(x) if random.random() < 0.999 else 0 * x),
    "python_layer": computing(lambda m, x: m.f(x) if random.random() > 0.8 else x),  # reads weights or not
    "numpy_global": computing(lambda m, x: m.f(x) * float(np.random.rand() < 0.999)),
    "numpy_own": computing(
        lambda m, x: m.f(x) * float(m.numpy.random() < 0.999), numpy=lambda: np.random.default_rng(0)
    ),
    "torch_own": computing(
        lambda m, x: m.f(x) * torch.bernoulli(torch.tensor(0.999), generator=m.generator),
        generator=lambda: torch.Generator().manual_seed(0),
    ),
    "counter": computing(counting, count=lambda: 0),
    "counter_of_gradients": computing(annealed, count=lambda: 0),
    "buffer_of_gradients": computing(normalising, scale=buffer(1.0, 1.0, 1.0, 1.0)),
    "hidden_counter": computing(counting_in_a_list, calls=lambda: [0]),
    "buffer": computing(scaling, scale=buffer(1.0)),
    "buffer_later": computing(renormalising, mean=buffer(0.0), count=buffer(0)),
    "with_gradients": computing(tracking_with_gradients, mean=buffer(0.0)),
    "results": computing(remembered, results=lambda: [{}]),
    "rare": computing(rarely, generators=lambda: [torch.Generator().manual_seed(0)]),
    "frozen": computing(lambda m, x: decay(m.teacher) or m.f(x), teacher=frozen),
    "frozen_data": computing(lambda m, x: decay(m.teacher.data) or m.f(x), teacher=frozen),
    "trained": computing(lambda m, x: decay(m.f[0].weight.data) or m.f(x)),
}


class Drawing(nn.Module):
    """Dropout that lets another thread draw at the first evaluation."""

    threads: Sequence[Any] = (True,)

    def forward(self, x: Tensor) -> Tensor:
        if self.threads:
            thread = threading.Thread(target=torch.rand, args=(7,))
            thread.start()
            thread.join()
            self.threads = ()
        return F.dropout(x, 0.5)


def halve_in_numpy(m: Any, x: Tensor) -> Tensor:
    x.detach().numpy()[...] *= 0.5
    return m.f(x)


#: Functions that write to their input, which autograd does not see.
UNTRACKED: dict[str, Wrap] = {
    "data": computing(lambda m, x: m.f(x.data.clamp_(-0.1, 0.1) + 0 * x)),
    "numpy": computing(halve_in_numpy),
}
#: Functions with parameters in attributes that nn.Module does not search.
UNREGISTERED: dict[str, Wrap] = {
    "list": computing(lambda m, x: m.f(m.layers[0](x)), layers=lambda: [nn.Linear(4, 4).double()]),
    "dict": computing(lambda m, x: m.f(x * m.raw["w"]), raw=lambda: {"w": nn.Parameter(torch.ones(4).double())}),
    "later": computing(
        lambda m, x: m.f(x * m.raw.setdefault("w", torch.ones(4, dtype=x.dtype, requires_grad=True))), raw=dict
    ),
}


def reading_past_modules() -> list[Stage]:
    """Return a network that reads parameters through a list."""
    stages = network(computing(lambda m, x: m.f(x * m.listed[0]), scale=vector))
    for stage in stages[1:3]:
        stage.function.listed = [stage.function.scale]
    return stages


def reading_data() -> list[Stage]:
    """Return a network that reads memory of parameters through buffers."""
    stages = network(computing(lambda m, x: m.f(x * m.scale + m.data), scale=vector))
    for stage in stages[1:3]:
        stage.function.register_buffer("data", stage.function.scale.data, persistent=False)
    return stages


def past_the_streams(keeper: int, user: int, kept: Callable[[Any, Any], Any]) -> list[Stage]:
    """Return a network in which a stage keeps a value of its input x and output y, which another stage reads."""
    store: dict[str, Any] = {"h": 0.0}

    def keep(m: Any, x: Any) -> Any:
        y = m.f(x)
        store["h"] = kept(x, y)
        return y

    stages = network()
    for number, compute in (
        (keeper, keep),
        (user, lambda m, x: m.f(x + torch.as_tensor(store["h"]))),
    ):
        stages[number] = type(stages[number])(computing(compute)(stages[number].function))
    return stages
