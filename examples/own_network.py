"""Train a custom U-Net: a denoiser with the time as context and a long skip past its reversible middle.

python examples/own_network.py --method PETRA --steps 200
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import petra_core
from petra_core import BufferedStage, Clip, HeadStage, Pipeline, ReversibleStage, Stage, methods

WIDTH = 16


class Residual(nn.Module):
    """Function F(x, time, ...) of a reversible stage. It keeps the shape of x and ignores streams after the time."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.time = nn.Linear(WIDTH, channels)
        self.layers = nn.Sequential(
            nn.GroupNorm(4, channels),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.GELU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x: Tensor, time: Tensor, *_unread: Tensor) -> Tensor:
        return self.layers(x + self.time(time)[..., None, None])


class Stem(nn.Module):
    """Stem, which maps an image and its time to two equal streams and the embedding of the time."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Conv2d(1, WIDTH, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(1, WIDTH), nn.GELU())

    def forward(self, value: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        image, time = value
        h = self.image(image)
        return h, h, self.time(time)


class Down(nn.Module):
    """Down-sampling to half the size and twice the channels. Its input is returned as another stream, the long skip."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(WIDTH, 2 * WIDTH, 2, stride=2)

    def forward(self, streams: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, x_tilde, time = streams
        skip = x + x_tilde
        h = self.down(skip)
        return h, h, time, skip


class Up(nn.Module):
    """Up-sampling to the size of the long skip, which it adds and removes from the streams."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(2 * WIDTH, WIDTH, 2, stride=2)

    def forward(self, streams: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, x_tilde, time, skip = streams
        h = self.up(x + x_tilde) + skip
        return h, h, time


class Out(nn.Module):
    """Output layer, which maps the two streams to an image."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Conv2d(2 * WIDTH, 1, 3, padding=1)

    def forward(self, streams: tuple[Tensor, ...]) -> Tensor:
        x, x_tilde, _time = streams
        return self.out(torch.cat((x, x_tilde), 1))


def network() -> list[Stage]:
    """Return the stages of the U-Net."""
    return [
        BufferedStage(Stem()),
        ReversibleStage(Residual(WIDTH), context=True),
        BufferedStage(Down()),
        *(ReversibleStage(Residual(2 * WIDTH), context=True) for _ in range(2)),
        BufferedStage(Up()),
        ReversibleStage(Residual(WIDTH), context=True),
        HeadStage(Out(), F.mse_loss),
    ]


def batch(size: int = 8) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Return noisy images of squares with the amount of noise, and the noise as the target."""
    side = torch.arange(16)
    corner = torch.randint(0, 8, (2, size, 1))
    rows, columns = ((corner <= side) & (side < corner + 8)).float()
    image = (rows[:, :, None] * columns[:, None, :])[:, None]
    noise, time = torch.randn_like(image), torch.rand(size, 1)
    return (image + time[..., None, None] * noise, time), noise


def main(method: str = "PETRA", steps: int = 200) -> list[float]:
    """Check the network, train it, and return its losses."""
    torch.manual_seed(0)
    stages, chosen = network(), methods.by_name(method)
    report = petra_core.check(stages, *batch(), method=chosen)
    print(report)
    pipeline = Pipeline(
        stages,
        chosen,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        clip=Clip(1.0, per_stage=chosen.pipelined),
    )
    losses = []
    for number in range(steps):
        pipeline.set_learning_rate(1e-3 * min(1.0, (number + 1) / 50))  # warm-up
        loss = pipeline.step(*batch())
        assert loss is not None  # a single process always has the loss
        losses.append(loss.item())
        if number % 50 == 49:
            print(f"micro-batch {number + 1}: mean loss of the last 50 {sum(losses[-50:]) / 50:.3f}")
    pipeline.drain()
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", default="PETRA", help="one of petra_core.methods")
    parser.add_argument("--steps", type=int, default=200, help="micro-batches")
    arguments = parser.parse_args()
    main(arguments.method, arguments.steps)
