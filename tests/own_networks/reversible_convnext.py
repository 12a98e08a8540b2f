"""A reversible ConvNeXt: F is the residual branch of a block, and down-sampling layers take both streams."""

from torch import Tensor, nn
from torch.nn import functional as F

from petra_core import BufferedStage, HeadStage, ReversibleStage, Stage
from petra_core.models import ConcatStreams, SplitStreams
from tests.own_networks.convnext import ChannelNorm, Residual, batch

__all__ = ["Model", "batch", "loss", "stages"]
loss = F.cross_entropy


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 2, stride=2), ChannelNorm(8), SplitStreams())
        self.fine = nn.ModuleList(Residual(4) for _ in range(2))
        self.down = nn.Sequential(ConcatStreams(), ChannelNorm(8), nn.Conv2d(8, 12, 2, stride=2), SplitStreams())
        self.coarse = nn.ModuleList(Residual(6) for _ in range(2))
        self.head = nn.Sequential(ConcatStreams(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 3))

    def forward(self, image: Tensor) -> Tensor:
        x, x_tilde = self.stem(image)
        for f in self.fine:
            x, x_tilde = x_tilde + f(x), x
        x, x_tilde = self.down((x, x_tilde))
        for f in self.coarse:
            x, x_tilde = x_tilde + f(x), x
        return self.head((x, x_tilde))


def stages(model: Model) -> list[Stage]:
    blocks = [*map(ReversibleStage, model.fine), BufferedStage(model.down), *map(ReversibleStage, model.coarse)]
    return [BufferedStage(model.stem), *blocks, HeadStage(model.head)]
