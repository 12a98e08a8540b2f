"""The transformers: what they compute, how large they are, and that the engine trains them as any other stages."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torchvision.models.swin_transformer import ShiftedWindowAttention

from petra_core import BufferedStage, HeadStage, Pipeline, ReversibleStage, Stage, checkpoint, merge, methods, models
from petra_core.memory import predict
from petra_core.methods import Method
from petra_core.models import HierarchicalSize, TransformerSize, revmvit, revroberta, revswin, revvit, sequential
from petra_core.models.revmvit import Pooling, PoolingAttention
from petra_core.models.revroberta import IGNORED, VOCABULARY, masked_cross_entropy
from petra_core.models.revroberta import SIZES as ROBERTA
from petra_core.models.revswin import SIZES as SWIN
from petra_core.models.revswin import PatchMerging, WindowAttention
from petra_core.models.revvit import SIZES as VIT
from petra_core.models.transformer import DropPath, Mlp, SelfAttention, drop_rates, pre_norm
from petra_core.recipe import adamw
from reproduce.measures.reconstruction import rounding_errors
from tests import toys
from tests.compare import assert_bitwise_equal, assert_close, relative_error
from tests.reference import RULES, Part, Sgd, simulate
from tests.test_exactness import EXACT, engine_gradients

CLASSES, TOKENS = 3, 11

Batch = tuple[Tensor, Tensor]


def small_revvit(**options: object) -> list[Stage]:
    size = TransformerSize(width=8, depth=3, heads=2)
    return revvit(size, num_classes=CLASSES, image_size=6, patch=2, **options)  # type: ignore[arg-type]


def small_revswin(**options: object) -> list[Stage]:
    size = HierarchicalSize(width=4, depths=(2, 1), heads=2)
    return revswin(size, num_classes=CLASSES, image_size=8, patch=2, window=2, **options)  # type: ignore[arg-type]


def small_revmvit(**options: object) -> list[Stage]:
    size = HierarchicalSize(width=4, depths=(1, 2), heads=1)
    return revmvit(size, num_classes=CLASSES, image_size=12, patch=2, **options)  # type: ignore[arg-type]


def small_revroberta(**options: object) -> list[Stage]:
    size = TransformerSize(width=8, depth=3, heads=2)
    settings = {"vocabulary": TOKENS, "length": 7, "dropout": 0.0, **options}
    return revroberta(size, **settings)  # type: ignore[arg-type]


FAMILIES: dict[str, Callable[..., list[Stage]]] = {
    "RevViT": small_revvit,
    "RevSwin": small_revswin,
    "RevMViT": small_revmvit,
    "RevRoBERTa": small_revroberta,
}
SIDE = {"RevViT": 6, "RevSwin": 8, "RevMViT": 12}
RANDOM = {"RevViT": {"dropout": 0.2, "drop_path": 0.3}, "RevRoBERTa": {"dropout": 0.2}}
every_family = pytest.mark.parametrize("family", FAMILIES)


def network(family: str, *, seed: int = 0, **options: object) -> list[Stage]:
    torch.manual_seed(seed)
    return [stage.double() for stage in FAMILIES[family](**options)]


def random_network(family: str, **options: object) -> list[Stage]:
    """With dropout where the family has it, and stochastic depth."""
    return network(family, **RANDOM.get(family, {"drop_path": 0.3}), **options)


def batches(family: str, count: int, size: int = 4) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    if family != "RevRoBERTa":
        side = SIDE[family]
        return [
            (
                torch.randn(size, 3, side, side, generator=generator, dtype=torch.float64),
                torch.randint(CLASSES, (size,), generator=generator),
            )
            for _ in range(count)
        ]
    data = []
    for _ in range(count):
        tokens = torch.randint(TOKENS, (size, 6), generator=generator)
        masked = torch.rand(size, 6, generator=generator) < 0.4
        data.append((tokens.masked_fill(masked, 0), tokens.masked_fill(~masked, IGNORED)))
    return data


def loss_of(stages: Sequence[Stage]) -> Callable[[Tensor, Tensor], Tensor]:
    head = stages[-1]
    assert isinstance(head, HeadStage)
    return head.loss


# ---------------------------------------------------------------------------------------------- the two-function block


class TwoFunctionBlock(nn.Module):
    """The block as its paper writes it."""

    def __init__(self, f: nn.Module, g: nn.Module) -> None:
        super().__init__()
        self.f, self.g = f, g

    def forward(self, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
        y1 = x1 + self.f(x2)
        y2 = x2 + self.g(y1)
        return y1, y2


def test_two_coupled_stages_are_the_two_function_block() -> None:
    torch.manual_seed(0)
    f, g = pre_norm(8, SelfAttention(8, 2)).double(), pre_norm(8, Mlp(8)).double()
    block = TwoFunctionBlock(f, g)
    x1, x2 = (torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    expected = block(x1, x2)
    stage = merge([ReversibleStage(f), ReversibleStage(g)])
    y2, y1 = stage((x2, x1))
    assert_bitwise_equal((y1, y2), expected)

    grads = [torch.randn_like(y1), torch.randn_like(y2)]
    wanted = [x1, x2, *block.parameters()]
    plain = torch.autograd.grad(expected, wanted, grads)
    streams, gradients, of_parameters = (y2.detach(), y1.detach()), (grads[1], grads[0]), {}
    for part in reversed(stage.parts()):  # as the engine goes through them
        tape = part.reconstruct(streams)
        assert tape.inputs is not None
        parameters = list(part.parameters())
        found, of_part = tape.gradients(gradients, parameters)
        assert found is not None
        streams, gradients = tape.inputs, found
        of_parameters |= dict(zip(parameters, of_part, strict=True))
    assert_close(streams, (x2, x1), 1e-12)
    assert_close([gradients[1], gradients[0], *(of_parameters[p] for p in block.parameters())], plain, 1e-10)


@every_family
def test_split_blocks_are_the_same_network_in_more_stages(family: str) -> None:
    blocks, functions = network(family), network(family, split_blocks=True)
    pairs = sum(len(stage.parts()) == 2 for stage in blocks)
    assert pairs == {"RevViT": 3, "RevSwin": 3, "RevMViT": 2, "RevRoBERTa": 3}[family]
    assert len(functions) == len(blocks) + pairs
    assert all(stage.invertible == (len(stage.parts()) == 2) for stage in blocks)
    assert_bitwise_equal(dict(models.stages_state_dict(functions)), dict(models.stages_state_dict(blocks)))
    x = batches(family, 1)[0][0]
    assert_bitwise_equal(sequential(functions)(x), sequential(blocks)(x))


# -------------------------------------------------------------------------------------------------- what they compute


def test_attention_and_mlp_are_torchs() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    ours, theirs = SelfAttention(12, 3).double(), nn.MultiheadAttention(12, 3, batch_first=True).double()
    values = [theirs.in_proj_weight, theirs.in_proj_bias, theirs.out_proj.weight, theirs.out_proj.bias]
    ours.load_state_dict(dict(zip(ours.state_dict(), values, strict=True)))
    assert_close(ours(x), theirs(x, x, x, need_weights=False)[0], 1e-12)
    mlp = Mlp(12).double()
    assert_close(mlp(x), F.gelu(x @ mlp.expand.weight.T + mlp.expand.bias) @ mlp.contract.weight.T + mlp.contract.bias)


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_window_attention_is_torchvisions(shift: int) -> None:
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
                f"{name}.{kind}": state[f"{own}.{kind}"]
                for name, own in (("qkv", "qkv"), ("proj", "project"))
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
    assert_close(gradients[0], gradients[1], 1e-9)  # torchvision's mask is -100 instead of minus infinity


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


def test_pooling_attention_head_by_head() -> None:
    torch.manual_seed(0)
    attention = PoolingAttention(8, 2, key_stride=2, query_stride=2).double()
    x = torch.randn(3, 5, 5, 8, dtype=torch.float64)
    q, k, v = attention.qkv(x).split(8, dim=-1)

    def pooled(pooling: Pooling, value: Tensor) -> Tensor:  # of one head: [B, H, W, 4] -> [B, T, 4]
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


def test_revvit_by_hand() -> None:
    net = network("RevViT", split_blocks=True)
    stem, *functions, head = [part.function for part in net]
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


def test_masked_cross_entropy_counts_masked_positions_alone() -> None:
    logits, target = torch.randn(2, 3, 5), torch.full((2, 3), IGNORED)
    assert masked_cross_entropy(logits, target) == 0.0
    target[0, 1], target[1, 2] = 4, 0
    expected = -(logits[0, 1].log_softmax(0)[4] + logits[1, 2].log_softmax(0)[0]) / 2
    assert_close(masked_cross_entropy(logits, target), expected)
    with pytest.raises(ValueError, match=r"got \[2, 3, 5\] and \[2, 4\]"):
        masked_cross_entropy(logits, torch.zeros(2, 4, dtype=torch.int64))


@every_family
def test_streams_begin_equal_in_memory_of_their_own(family: str) -> None:
    streams = network(family)[0](batches(family, 1)[0][0])
    assert torch.equal(*streams)
    storages = {stream.untyped_storage().data_ptr() for stream in streams}
    assert len(storages) == 2
    for stream in streams:
        assert stream.is_contiguous()
        assert stream.untyped_storage().nbytes() == stream.nbytes


# -------------------------------------------------------------------------------------------------------------- sizes


def count(stages: Sequence[Stage]) -> int:
    return sum(parameter.numel() for stage in stages for parameter in stage.parameters())


def on_meta(family: Callable[..., list[Stage]], size: str, **options: object) -> list[Stage]:
    with torch.device("meta"):
        return family(size, **options)


@pytest.mark.parametrize(
    ("family", "size", "published"),  # millions, rounded as published
    [
        (revvit, "tiny", 6),  # DeiT-Ti (Touvron et al. 2021)
        (revvit, "small", 22),  # Rev-ViT-S (Mangalam et al. 2022)
        (revvit, "base", 87),  # Rev-ViT-B, likewise
        (revvit, "large", 305),  # ViT-L/16 has 304 (Dosovitskiy et al. 2021), and 1 more for the head of two streams
        (revmvit, "base", 39.7),  # Rev-MViT-B: 39 (Mangalam et al. 2022)
    ],
)
def test_parameters_in_millions(family: Callable[..., list[Stage]], size: str, published: float) -> None:
    found = count(on_meta(family, size, num_classes=1000)) / 1e6
    assert found == pytest.approx(published, abs=0.5 if isinstance(published, int) else 0.05)


@pytest.mark.parametrize(("size", "plain"), [("base", "vit_b_16"), ("large", "vit_l_16")])
def test_revvit_has_the_parameters_of_vit(size: str, plain: str) -> None:
    stages, vit, width = on_meta(revvit, size, num_classes=1000), getattr(torchvision.models, plain), VIT[size].width
    with torch.device("meta"):
        expected = count([vit()])
    # There is no class token and no position for it; LayerNorm and linear layer of the head read two streams.
    assert count(stages) == expected - 2 * width + 2 * width + 1000 * width


def of_two_streams(width: int) -> int:
    """Parameters that patch mergings and head of a RevSwin have more than a Swin's."""
    mergings = sum(8 * c**2 + 8 * c for c in (width, 2 * width, 4 * width))
    return mergings + (2 + 1000) * 8 * width


@pytest.mark.parametrize(("size", "plain"), [("tiny", "swin_t"), ("small", "swin_s"), ("base", "swin_b")])
def test_revswin_has_the_parameters_of_swin(size: str, plain: str) -> None:
    with torch.device("meta"):
        expected = count([getattr(torchvision.models, plain)()])
    assert count(on_meta(revswin, size, num_classes=1000)) == expected + of_two_streams(SWIN[size].width)


@pytest.mark.parametrize(("size", "published"), [("large", 197), ("huge", 658), ("giant", 3000)])
def test_parameters_of_large_revswins(size: str, published: int) -> None:
    # Millions: Swin-L, Swin V2-H and Swin V2-G. V2 has its biases from a small network, and LayerNorms elsewhere.
    found = count(on_meta(revswin, size, num_classes=1000)) - of_two_streams(SWIN[size].width)
    assert found / 1e6 == pytest.approx(published, rel=0.005)


@pytest.mark.parametrize(("size", "published"), [("base", 125), ("large", 355)])
def test_parameters_of_revroberta(size: str, published: int) -> None:
    width = ROBERTA[size].width
    found = count(on_meta(revroberta, size)) - VOCABULARY * width  # the decoder's, which RoBERTa ties
    fusion = 4 * width + width**2  # LayerNorm of both streams, and the dense layer reads both
    assert (found - fusion) / 1e6 == pytest.approx(published, abs=0.5)


def test_stages_of_the_published_sizes() -> None:
    counted = {
        (family.__name__, size): len(on_meta(family, size, num_classes=2))
        for family, size in ((revvit, "base"), (revswin, "tiny"), (revswin, "small"), (revmvit, "base"))
    }
    assert list(counted.values()) == [14, 17, 29, 18]
    assert len(on_meta(revvit, "base", num_classes=2, split_blocks=True)) == 26


# --------------------------------------------------------------------------------------------------- under the engine


def comparable(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Without the gradients that are zero up to rounding, and the biases that therefore stay zero.

    What all keys have in common shifts all logits alike.
    """
    zero = {name for name in tensors if name.endswith("pool_k.norm.bias")}
    assert all(tensors[name].abs().max() < 1e-14 for name in zero)
    return {name: tensor for name, tensor in tensors.items() if name not in zero}


def plain_gradients(stages: Sequence[Stage], data: Sequence[Batch]) -> dict[str, Tensor]:
    """Mean gradients of the plain model over micro-batches, by torch.autograd alone."""
    stages = copy.deepcopy(list(stages))
    model, loss = sequential(stages), loss_of(stages)
    for x, y in data:
        (loss(model(x), y) / len(data)).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@every_family
@pytest.mark.parametrize("method", EXACT, ids=str)
@pytest.mark.parametrize("split", [False, True])
def test_gradients_equal_autograd(family: str, method: Method, split: bool) -> None:
    net, data = network(family, split_blocks=split), batches(family, 2)
    found, expected = engine_gradients(net, method, data, 2), plain_gradients(net, data)
    assert_close(comparable(found), comparable(expected), 1e-10)


@every_family
@pytest.mark.parametrize("method", methods.ALL[1:], ids=str)
def test_with_dropout_and_without_updates_every_method_gives_one_gradient(family: str, method: Method) -> None:
    # The weights stay, so methods differ in nothing but where inputs come from; a mask that differed would show.
    data = batches(family, 2)

    def gradients(of: Method) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}

        def look(index: int, version: int, stage: Stage) -> None:
            found.update({f"{index}.{name}": p.grad.clone() for name, p in stage.named_parameters()})

        net = random_network(family)
        toys.train(toys.pipeline(net, of, accumulation=2, optimizer=None, seed=3, before_update=look), data)
        return comparable(found)

    assert_close(gradients(method), gradients(methods.ALL[0]), 1e-10)


@every_family
def test_dropout_is_plain_trainings(family: str) -> None:
    net, data = random_network(family), batches(family, 2)
    torch.manual_seed(11)
    expected = plain_gradients(net, data)
    state = torch.get_rng_state()
    without = plain_gradients(network(family), data)
    torch.manual_seed(11)
    found = engine_gradients(net, methods.REVERSIBLE_BACKPROPAGATION, data, 2)
    assert_bitwise_equal(torch.get_rng_state(), state)
    assert_close(comparable(found), comparable(expected), 1e-10)
    assert any(relative_error(without[name], expected[name]) > 1e-2 for name in expected), "nothing was dropped"


def test_stochastic_depth_drops_samples_and_keeps_the_mean() -> None:
    drop, x = DropPath(0.25), torch.ones(4000, 2, 3)
    torch.manual_seed(0)
    y = drop(x)
    assert set(y.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert torch.equal(y, y[:, :1, :1].expand_as(y))  # a sample is dropped whole
    assert y.mean().item() == pytest.approx(1, abs=0.03)
    assert torch.equal(drop.eval()(x), x)
    assert drop_rates(0.2, 3) == [0.0, 0.1, 0.2]


DELAYED = [method for method in methods.ALL if method.pipelined]
KINDS = {ReversibleStage: "reversible", BufferedStage: "buffered", HeadStage: "head"}


@pytest.mark.parametrize("family", ["RevViT", "RevSwin", "RevMViT"])
@pytest.mark.parametrize("method", DELAYED, ids=str)
def test_training_is_that_of_the_papers_equations(family: str, method: Method) -> None:
    net, data, rate, k = network(family), batches(family, 12, size=2), 0.1, 2
    plain = [[Part(KINDS[type(part)], copy.deepcopy(part.function)) for part in stage.parts()] for stage in net]
    history = simulate(plain, RULES[method.name], k, Sgd(lambda tick: rate), data, range(len(data)))
    p = toys.pipeline(net, method, accumulation=k, optimizer=lambda ps: torch.optim.SGD(ps, lr=rate))
    losses = toys.train(p, data)
    assert losses == pytest.approx([history.losses[m].item() for m in range(len(data))], rel=1e-10)
    found = [[dict(part.function.named_parameters()) for part in stage.parts()] for stage in p.stages]
    for of_stage, expected in zip(found, history.weights[-1], strict=True):
        assert_close(list(map(comparable, of_stage)), list(map(comparable, expected)), 1e-10)


@every_family
@pytest.mark.parametrize("method", [methods.DELAYED_GRADIENTS, methods.APPROXIMATE_INPUTS, methods.PETRA], ids=str)
def test_resume_with_a_full_pipeline_is_bitwise(family: str, method: Method, tmp_path: Path) -> None:
    net, data = random_network(family), batches(family, 11, size=2)

    def fresh() -> Pipeline:
        return toys.pipeline(net, method, accumulation=2, seed=5, optimizer=adamw(0.01, weight_decay=0.05))

    undisturbed, stopped, resumed = fresh(), fresh(), fresh()
    expected = toys.train(undisturbed, data)
    losses = toys.train(stopped, data[:6], drain=False)
    checkpoint.save(tmp_path / "state.pt", stopped.state_dict())
    resumed.load_state_dict(checkpoint.load(tmp_path / "state.pt"))
    assert losses + toys.train(resumed, data[6:]) == expected
    assert_bitwise_equal(resumed.state_dict(), undisturbed.state_dict())


HELD_BETWEEN_TICKS = ("inputs", "stashed_weights", "messages", "graph")


@every_family
@pytest.mark.parametrize("method", [methods.DELAYED_GRADIENTS, methods.DSP, methods.PETRA], ids=str)
def test_predicted_bytes_equal_measured(family: str, method: Method) -> None:
    net, (x, y), k = network(family), batches(family, 1, size=2)[0], 2
    optimizer = adamw(0.01)
    predicted = predict(net, method, x, y, accumulation=k, optimizer=optimizer)
    p = toys.pipeline(net, method, accumulation=k, optimizer=optimizer)
    largest = [dict.fromkeys(HELD_BETWEEN_TICKS, 0) for _ in net]
    # Fused attention saves other tensors, on every device its own; what is foretold is the plain form.
    with sdpa_kernel(SDPBackend.MATH):
        for _ in range(4 * len(net)):
            p.step(x, y)
            for stage, held in zip(p.memory().stages, largest, strict=True):
                for kind in HELD_BETWEEN_TICKS:
                    held[kind] = max(held[kind], stage.now[kind])
    for stage, held, foretold in zip(p.memory().stages, largest, predicted, strict=True):
        assert dict(stage.peak) == dict(foretold.peak), f"peak of stage {stage.stage}"
        assert held == {kind: foretold.held[kind] for kind in HELD_BETWEEN_TICKS}, f"between ticks, stage {stage.stage}"


@pytest.mark.parametrize("depth", [12, 48])
def test_reconstruction_error_with_depth(depth: int) -> None:
    """Errors stay small for 48 blocks with streams in float32; bfloat16 costs digits, inside blocks or between them.

    The functions themselves, in bfloat16, round what they read: an input that is wrong in its last digit is then
    rounded elsewhere, so under autocast the error begins at 0 at the top and grows by the digits of bfloat16.
    """
    torch.manual_seed(0)
    size = TransformerSize(width=32, depth=depth, heads=2)
    net, images = revvit(size, num_classes=10, image_size=8, patch=2), torch.randn(4, 3, 8, 8)
    single, narrow = (rounding_errors(net, images, streams) for streams in (None, torch.bfloat16))
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        mixed = rounding_errors(net, images)
    bounds = {"float32": (1e-7, 1e-4), "autocast": (1e-4, 0.2), "bfloat16 streams": (1e-3, 1.0)}
    for (least, most), errors in zip(bounds.values(), (single, mixed, narrow), strict=True):
        assert sorted(errors) == list(range(1, depth + 1))
        assert least < errors[1]["input"] < most
        assert errors[depth]["input"] < errors[depth // 2]["input"] < errors[1]["input"]
    assert single[1]["input"] < mixed[1]["input"] < narrow[1]["input"]


# --------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: revvit("smal", num_classes=10), "no RevViT of size 'smal'; did you mean 'small'"),
        (lambda: revswin("enormous", num_classes=10), "did you mean 'micro' or 'tiny' or"),
        (lambda: revvit("micro", num_classes=1), "num_classes must be at least 2, got 1"),
        (lambda: revvit("micro", num_classes=10, image_size=32, patch=5), r"32 pixels .* patches of 5 \(remainder 2\)"),
        (lambda: revvit("micro", num_classes=10, dropout=1.0), "dropout must be at least 0 and below 1, got 1.0"),
        (
            lambda: revmvit("micro", num_classes=10, drop_path=-0.1),
            "drop_path must be at least 0 and below 1, got -0.1",
        ),
        (lambda: TransformerSize(width=10, depth=1, heads=3), r"10 channels .* 3 heads \(remainder 1\).* such as 12"),
        (lambda: HierarchicalSize(width=8, depths=(), heads=1), "at least one group, got none"),
        (lambda: HierarchicalSize(width=8, depths=(2, 0), heads=1), "each of depths must be at least 1, got 0"),
        (
            lambda: revswin("tiny", num_classes=10, image_size=32, patch=2),
            r"the 16 x 16 tokens of group 0 cannot be divided into windows of 7.*multiple of window \* 8",
        ),
        (
            lambda: revswin("tiny", num_classes=10, image_size=24, patch=4, window=3),
            "the 3 x 3 tokens of group 1 cannot be divided into windows of 3, and halved",
        ),
        (lambda: revroberta("micro", length=0), "length must be at least 1, got 0"),
        (
            lambda: network("RevViT")[0](torch.zeros(1, 3, 8, 8)),
            r"built for images \[batch, 3, 6, 6\], got \[1, 3, 8, 8\]",
        ),
        (
            lambda: network("RevRoBERTa")[0](torch.zeros(1, 8, dtype=torch.int64)),
            r"at most 7 tokens\], got torch.int64 \[1, 8\]",
        ),
        (lambda: network("RevRoBERTa")[0](torch.zeros(1, 4)), "takes integer token numbers .* got torch.float32"),
    ],
)
def test_networks_that_do_not_exist(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
