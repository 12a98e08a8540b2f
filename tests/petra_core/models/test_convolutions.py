"""Test every kind of convolution that the networks use against float64 and with glibc's heap checks.

oneDNN's gradient of a strided 1x1 convolution with few channels writes past its workspace. Therefore each kind runs in
a separate process, with the kernels of this processor and with those of AVX2.
"""

import copy
import itertools
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from petra_core import models
from petra_core.models import PointwiseConv2d
from petra_core.stages import Stage
from reproduce.models.invertible_revnet import invertible_revnet
from reproduce.models.revmvit import revmvit
from reproduce.models.revvit import revvit

pytestmark = pytest.mark.convolutions

#: Kernel, stride, padding and whether it is depthwise, for every convolution of the networks.
KINDS = (
    *((kernel, stride, 0, False) for kernel, stride in ((1, 1), (1, 2), (2, 2), (4, 4), (16, 16))),
    *((3, stride, 1, alone) for stride in (1, 2, 4) for alone in (False, True)),
    *((7, stride, 3, False) for stride in (2, 4)),
)
#: Channels and pixels. The largest images have few channels, because the reference in float64 is slow.
SIZES = (*itertools.product((2, 3, 4, 8, 12, 16), (4, 9, 32)), *((channels, 64) for channels in (2, 3, 4)))
SECONDS = 300  # a process with a damaged heap may hang; a busy machine needed 80 instead of 8

#: glibc checks the heap at every call and overwrites freed memory: https://sourceware.org/glibc/wiki/MallocDebugging
HEAP_CHECKS = {"LD_PRELOAD": "libc_malloc_debug.so.0", "MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "165"}


def networks() -> list[list[Stage]]:
    residual = (models.resnet, models.revnet, invertible_revnet)
    return [
        *(
            family(depth, num_classes=2, stem=stem, width=4)
            for family, depth, stem in itertools.product(residual, (18, 50), ("cifar", "imagenet"))
        ),
        *(models.chain(1, num_classes=2, stem_stride=stride) for stride in (1, 2, 4)),
        *(revvit("micro", num_classes=2, image_size=32, patch=patch) for patch in (1, 2, 4, 16)),
        revmvit("tiny", num_classes=2, image_size=32),
    ]


def kind_of(convolution: nn.Conv2d) -> tuple[int, int, int, bool]:
    alone = convolution.groups == convolution.in_channels and convolution.groups > 1
    return convolution.kernel_size[0], convolution.stride[0], int(convolution.padding[0]), alone


def test_kinds_cover_all_convolutions_of_models():
    """KINDS has every convolution of the models, whose strided 1x1 convolutions are PointwiseConv2d."""
    with torch.device("meta"):
        modules = [module for stages in networks() for stage in stages for module in stage.modules()]
    used = [module for module in modules if isinstance(module, nn.Conv2d)]
    assert {kind_of(convolution) for convolution in used} == set(KINDS)
    strided = [c for c in used if c.kernel_size == (1, 1) and c.stride != (1, 1)]
    assert strided
    assert all(isinstance(convolution, PointwiseConv2d) for convolution in strided)


@pytest.mark.parametrize(("stride", "bias"), [(1, True), (2, False), (3, True)])
def test_pointwise_convolution_equals_plain_one(stride, bias):
    """PointwiseConv2d has the outputs and gradients of nn.Conv2d."""
    torch.manual_seed(0)
    ours = PointwiseConv2d(3, 5, stride, bias=bias).double()
    plain = nn.Conv2d(3, 5, 1, stride=stride, bias=bias).double()
    plain.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 7, 8, dtype=torch.float64, requires_grad=True)
    results = []
    for convolution in (ours, plain):
        y = convolution(x)
        results.append((y, *torch.autograd.grad(y.square().sum(), [x, *convolution.parameters()])))
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)


def test_gradients_are_accurate_and_heap_is_intact():
    """Outputs and gradients agree with float64 under glibc's heap checks."""
    environment = {**os.environ, **HEAP_CHECKS}
    try:
        command = [sys.executable, "-m", "tests.petra_core.models.test_convolutions"]
        process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"a convolution has not come back within {SECONDS} s; so far: {error.stdout}")
    assert process.returncode == 0, process.stdout + process.stderr


def errors(kind: tuple[int, int, int, bool], channels: int, pixels: int) -> Iterator[tuple[torch.memory_format, float]]:
    """Yield each layout and its largest error of an output or gradient, relative to the largest value in float64."""
    kernel, stride, padding, alone = kind
    pixels = max(pixels, kernel)
    out = channels if alone else 2 * channels
    torch.manual_seed(0)
    if kernel == 1:
        convolution: nn.Conv2d = PointwiseConv2d(channels, out, stride)
    else:
        groups = channels if alone else 1
        convolution = nn.Conv2d(channels, out, kernel, stride=stride, padding=padding, groups=groups)
    x = torch.randn(2, channels, pixels, pixels)
    exact = output_and_gradients(copy.deepcopy(convolution).double(), x.double())  # not by oneDNN
    for layout in (torch.channels_last, torch.contiguous_format):
        ours = output_and_gradients(convolution.to(memory_format=layout), x.clone(memory_format=layout))
        pairs = zip(ours, exact, strict=True)
        yield layout, max(float((one - right).abs().max() / right.abs().max()) for one, right in pairs)


def output_and_gradients(convolution: nn.Conv2d, x: Tensor) -> tuple[Tensor, ...]:
    x.requires_grad_()
    y = convolution(x)
    return y, *torch.autograd.grad(y.square().sum(), [x, *convolution.parameters()])


def try_all() -> int:
    """Try every kind in a separate process, print the results and return the number of failures."""
    failed = 0
    for kind in KINDS:
        started = time.monotonic()
        child = os.fork()  # before any computation, while there are no threads
        if not child:
            os._exit(try_one(kind))
        _, status = os.waitpid(child, 0)
        print(kind, f"{time.monotonic() - started:.1f} s", "FAILED" if status else "right", status, flush=True)
        failed += status != 0
    return failed


def try_one(kind: tuple[int, int, int, bool]) -> int:
    for channels, pixels in SIZES:
        for layout, error in errors(kind, channels, pixels):
            if not error < 1e-5:
                print(kind, layout, f"{channels} channels, {pixels} pixels: error {error:.1e}", flush=True)
                return 1
    return 0


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    raise SystemExit(try_all())
