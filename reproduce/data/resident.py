"""Make batches of images within a CUDA graph, bitwise equal to those of `InMemory` and without work of the host.

A CUDA graph reads its inputs from static buffers (`petra_core.devices.captured`). If the host made the batches, it
would copy each one into such a buffer before every step, and the device would be nearly idle while the kernels and
copies of the batch run between two steps. Here the host writes once per epoch which samples to read, where to crop them
and whether to mirror them. A counter on the device selects the next batch, so the graph of a step includes the ten
kernels that make the batch.

A normalised pixel is a function of its channel and its byte. It is read from a table of 3 x 256 numbers, which the
loader's normalising function computes.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from reproduce.data.crops import choose_mirrored, choose_padded_crops
from reproduce.data.loader import PADDING, Batch, InMemory, Loader


class ResidentBatches:
    """Batches of a loader whose source is `InMemory`, made from buffers at constant addresses.

    Args:
        loader: Loader of the training set.
        source: Source of the loader.

    """

    def __init__(self, loader: Loader, source: InMemory) -> None:
        self._loader, self._source = loader, source
        device, size = source.pixels.device, source.pixels.shape[-1]
        every_byte = torch.arange(256, dtype=torch.uint8, device=device).expand(3, 1, 256)
        self._table = source.normalised(every_byte)[:, 0]
        self._image = torch.arange(loader.batch_size, device=device)[:, None, None, None]
        self._channel, self._pixel = torch.arange(3, device=device), torch.arange(size, device=device)
        self._labels = source.labels.cpu().numpy()
        #: Index, first row, first column, step between columns (1 or -1) and label of every sample of the epoch.
        self._samples = torch.zeros(loader.batches, loader.batch_size, 5, dtype=torch.int64, device=device)
        self._next = torch.zeros(1, dtype=torch.int64, device=device)
        self._prepared: tuple[tuple[int, int, int], Tensor] | None = None

    def prepare(self, epoch: int, start: int = 0, step: int = 1) -> None:
        """Compute on the host the values that `begin` will copy for these batches, while the device is still busy."""
        samples, hashes = self._loader.samples_of(epoch, start, step)
        tops, lefts, flips = (*choose_padded_crops(hashes, PADDING), choose_mirrored(hashes))
        if not self._source.augment:
            tops, lefts, flips = np.full_like(tops, PADDING), np.full_like(lefts, PADDING), np.zeros_like(flips)
        first = np.where(flips, lefts + len(self._pixel) - 1, lefts)
        rows = np.stack((samples, tops, first, np.where(flips, -1, 1), self._labels[samples]), axis=1)
        self._prepared = (epoch, start, step), torch.from_numpy(rows).view(-1, *self._samples.shape[1:])

    def begin(self, epoch: int, start: int = 0, step: int = 1) -> None:
        """Select batches `start`, `start + step`, … of an epoch as the next ones (`Loader.epoch`)."""
        if self._prepared is None or self._prepared[0] != (epoch, start, step):
            self.prepare(epoch, start, step)
        assert self._prepared is not None
        rows = self._prepared[1]
        self._samples[: len(rows)].copy_(rows)
        self._next.zero_()

    def batch(self) -> Batch:
        """Make the next batch on the device: images float32 [B, 3, H, W] (channels last) and labels int64 [B]."""
        rows = self._samples.index_select(0, self._next)[0]
        self._next.add_(1)
        number, top, first, step, labels = rows.unbind(1)
        padded = F.pad(self._source.pixels[number], (PADDING,) * 4)
        y = top[:, None] + self._pixel
        x = torch.addcmul(first[:, None], step[:, None], self._pixel)
        values = padded[self._image, self._channel, y[:, :, None, None], x[:, None, :, None]]  # [B, H, W, 3]
        return self._table[self._channel, values.long()].permute(0, 3, 1, 2), labels
