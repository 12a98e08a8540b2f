"""Networks as users write them: a plain model, its stages in a few lines, and random batches.

Every file defines `Model` (plain PyTorch), `stages(model)`, `batch()` and `loss(output, target)` in at most 60 lines.
"""

from pathlib import Path

#: A module with networks that can be trained, and with some that cannot.
SOURCE = """
import numpy
import torch
from petra_core import BufferedStage, HeadStage, ReversibleStage
from petra_core.models import ConcatStreams, DuplicateStreams
from torch import nn

depths = [rate.item() for rate in torch.linspace(0, 0.1, 2)]  # as timm does

def stages():
    assert all(rate.item() >= 0 for rate in torch.linspace(0, 0.1, 2))
    f = lambda: nn.Sequential(nn.Linear(16, 16), nn.Tanh())
    stem = BufferedStage(nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 16), DuplicateStreams()))
    head = HeadStage(nn.Sequential(ConcatStreams(), nn.Linear(32, 10)))
    return [stem, ReversibleStage(f()), ReversibleStage(f()), head]

def sequential():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 16), nn.Linear(16, 10))

class Masked(nn.Linear):
    def forward(self, value):
        return super().forward(value[0]) * value[1]

def with_batch():
    return nn.Sequential(Masked(5, 4), nn.Linear(4, 3)), (torch.ones(7, 5), torch.ones(7, 1)), torch.zeros(7).long()

def one_channel():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 10))

class OfText(nn.Sequential):
    def forward(self, tokens):
        return super().forward(tokens).transpose(1, 2)  # [batch, classes, length]

def of_text():
    return [BufferedStage(nn.Identity()), HeadStage(OfText(nn.Embedding(257, 16), nn.Linear(16, 256)))]

def few_classes():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 16), nn.Linear(16, 7))

def without_flatten():
    return nn.Sequential(nn.Conv2d(3, 10, 8))

def with_nan():
    network = sequential()
    network[1].register_buffer("unknown", torch.tensor(float("nan")))
    return network

def drawn_by_numpy():
    network = sequential()
    network[1].weight.data.copy_(torch.from_numpy(numpy.random.rand(16, 3 * 64)))
    return network

def nothing(): pass
def headless(): return stages()[:2]
def needs(width): pass
def breaks(): raise RuntimeError("no weights here")
"""


def write_module(folder: Path, name: str) -> None:
    """Write a module with `SOURCE`, and one that cannot be imported."""
    (folder / f"{name}.py").write_text(SOURCE, encoding="utf-8")
    (folder / f"{name}_broken.py").write_text("import a_package_that_nobody_has", encoding="utf-8")
