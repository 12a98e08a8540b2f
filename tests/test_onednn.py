"""Where oneDNN cannot be trusted: the strided 1x1 convolutions of narrow networks."""

import dataclasses
from pathlib import Path

import pytest
import torch

from reproduce.execution import Context, execute
from reproduce.onednn import RIGHT_UP_TO, avoided
from reproduce.records import Record, Status
from reproduce.scales import paper, small
from tests.test_cells import TRAINING

CPU = torch.device("cpu")
NARROW = dataclasses.replace(TRAINING, dataset="imagenet", image_size=64, loader="torchvision", width=8)


@pytest.mark.parametrize(
    ("change", "device", "capability", "expected"),
    [
        ({}, "cpu", "AVX512", True),
        ({"width": 16}, "cpu", "AVX512", False),
        ({"model": "revnet50", "width": 8}, "cpu", "AVX512", False),  # its shortcuts have four times the channels
        ({"image_size": 32}, "cpu", "AVX512", False),
        ({}, "cpu", "AVX2", False),  # a block has 8 channels there
        ({"width": 4, "image_size": 32}, "cpu", "AVX2", True),
        ({"model": "chain4", "stem": "stride1", "width": 4}, "cpu", "AVX512", False),  # no shortcuts
        ({}, "cuda", "AVX512", False),
        ({}, "cpu", "DEFAULT", False),
    ],
)
def test_it_is_avoided_where_it_writes_past_its_memory(change, device, capability, expected):
    assert avoided(dataclasses.replace(NARROW, **change), torch.device(device), capability) is expected


def test_what_has_been_recorded_with_avx512_is_computed_as_before():
    assert not avoided(small.cell(), CPU, "AVX512")
    assert not avoided(paper.cell("imagenet", "revnet18", paper.methods.PETRA, 1, 0), CPU, "AVX512")


@pytest.mark.parametrize("channels", [2, 4, 8])
@pytest.mark.parametrize("size", [8, 16, 32])
def test_gradients_are_right_up_to_the_size_that_is_trusted(channels, size):
    """On this machine's kernels; of those that cannot be trusted the cells make no use."""
    if size > RIGHT_UP_TO.get(torch.backends.cpu.get_cpu_capability(), 1000):
        pytest.skip("avoided on this CPU")
    torch.manual_seed(0)
    x, w, g = (
        torch.randn(shape)
        for shape in ((32, channels, size, size), (16, channels, 1, 1), (32, 16, size // 2, size // 2))
    )
    found = [
        torch.ops.aten.convolution_backward(
            *(tensor.to(dtype, memory_format=torch.channels_last) for tensor in (g, x, w)),
            *(None, [2, 2], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False]),
        )[1].double()
        for dtype in (torch.float32, torch.float64)
    ]
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-4)


def test_a_cell_without_it_says_so_and_leaves_it_as_it_was(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    cell = dataclasses.replace(TRAINING, width=2, epochs=1, warmup_epochs=0, drops=())
    before = torch.backends.mkldnn.enabled
    record = Record(tmp_path, cell)
    assert execute(record, Context()).status is Status.DONE
    [environment] = record.environments()
    assert environment["onednn"] is False
    assert torch.backends.mkldnn.enabled is before
