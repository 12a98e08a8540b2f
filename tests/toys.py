"""Make small networks for the tests of the engine: every kind of stage, few channels, float64."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from petra_core import BufferedStage, HeadStage, Pipeline, ReversibleStage, Stage, merge, methods
from petra_core.distributed import ProcessChannel
from petra_core.methods import Method
from petra_core.models import ConcatStreams, SplitStreams
from petra_core.optimizers import OptimizerFactory
from reproduce.measures.probe import Probe, Values

CLASSES = 3
#: Every method with the k of most tests, and k = 1 if an update after every backward is a special case.
METHODS_AND_K = [*((method, 3) for method in methods.PAPER), (methods.PETRA, 1)]


class Computing(nn.Module):
    """A module around another one, `f`, whose forward is `compute(self, *inputs)`."""

    def __init__(self, f: nn.Module | None, compute: Callable[..., Any], attributes: dict[str, Any]) -> None:
        super().__init__()
        self.f, self.compute = f, compute
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, *inputs: Any) -> Any:
        return self.compute(self, *inputs)


#: A function that puts a module into another one, or makes one without an inner module.
Wrap = Callable[..., nn.Module]


def computing(compute: Callable[..., Any], **attributes: Callable[[], Any]) -> Wrap:
    """Return a function that puts a module into a `Computing` with these attributes."""
    return lambda f=None: Computing(f, compute, {name: make() for name, make in attributes.items()})


class Down(nn.Module):
    """Map two streams to two streams of half the size and twice the channels. It is not invertible."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.left = nn.Sequential(
            nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(2 * channels)
        )
        self.right = nn.Conv2d(channels, 2 * channels, 1, stride=2)

    def forward(self, streams: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, x_tilde = streams
        h = torch.tanh(self.left(x))
        return h + self.right(x_tilde), h


def residual(channels: int, dropout: float = 0.0) -> nn.Module:
    """Return conv, BatchNorm, smooth activation (ReLU's masks flip under rounding), conv, dropout.

    There is no bias before a BatchNorm: its gradient is zero up to rounding, which no relative tolerance can compare.
    """
    return nn.Sequential(
        nn.Conv2d(channels, channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.Tanh(),
        nn.Conv2d(channels, channels, 3, padding=1),
        *([nn.Dropout(dropout)] if dropout else []),
    )


def stem(channels: int) -> BufferedStage:
    return BufferedStage(
        nn.Sequential(
            nn.Conv2d(3, 2 * channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * channels),
            nn.Tanh(),
            SplitStreams(),
        )
    )


def head(channels: int) -> HeadStage:
    pooled = nn.Sequential(ConcatStreams(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return HeadStage(nn.Sequential(*pooled, nn.Linear(2 * channels, CLASSES)))


def network(stages: int, *, dropout: float = 0.0, seed: int = 0, norm: bool = True) -> list[Stage]:
    """Make `stages` stages in float64: stem, reversible ones, with a down-sampling one in between for J >= 5, head.

    Without `norm`, an update with twice the batch equals one with the mean of two gradients.
    """
    torch.manual_seed(seed)
    if stages == 1:
        flat = nn.Sequential(nn.Flatten(), nn.Linear(3 * 36, CLASSES))
        return [HeadStage(flat).double()]
    channels = 2
    blocks: list[Stage] = [stem(channels)]
    for index in range(stages - 2):
        if index == 2:
            blocks.append(BufferedStage(Down(channels)))
            channels *= 2
        else:
            blocks.append(ReversibleStage(residual(channels, dropout)))
    for module in [module for block in blocks for module in block.modules() if not norm]:
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, nn.Identity())
    return [stage.double() for stage in (*blocks, head(channels))]


def batches(
    count: int, *, size: int = 4, shape: tuple[int, ...] = (3, 6, 6), classes: int = CLASSES, seed: int = 1
) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(size, *shape, generator=generator, dtype=torch.float64),
            torch.randint(0, classes, (size,), generator=generator),
        )
        for _ in range(count)
    ]


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3)


def pipeline(
    stages: Sequence[Stage],
    method: Method = methods.PETRA,
    *,
    optimizer: OptimizerFactory | None = sgd,
    inspect: bool = False,
    **settings: Any,
) -> Pipeline:
    """Return a pipeline over copies of `stages`, which inspects them only if told to."""
    return Pipeline(copy.deepcopy(list(stages)), method, optimizer=optimizer, inspect=inspect, **settings)


def train(p: Pipeline, data: Sequence[tuple[Tensor, Tensor]], *, drain: bool = True) -> list[float]:
    """Return the losses of the micro-batches, or none in a process without the head."""
    losses = [p.step(x, y) for x, y in data]
    if drain:
        p.drain()
    return [loss.item() for loss in losses if loss is not None]


def measured(
    kind: type[Probe],
    stages: Sequence[Stage],
    method: Method,
    data: Sequence[tuple[Tensor, Tensor]],
    *,
    rate: float,
    k: int = 1,
) -> Values:
    """Return what a probe measures, for all micro-batches that can be followed, while `stages` train by plain SGD."""
    probe = kind(interval=1)
    p = Pipeline(
        stages,
        method,
        accumulation=k,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate),
        seed=0,
        after_backward=probe.after_backward,
    )
    probe.watch(p, len(data))
    for x, y in data:
        probe.before_step(x, y)
        p.step(x, y)
    collected = probe.collect()
    assert collected["probes"] == len(data) - 2 * (len(stages) - 1)
    values: Values = collected["measured"]
    return values


def weights(p: Pipeline) -> dict[str, Tensor]:
    """Return parameters and buffers of the plain model."""
    return {name: tensor.clone() for name, tensor in p.model.state_dict().items()}


def of_process(stages: list[Stage], channel: ProcessChannel | None) -> list[Stage]:
    """Return the stages, with those of other processes on the meta device."""
    own = range(len(stages)) if channel is None else channel.stages
    return [stage if index in own else stage.to("meta") for index, stage in enumerate(stages)]


def merged_network(stages: int) -> list[Stage]:
    """Return a channels-last network with dropout. With 6 or more stages, one stage is two merged blocks."""
    blocks = network(stages + (stages > 5), dropout=0.2)
    if stages > 5:
        blocks[1:3] = [merge(blocks[1:3])]
    return [block.to(memory_format=torch.channels_last) for block in blocks]


def pipeline_of_process(
    stages: int, method: Method, k: int, channel: ProcessChannel | None = None, staleness: Sequence[int] | None = None
) -> Pipeline:
    blocks = of_process(merged_network(stages), channel)
    return pipeline(blocks, method, accumulation=k, seed=7, channel=channel, staleness=staleness)


def fourier(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Map [batch, 3, 6, 6] to a complex stream of coefficients and a boolean stream, |coefficients| > 1."""
    coefficients = torch.fft.fft2(x * m.scale + m.shift.sum())
    return coefficients, coefficients.abs() > 1


def magnitudes(m: Any, streams: tuple[Tensor, Tensor]) -> Tensor:
    """Map the streams of `fourier` to logits."""
    return m.f(torch.where(streams[1], streams[0].abs(), streams[0].real).flatten(1))


def complex_network() -> list[Stage]:
    """Return two stages with a complex and a boolean stream between them."""
    torch.manual_seed(0)
    scale, shift = nn.Parameter(torch.rand(3, 6, 6)), nn.Parameter(torch.rand(5))
    first = computing(fourier, scale=lambda: scale, shift=lambda: shift)
    head = computing(magnitudes)(nn.Linear(108, CLASSES))
    return [BufferedStage(first()).double(), HeadStage(head).double()]


def convolutions(norm: bool = True) -> list[Stage]:
    """Make three blocks and a head; without norms the samples of a batch are independent."""
    torch.manual_seed(0)

    def block(stride: int = 1) -> nn.Module:
        conv = nn.Conv2d(3, 3, 3, stride=stride, padding=1, bias=not norm)
        # In place, as in torchvision's blocks: it writes over the outputs of which gradients are taken.
        return nn.Sequential(conv, *([nn.BatchNorm2d(3)] if norm else []), nn.ReLU(inplace=True))

    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, CLASSES))
    return [stage.double() for stage in (*map(BufferedStage, (block(), block(2), block())), HeadStage(head))]


def auxiliary(norm: bool = True) -> Callable[[int], nn.Module]:
    """Return a function that makes the auxiliary network of a block of `convolutions`."""

    def make(block: int) -> nn.Module:
        pooled = [*([nn.BatchNorm2d(3)] if norm else []), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
        return nn.Sequential(*pooled, nn.Linear(12, CLASSES)).double()

    return make
