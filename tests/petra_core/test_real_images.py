"""Train on real images, because the toy problems of the other tests are easier to fit than photographs."""

from pathlib import Path

import numpy as np
import pytest
import torch

from petra_core import Pipeline, methods, models
from petra_core.optimizers import sgd

pytestmark = pytest.mark.convolutions

RECORD = 1 + 3 * 32 * 32  # one label byte, then planar RGB
BATCH = 16
ACCUMULATION = 4
TICKS = 160


def test_petra_learns_real_cifar10(real_cifar10: Path) -> None:
    """The loss on a few hundred CIFAR-10 images falls in a full pipeline of ten stages with changing weights."""
    path = real_cifar10 / "cifar-10-batches-bin" / "data_batch_1.bin"
    records = torch.from_numpy(np.fromfile(path, dtype=np.uint8, count=256 * RECORD)).view(-1, RECORD)
    labels = records[:, 0].long()
    images = records[:, 1:].view(-1, 3, 32, 32).float()  # [256, 3, 32, 32]
    images = (images - images.mean((0, 2, 3), keepdim=True)) / images.std((0, 2, 3), keepdim=True)

    torch.manual_seed(0)
    stages = models.revnet(18, num_classes=10, stem="cifar", width=4)
    rate = 0.1 * BATCH * ACCUMULATION / 256
    pipeline = Pipeline(stages, methods.PETRA, accumulation=ACCUMULATION, optimizer=sgd(rate))
    losses = []
    for tick in range(TICKS):
        chosen = torch.arange(tick * BATCH, (tick + 1) * BATCH) % len(labels)
        losses.append(pipeline.step(images[chosen], labels[chosen]))
    pipeline.drain()
    seen = torch.stack([loss for loss in losses if loss is not None])

    assert len(seen) == TICKS
    epoch = len(labels) // BATCH
    assert seen[-epoch:].mean() < 0.85 * seen[:epoch].mean()
