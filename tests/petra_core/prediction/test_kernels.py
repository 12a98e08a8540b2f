"""Test predicted graphs against the kernels that run: long attention, mixed precision and unknown kernels."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from petra_core import BufferedStage, HeadStage, ReversibleStage, Stage, methods
from petra_core.methods import Method
from petra_core.models import ConcatStreams, DuplicateStreams
from petra_core.optimizers import adamw
from petra_core.prediction.memory import footprints, predict
from reproduce.models.revmvit import revmvit
from reproduce.models.revroberta import revroberta
from reproduce.models.revswin import revswin
from reproduce.models.revvit import revvit
from reproduce.models.sizes import HierarchicalSize, TransformerSize
from reproduce.models.vit import gpt
from tests import toys
from tests.properties import assert_bytes_are_as_predicted

WIDTH, CLASSES = 16, 5
SIZE = TransformerSize(width=WIDTH, depth=2, heads=2)
GROUPS = HierarchicalSize(width=8, depths=(1, 1), heads=2)
Batch = tuple[Tensor, Tensor]


def causal(m: Any, x: Tensor) -> Tensor:
    """Apply attention as users write it: projections, heads and `scaled_dot_product_attention`."""
    heads = m.projections(m.f(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
    return m.output(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))


def causal_attention() -> nn.Module:
    layers = {"projections": lambda: nn.Linear(WIDTH, 3 * WIDTH), "output": lambda: nn.Linear(WIDTH, WIDTH)}
    return toys.computing(causal, **layers)(nn.LayerNorm(WIDTH))


def masked(m: Any, x: Tensor) -> Tensor:
    """Apply PyTorch's attention with a mask that the forward makes on the default device."""
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    return m.f(x, x, x, attn_mask=future, need_weights=False)[0]


def masked_attention() -> nn.Module:
    return toys.computing(masked)(nn.MultiheadAttention(WIDTH, 2, dropout=0.1, batch_first=True))


def users(function: Callable[[], nn.Module]) -> Callable[[int], list[Stage]]:
    """Return the network of a user around a residual function, for any number of tokens."""
    return lambda tokens: [
        BufferedStage(nn.Sequential(nn.Embedding(CLASSES, WIDTH), DuplicateStreams())),
        *(ReversibleStage(function()) for _ in range(2)),
        BufferedStage(
            nn.Sequential(ConcatStreams(dim=-1), nn.TransformerEncoderLayer(2 * WIDTH, 2, 32, batch_first=True))
        ),
        HeadStage(nn.Linear(2 * WIDTH, CLASSES), lambda output, y: F.cross_entropy(output.flatten(0, 1), y.flatten())),
    ]


def image_model(family: Callable[..., list[Stage]], size: object, **options: int) -> Callable[[int], list[Stage]]:
    def build(tokens: int) -> list[Stage]:
        return family(size, num_classes=CLASSES, image_size=2 * math.isqrt(tokens), patch=2, **options)

    return build


IMAGE_MODELS = {
    "RevViT": image_model(revvit, SIZE),
    "RevSwin": image_model(revswin, GROUPS, window=8),
    "RevMViT": image_model(revmvit, GROUPS),
}
NETWORKS: dict[str, Callable[[int], list[Stage]]] = {
    **IMAGE_MODELS,
    "RevRoBERTa": lambda tokens: revroberta(SIZE, vocabulary=CLASSES, length=tokens),
    "GPT": lambda tokens: gpt(SIZE, vocabulary=CLASSES, length=tokens),
    "BDIA-GPT": lambda tokens: gpt(SIZE, vocabulary=CLASSES, length=tokens, bdia=True),
    "causal attention of a user": users(causal_attention),
    "masked attention of a user": users(masked_attention),
}


def micro_batch(network: str, tokens: int, device: str = "cpu") -> Batch:
    if network in IMAGE_MODELS:
        side = 2 * math.isqrt(tokens)
        return torch.randn(1, 3, side, side, device=device), torch.randint(CLASSES, (1,), device=device)
    return (torch.randint(CLASSES, (1, tokens), device=device), torch.randint(CLASSES, (1, tokens), device=device))


@pytest.mark.parametrize(("tokens", "autocast"), [(64, None), (256, torch.bfloat16)], ids=str)
@pytest.mark.parametrize("network", NETWORKS)
def test_attention_bytes_match_prediction(network: str, tokens: int, autocast: torch.dtype | None) -> None:
    """Predicted bytes of attention equal the measured ones for every network, length and precision."""
    batch = micro_batch(network, tokens)
    for method in (methods.PETRA, methods.BACKPROPAGATION) if tokens < 256 else (methods.PETRA,):
        stages, inspect = NETWORKS[network](tokens), method is methods.PETRA  # no network of attention is refused
        assert_bytes_are_as_predicted(stages, method, batch, 1, toys.sgd, inspect=inspect, autocast=autocast)


@pytest.mark.parametrize("network", ["GPT", "RevViT"])
@pytest.mark.parametrize("method", [methods.PETRA, methods.DELAYED_GRADIENTS], ids=str)
def test_attention_graphs_grow_linearly_with_tokens(network: str, method: Method) -> None:
    graphs = []
    for tokens in (256, 1024):
        with torch.device("meta"):
            stages, batch = NETWORKS[network](tokens), micro_batch(network, tokens, "meta")
        graphs.append([stage.peak["graph"] for stage in predict(stages, method, *batch)[1:-1]])
    assert [large / small for small, large in zip(*graphs, strict=True)] == pytest.approx(
        [4] * len(graphs[0]), rel=0.01
    )


def test_caller_autocast_affects_prediction() -> None:
    """A prediction under the caller's autocast equals one with the setting `autocast`."""
    stages, batch = NETWORKS["GPT"](64), micro_batch("GPT", 64)
    with torch.autocast("cpu", torch.bfloat16):
        predicted = predict(stages, methods.PETRA, *batch)
    assert predicted == predict(stages, methods.PETRA, *batch, autocast=torch.bfloat16)
    assert predicted != predict(stages, methods.PETRA, *batch)


NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm2d(8),
    "frozen batch": lambda: nn.BatchNorm2d(8).eval(),
    "batch without weights": lambda: nn.BatchNorm2d(8, affine=False, track_running_stats=False),
    "instance": lambda: nn.InstanceNorm2d(8, affine=True),
    "group": lambda: nn.GroupNorm(2, 8),
    "group without weights": lambda: nn.GroupNorm(2, 8, affine=False),
    "layer": lambda: nn.LayerNorm(8),
    "layer without weights": lambda: nn.LayerNorm(8, elementwise_affine=False),
    "root mean square": lambda: nn.RMSNorm(8),
}


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # from RMSNorm under autocast
@pytest.mark.parametrize("norm", NORMS)
def test_normalization_bytes_match_prediction_in_bf16(norm: str) -> None:
    function = nn.Sequential(nn.Conv2d(8, 8, 1), NORMS[norm](), nn.Conv2d(8, 8, 1))
    stages: list[Stage] = [
        BufferedStage(nn.Sequential(nn.Conv2d(3, 8, 1), DuplicateStreams())),
        ReversibleStage(function),
        HeadStage(nn.Sequential(ConcatStreams(), nn.Flatten(), nn.Linear(1024, CLASSES))),
    ]
    batch = torch.randn(2, 3, 8, 8), torch.randint(CLASSES, (2,))
    assert_bytes_are_as_predicted(stages, methods.DELAYED_GRADIENTS, batch, 1, toys.sgd, autocast=torch.bfloat16)


def test_fused_and_foreach_optimizers_are_predicted() -> None:
    """Predictions with fused or foreach AdamW equal the one with the default."""
    stages, batch = NETWORKS["GPT"](64), micro_batch("GPT", 64)
    usual = predict(stages, methods.PETRA, *batch, optimizer=adamw(0.1))
    for option in ("fused", "foreach"):
        other = predict(
            stages, methods.PETRA, *batch, optimizer=lambda p, key=option: torch.optim.AdamW(p, **{key: True})
        )
        assert other == usual


def around(function: nn.Module) -> tuple[list[Stage], Batch]:
    """Return a network of one residual function, and a micro-batch."""
    head = nn.Sequential(ConcatStreams(), nn.Flatten(), nn.Linear(8 * WIDTH * 2, CLASSES))
    stages = [BufferedStage(DuplicateStreams()), ReversibleStage(function), HeadStage(head)]
    return stages, (torch.randn(2, 8, WIDTH), torch.randint(CLASSES, (2,)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="of a machine without the device")
def test_prediction_for_missing_device_warns() -> None:
    """A prediction for an absent device warns and uses the kernels of this machine."""
    stages, batch = NETWORKS["GPT"](64), micro_batch("GPT", 64)
    with pytest.warns(UserWarning, match="this machine has no cuda device.*predict on a machine that has the device"):
        far = predict(stages, methods.PETRA, *batch, device=torch.device("cuda"), autocast=torch.bfloat16)
    assert far == predict(stages, methods.PETRA, *batch, autocast=torch.bfloat16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predict(stages, methods.PETRA, *batch, device=torch.device("cpu"))


def test_lstm_workspace_warns() -> None:
    """A prediction with an LSTM warns that it is too small, and it is smaller than the measured peak."""
    lstm = toys.computing(lambda m, x: m.f(x)[0])(nn.LSTM(WIDTH, WIDTH, batch_first=True))
    stages, batch = around(lstm)
    with pytest.warns(UserWarning, match=r"stages \[1\] is predicted too small: an LSTM.*Pipeline.memory"):
        predicted = predict(stages, methods.PETRA, *batch)
    pipeline = toys.pipeline(stages, methods.PETRA)
    pipeline.step(*batch)
    pipeline.drain()
    assert predicted[1].peak["graph"] < pipeline.memory().stages[1].peak["graph"]  # otherwise no warning is due


def test_branch_on_values_names_stage() -> None:
    """If a function branches on values, a note of the error names the stage."""
    branching = toys.computing(lambda m, x: m.f(x) if x.sum() > 0 else x)(nn.Linear(WIDTH, WIDTH))
    stages, batch = around(branching)
    with pytest.raises(RuntimeError) as caught:
        footprints(stages, methods.PETRA, *batch)
    assert "stage 1 was evaluated with fake tensors" in caught.value.__notes__[0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernels of a GPU are known to a GPU only")
@pytest.mark.parametrize("autocast", [None, torch.bfloat16], ids=["float32", "bf16"])
@pytest.mark.parametrize("network", NETWORKS)
def test_attention_bytes_match_prediction_on_gpu(network: str, autocast: torch.dtype | None) -> None:
    with torch.device("cuda"):
        stages = NETWORKS[network](256)
        batch = micro_batch(network, 256, "cuda")
        assert_bytes_are_as_predicted(stages, methods.PETRA, batch, 1, toys.sgd, autocast=autocast)
