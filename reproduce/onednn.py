"""oneDNN's convolutions on a CPU, but where they write past their memory.

The gradient of the weights of a 1x1 convolution with a stride, of channels-last float32 with fewer channels than a
block of the kernel has (16 with AVX-512, 8 with AVX2), writes past oneDNN's workspace
(https://github.com/uxlfoundation/oneDNN/issues/6035, open with the oneDNN 3.13 of torch 2.15): wrong gradients, a crash
somewhere later, or a process that hangs. The shortcuts of narrow ResNets and RevNets are such convolutions. Their cells
are computed by torch's own kernels, which are slower, and their records say so.

Of AVX-512, images of up to 52 pixels are left to oneDNN: there the gradients were compared with float64 for 2 to 32
channels and were right, and glibc's checks of the heap found nothing; from 56 pixels on it crashes.

This module exports avoided, trusted.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from reproduce.cells import Cell, MeasuredCell, TrainedCell

__all__ = ["avoided", "trusted"]

BLOCKS = {"AVX512": 16, "AVX2": 8}  # channels, by torch's name for what the CPU can do
#: The largest images with which the kernel was found to be right.
RIGHT_UP_TO = {"AVX512": 52, "AVX2": 0}


@contextlib.contextmanager
def trusted(cell: Cell, device: torch.device) -> Iterator[None]:
    """Context in which a cell is computed without oneDNN if that cannot be trusted with it."""
    if not avoided(cell, device, torch.backends.cpu.get_cpu_capability()):
        yield
        return
    onednn: Any = torch.backends.mkldnn  # its own context manager also sets TF32, with a warning
    before, onednn.enabled = onednn.enabled, False
    try:
        yield
    finally:
        onednn.enabled = before


def avoided(cell: Cell, device: torch.device, capability: str) -> bool:
    """Whether a cell is computed without oneDNN.

    Args:
        cell: any; those without a network are not concerned.
        device: where it is computed.
        capability: of the CPU, as `torch.backends.cpu.get_cpu_capability` names it.

    """
    if device.type != "cpu" or capability not in BLOCKS or not isinstance(cell, TrainedCell | MeasuredCell):
        return False
    if cell.image_size <= RIGHT_UP_TO[capability]:
        return False
    from reproduce import networks  # few cells come this far

    with torch.device("meta"):
        modules = [module for stage in networks.build(cell, num_classes=2) for module in stage.modules()]
    return any(
        isinstance(module, nn.Conv2d)
        and module.kernel_size == (1, 1)
        and module.stride != (1, 1)
        and module.in_channels < BLOCKS[capability]
        for module in modules
    )
