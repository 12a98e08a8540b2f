"""Test the transformers: their values, their sizes and the errors for settings that do not exist."""

from collections.abc import Callable, Sequence

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.swin_transformer import ShiftedWindowAttention

from petra_core import Stage
from petra_core.models import sequential
from reproduce.models.revmvit import Pooling, PoolingAttention, revmvit
from reproduce.models.revroberta import IGNORED, VOCABULARY, masked_cross_entropy, revroberta
from reproduce.models.revswin import PatchMerging, WindowAttention, revswin
from reproduce.models.revvit import revvit
from reproduce.models.sizes import REVROBERTA, REVSWIN, REVVIT
from reproduce.models.transformer import Mlp, SelfAttention
from tests.compare import assert_close
from tests.transformers import batches, every_family, network

pytestmark = pytest.mark.convolutions


@every_family
def test_blocks_of_two_functions_are_reversible_stages(family: str) -> None:
    """Every block of attention and MLP is one reversible stage, and no other stage is reversible."""
    blocks = network(family)
    pairs = sum(len(stage.parts()) == 2 for stage in blocks)
    assert pairs == {"RevViT": 3, "RevSwin": 3, "RevMViT": 2, "RevRoBERTa": 3}[family]
    assert all(stage.invertible == (len(stage.parts()) == 2) for stage in blocks)


def test_attention_and_mlp_match_torch() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    ours, theirs = SelfAttention(12, 3).double(), nn.MultiheadAttention(12, 3, batch_first=True).double()
    values = [theirs.in_proj_weight, theirs.in_proj_bias, theirs.out_proj.weight, theirs.out_proj.bias]
    ours.load_state_dict(dict(zip(ours.state_dict(), values, strict=True)))
    assert_close(ours(x), theirs(x, x, x, need_weights=False)[0], 1e-12)
    mlp = Mlp(12).double()
    assert_close(mlp(x), F.gelu(x @ mlp.expand.weight.T + mlp.expand.bias) @ mlp.contract.weight.T + mlp.contract.bias)


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_window_attention_matches_torchvision(shift: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 9, 9, 8, dtype=torch.float64)
    ours = WindowAttention(8, 2, grid=9, window=3, shift=shift).double()
    theirs = ShiftedWindowAttention(8, [3, 3], [shift, shift], 2).double()
    state = ours.state_dict()
    theirs.load_state_dict(
        {
            "relative_position_bias_table": state["bias"],
            "relative_position_index": theirs.relative_position_index,
            **{
                f"{name}.{kind}": state[f"{ours}.{kind}"]
                for name, ours in (("qkv", "qkv"), ("proj", "project"))
                for kind in ("weight", "bias")
            },
        }
    )
    x.requires_grad_()
    grad = torch.randn_like(x)
    results = [module(x) for module in (ours, theirs)]
    assert_close(results[0], results[1], 1e-10)
    gradients = [
        torch.autograd.grad(result, [x, bias, weight], grad)
        for result, bias, weight in (
            (results[0], ours.bias, ours.qkv.weight),
            (results[1], theirs.relative_position_bias_table, theirs.qkv.weight),
        )
    ]
    assert_close(gradients[0], gradients[1], 1e-9)  # torchvision masks with -100 instead of minus infinity


def test_patch_merging_reads_both_streams_of_four_neighbours() -> None:
    merging = PatchMerging(3).double()
    x, x_tilde = (torch.randn(2, 4, 6, 3, dtype=torch.float64) for _ in range(2))
    y, y_tilde = merging((x, x_tilde))
    assert y.shape == (2, 2, 3, 6)
    assert torch.equal(y, y_tilde)
    for row, column in ((0, 0), (1, 2)):
        places = [(2 * row + i, 2 * column + j) for i in (0, 1) for j in (0, 1)]
        neighbours = torch.cat([stream[:, i, j] for i, j in places for stream in (x, x_tilde)], dim=-1)
        assert_close(y[:, row, column], merging.reduce(merging.norm(neighbours)), 1e-12)


def test_pooling_attention_matches_manual_heads() -> None:
    """Pooling attention equals a computation by hand for each head."""
    torch.manual_seed(0)
    attention = PoolingAttention(8, 2, key_stride=2, query_stride=2).double()
    x = torch.randn(3, 5, 5, 8, dtype=torch.float64)
    q, k, v = attention.qkv(x).split(8, dim=-1)

    def pooled(pooling: Pooling, value: Tensor) -> Tensor:  # one head: [B, H, W, 4] -> [B, T, 4]
        image = F.conv2d(value.movedim(-1, 1), pooling.convolution.weight, stride=2, padding=1, groups=4)
        return F.layer_norm(image.flatten(2).mT, [4], pooling.norm.weight, pooling.norm.bias)

    heads = []
    for head in (slice(0, 4), slice(4, 8)):
        query, key, value = (
            pooled(pooling, tensor[..., head])
            for pooling, tensor in ((attention.pool_q, q), (attention.pool_k, k), (attention.pool_v, v))
        )
        heads.append((query @ key.mT / 2).softmax(-1) @ value)
    expected = attention.project(torch.cat(heads, dim=-1))
    assert_close(attention(x).flatten(1, 2), expected, 1e-12)


def test_revvit_matches_manual_computation() -> None:
    net = network("RevViT")
    stem, *functions, head = [part.function for stage in net for part in stage.parts()]
    images = batches("RevViT", 1)[0][0]
    patches = images.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).reshape(4, 9, 12)  # 3 x 3 patches
    embedding, position = stem[0].convolution, stem[1].weight
    tokens = patches @ embedding.weight.flatten(1).T + embedding.bias + position.flatten(0, 1)
    x1, x2 = tokens, tokens
    for f, g in zip(functions[::2], functions[1::2], strict=True):
        x1 = x1 + f(x2)
        x2 = x2 + g(x1)
    fused = head[1](torch.cat([x2, x1], dim=-1)).mean(1)
    assert_close(sequential(net)(images), fused @ head[3].weight.T + head[3].bias, 1e-12)


def test_masked_cross_entropy_counts_only_masked_positions() -> None:
    logits, target = torch.randn(2, 3, 5), torch.full((2, 3), IGNORED)
    assert masked_cross_entropy(logits, target) == 0.0
    target[0, 1], target[1, 2] = 4, 0
    expected = -(logits[0, 1].log_softmax(0)[4] + logits[1, 2].log_softmax(0)[0]) / 2
    assert_close(masked_cross_entropy(logits, target), expected)


@every_family
def test_streams_start_equal_in_separate_memory(family: str) -> None:
    streams = network(family)[0](batches(family, 1)[0][0])
    assert torch.equal(*streams)
    storages = {stream.untyped_storage().data_ptr() for stream in streams}
    assert len(storages) == 2
    for stream in streams:
        assert stream.is_contiguous()
        assert stream.untyped_storage().nbytes() == stream.nbytes


def count(stages: Sequence[Stage]) -> int:
    return sum(parameter.numel() for stage in stages for parameter in stage.parameters())


def on_meta(family: Callable[..., list[Stage]], size: str, **options: object) -> list[Stage]:
    with torch.device("meta"):
        return family(size, **options)


def test_sizes_match_published_networks() -> None:
    """Parameters and stages of every size match torchvision or the published numbers."""
    for size, plain in (("base", "vit_b_16"), ("large", "vit_l_16")):
        stages, width = on_meta(revvit, size, num_classes=1000), REVVIT[size].width
        with torch.device("meta"):
            expected = count([getattr(torchvision.models, plain)()])
        # There is no class token and no position for it. The head's LayerNorm and linear layer read two streams.
        assert count(stages) == expected - 2 * width + 2 * width + 1000 * width
        assert len(stages) == REVVIT[size].depth + 2
    for size, plain in (("tiny", "swin_t"), ("small", "swin_s"), ("base", "swin_b")):
        stages, width = on_meta(revswin, size, num_classes=1000), REVSWIN[size].width
        with torch.device("meta"):
            expected = count([getattr(torchvision.models, plain)()])
        mergings = sum(8 * c**2 + 8 * c for c in (width, 2 * width, 4 * width))  # these and the head read two streams
        assert count(stages) == expected + mergings + (2 + 1000) * 8 * width
        assert len(stages) == sum(REVSWIN[size].depths) + 5
    stages = on_meta(revmvit, "base", num_classes=1000)
    assert count(stages) / 1e6 == pytest.approx(39.7, abs=0.05)  # Rev-MViT-B: 39 (Mangalam et al. 2022)
    assert len(stages) == 18
    for size, published in (("base", 125), ("large", 355)):
        width = REVROBERTA[size].width
        parameters = count(on_meta(revroberta, size)) - VOCABULARY * width  # RoBERTa ties the decoder
        fusion = 4 * width + width**2  # the LayerNorm and the dense layer read two streams
        assert (parameters - fusion) / 1e6 == pytest.approx(published, abs=0.5)
