"""Test the networks: sizes, structure, forward values against independent code, and weights of the plain model."""

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from petra_core import merge, models
from petra_core.inspection.modules import check_residual
from petra_core.stages import BufferedStage, HeadStage, ReversibleStage

pytestmark = pytest.mark.convolutions

# (depth, classes, stem) -> parameters of the paper's models (arXiv 2406.02052), which reports 12.2M, 22.3M and 30.4M
# for ImageNet.
REVNET_PARAMETERS = {
    (18, 10, "cifar"): 11_185_802,
    (18, 100, "cifar"): 11_278_052,
    (18, 1000, "imagenet"): 12_215_912,
    (34, 1000, "imagenet32"): 22_312_424,
    (34, 1000, "imagenet"): 22_327_784,
    (50, 10, "cifar"): 26_350_218,
    (50, 1000, "imagenet"): 30_421_608,
}
RESNET_PARAMETERS = {
    (18, 1000, "imagenet"): 11_689_512,
    (34, 1000, "imagenet"): 21_797_672,
    (50, 1000, "imagenet"): 25_557_032,
}
REVNET_BUFFERED = {18: [0, 3, 5, 7, 9], 34: [0, 4, 8, 14, 17], 50: [0, 1, 4, 8, 14, 17]}


def test_parameter_counts_match_paper_and_torchvision():
    for family, expected in ((models.revnet, REVNET_PARAMETERS), (models.resnet, RESNET_PARAMETERS)):
        for (depth, num_classes, stem), parameters in expected.items():
            with torch.device("meta"):
                stages = family(depth, num_classes=num_classes, stem=stem)
            assert sum(p.numel() for stage in stages for p in stage.parameters()) == parameters, (family, depth, stem)


@pytest.mark.parametrize("depth", [18, 34, 50])
def test_stages_are_reversible_unless_shape_changes(depth):
    """RevNet's stages are invertible except where the shape changes; a ResNet has no invertible stage."""
    stages = models.revnet(depth, num_classes=10, width=1)
    assert len(stages) == {18: 10, 34: 18, 50: 18}[depth]
    assert [j for j, stage in enumerate(stages) if not stage.invertible] == REVNET_BUFFERED[depth]
    resnet = models.resnet(depth, num_classes=10, width=1)
    assert len(resnet) == len(stages)
    assert not any(stage.invertible for stage in resnet)
    first, second, *_ = (stage for stage in stages if stage.invertible)
    assert merge([first, second]).invertible
    assert not merge([stages[0], first]).invertible
    assert resnet[0](torch.ones(2, 3, 16, 16)).shape == (2, 1, 16, 16)
    assert isinstance(stages[-1], HeadStage)
    assert isinstance(resnet[-1], HeadStage)


def test_chain_accepts_any_image_shape():
    """A chain accepts images with one channel and an odd size."""
    stages = models.chain(2, num_classes=5, channels=3, stem_stride=2, in_channels=1)
    assert [type(stage) for stage in stages] == [BufferedStage, ReversibleStage, ReversibleStage, HeadStage]
    y, y_tilde = stages[0](torch.randn(2, 1, 9, 9))
    assert y.shape == y_tilde.shape == (2, 3, 5, 5)
    assert models.sequential(stages)(torch.randn(2, 1, 9, 9)).shape == (2, 5)


def test_families_use_pytorchs_default_initialisation():
    """Both families draw bounded uniform weights; the ResNet of torchvision draws normal weights (Kaiming)."""
    torch.manual_seed(0)
    for stages in (models.revnet(18, num_classes=10, width=8), models.resnet(18, num_classes=10, width=8)):
        for module in models.sequential(stages).modules():
            if isinstance(module, nn.Conv2d):
                fan_in = module.in_channels * module.kernel_size[0] ** 2
                assert module.weight.abs().max() <= fan_in**-0.5 + 1e-7
            if isinstance(module, nn.BatchNorm2d):
                assert (module.eps, module.momentum) == (1e-5, 0.1)
                assert torch.equal(module.weight, torch.ones_like(module.weight))


class LayerReader:
    """A reader of a state dict's layers in order, so that the independent model needs no names."""

    def __init__(self, state: dict[str, Tensor]) -> None:
        self.tensors = [tensor for name, tensor in state.items() if not name.endswith(("mean", "var", "tracked"))]

    def conv_bn(self, x: Tensor, stride: int = 1, *, relu: bool) -> Tensor:
        weight, bias, gamma, beta = (self.tensors.pop(0) for _ in range(4))
        out = F.conv2d(x, weight, bias, stride, padding=weight.shape[-1] // 2)
        mean = out.mean((0, 2, 3), keepdim=True)
        variance = (out - mean).square().mean((0, 2, 3), keepdim=True)
        out = (out - mean) / (variance + 1e-5).sqrt() * gamma[:, None, None] + beta[:, None, None]
        return out.clamp_min(0) if relu else out


def revnet_by_hand(depth: int, stem: str, state: dict[str, Tensor], images: Tensor) -> Tensor:
    """Return the output of the paper's RevNet in training mode, written only from its description."""
    tape = LayerReader(state)
    large = stem == "imagenet"
    out = tape.conv_bn(images, 2 if large else 1, relu=True)
    if large:
        out = F.max_pool2d(out, 2)
    half = out.shape[1] // 2
    x, x_tilde = out[:, :half], out[:, half:]
    blocks = {18: [2, 2, 2, 2], 34: [3, 4, 6, 3], 50: [3, 4, 6, 3]}[depth]
    for group, count in enumerate(blocks):
        for position in range(count):
            first = position == 0
            stride = 2 if first and group else 1
            if depth == 50:
                residual = tape.conv_bn(x, relu=True)
                residual = tape.conv_bn(residual, stride, relu=True)
                residual = tape.conv_bn(residual, relu=True)
                if first:  # 64 -> 256 in the first group, then down-sampling
                    y = residual + tape.conv_bn(x_tilde, stride, relu=False)
                    x, x_tilde = y, tape.conv_bn(x, stride, relu=False)
                else:
                    x, x_tilde = x_tilde + residual, x
            elif first and group:
                h = tape.conv_bn(x, 2, relu=True)
                y = tape.conv_bn(h, relu=True)
                x, x_tilde = y + tape.conv_bn(x_tilde, 2, relu=False), h
            else:
                residual = tape.conv_bn(tape.conv_bn(x, relu=True), relu=True)
                x, x_tilde = x_tilde + residual, x
    weight, bias = tape.tensors
    return torch.cat([x, x_tilde], 1).mean((2, 3)) @ weight.T + bias


@pytest.mark.parametrize(
    ("depth", "stem", "size"), [(18, "cifar", 16), (18, "imagenet", 64), (34, "imagenet", 64), (50, "cifar", 16)]
)
def test_revnet_matches_papers_description(depth, stem, size):
    """RevNet's outputs equal those of an independent implementation of the paper's description."""
    torch.manual_seed(depth)
    model = models.sequential(models.revnet(depth, num_classes=5, stem=stem, width=3)).double()
    images = torch.randn(3, 3, size, size, dtype=torch.float64)
    torch.testing.assert_close(
        model(images), revnet_by_hand(depth, stem, model.state_dict(), images), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("depth", [18, 50])
def test_resnet_matches_torchvision(depth):
    torch.manual_seed(depth)
    theirs = getattr(torchvision.models, f"resnet{depth}")(num_classes=5).double()
    stages = models.resnet(depth, num_classes=5, stem="imagenet")
    ours = models.sequential(stages).double()
    # Both register their layers in the order of computation, so the tensors correspond one to one.
    ours.load_state_dict(dict(zip(ours.state_dict(), theirs.state_dict().values(), strict=True)))
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    torch.testing.assert_close(ours(images), theirs(images), rtol=1e-12, atol=1e-12)
    ours.eval(), theirs.eval()
    torch.testing.assert_close(ours(images), theirs(images), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_split_streams_share_no_memory_and_keep_format(layout):
    """A view would keep the other stream alive in every message (module docstring)."""
    value = torch.randn(2, 6, 4, 5).to(memory_format=layout)
    streams = models.SplitStreams()(value)
    for stream, expected in zip(streams, (value[:, :3], value[:, 3:]), strict=True):
        assert torch.equal(stream, expected)
        assert stream.is_contiguous(memory_format=layout)
        assert stream.untyped_storage().nbytes() == stream.numel() * stream.element_size()
    assert torch.equal(models.ConcatStreams()(streams), value)


def test_residual_that_cannot_learn_raises():
    """The usual zero initialisation would keep the block at 0 in all of training, because it ends in a ReLU."""
    residual = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    check_residual(residual)
    nn.init.zeros_(residual[1].weight)
    with pytest.raises(ValueError, match=r"BatchNorm2d and ReLU, and all 4 weights .* are 0"):
        check_residual(residual)
    zero, one = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
    nn.init.zeros_(zero.weight)
    check_residual(nn.Sequential(nn.ReLU(), zero))  # no ReLU follows
    check_residual(nn.Sequential(zero, nn.ReLU(), one, nn.ReLU()))  # not the last BatchNorm
    check_residual(nn.Sequential(nn.ReLU()))  # no weights at all
    nn.init.constant_(zero.bias, 0.1)
    check_residual(nn.Sequential(zero, nn.ReLU()))  # the bias keeps the ReLU active


@pytest.mark.parametrize("sizes", [[10], [2, 1, 5, 2]])
def test_grouping_keeps_outputs_and_state_names(sizes):
    stages = models.revnet(18, num_classes=4, width=2)
    grouped = models.group(stages, sizes)
    assert [len(stage.parts()) for stage in grouped] == sizes
    assert list(models.sequential(grouped).state_dict()) == list(models.sequential(stages).state_dict())
    images = torch.randn(2, 3, 8, 8)
    plain, merged = nn.Sequential(*stages).eval(), nn.Sequential(*grouped).eval()
    assert torch.equal(plain(images), merged(images))
    assert torch.equal(plain(images), models.sequential(grouped)(images))
