"""Test BDIA: its bitwise exact inverse, its gradients, and that it evaluates as a plain transformer."""

import copy
import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from petra_core import HeadStage, Pipeline, Stage, methods, models
from petra_core.methods import Method
from petra_core.randomness import RandomStream, replay
from petra_core.settings import Settings
from petra_core.tape import Streams, as_streams
from reproduce.models.bdia import BdiaStage, Quantise, pack, unpack
from reproduce.models.sizes import TransformerSize
from reproduce.models.vit import gpt, vit
from tests import toys
from tests.compare import assert_bitwise_equal, assert_close
from tests.properties import assert_bytes_are_as_predicted, assert_resumes_bitwise

CPU = torch.device("cpu")


def network(*, depth: int = 4, dropout: float = 0.0, bdia: bool = True, seed: int = 0) -> list[Stage]:
    torch.manual_seed(seed)
    size = TransformerSize(width=16, depth=depth, heads=2)
    return vit(size, num_classes=3, image_size=6, patch=3, dropout=dropout, bdia=bdia)


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    return [(x.float(), y) for x, y in toys.batches(count)]


def blocks(count: int, bits: int | None = 9, *, scale: float = 1.0) -> list[BdiaStage]:
    torch.manual_seed(count)
    made = [BdiaStage(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)), bits) for _ in range(count)]
    for parameter in (parameter for block in made for parameter in block.parameters()):
        parameter.data *= scale
    return made


def there_and_back(stages: Sequence[BdiaStage], streams: Streams, *, with_bits: bool = True) -> Streams:
    """Run all stages forward, then the inverse of each with the random numbers of its forward."""
    stream = RandomStream(CPU, 0, 0)
    kept = []
    with torch.no_grad():
        for stage in stages:
            side = stage.inversion_state(streams)
            with stream:
                streams = as_streams(stage(streams))
            kept.append((stage, side, stream.drawn))
        for stage, side, drawn in reversed(kept):
            assert drawn is not None
            with replay(drawn, CPU):
                bits = side if with_bits else tuple(torch.zeros_like(packed) for packed in side)
                inputs = stage.reconstruct(streams, bits).inputs
            streams = inputs
    return streams


@pytest.mark.parametrize("count", [1, 2, 5, 24])
def test_inverse_is_bitwise_exact_only_with_side_bits(count: int) -> None:
    """With 32 samples, both signs of gamma are drawn. Half of the values are negative."""
    torch.manual_seed(0)
    streams = tuple(Quantise()(3 * torch.randn(32, 5, 8)) for _ in range(2))
    stages = blocks(count)
    assert_bitwise_equal(there_and_back(stages, streams), streams)
    assert not torch.equal(there_and_back(stages, streams, with_bits=False)[1], streams[1])


def test_float_inverse_error_doubles_per_block() -> None:
    """The error recursion without h has roots of modulus 1 and 2."""
    torch.manual_seed(0)
    streams = tuple(torch.randn(16, 5, 8) for _ in range(2))
    errors = []
    for count in (4, 8, 12, 16):
        back = there_and_back(blocks(count, None, scale=0.1), streams)
        errors.append(float((back[1] - streams[1]).norm() / streams[1].norm()))
    growth = [(after / before) ** 0.25 for before, after in itertools.pairwise(errors)]
    assert all(1.4 < factor < 2.2 for factor in growth), growth


def test_pack_stores_eight_bits_per_byte() -> None:
    """`pack` stores eight bits in a byte, and `unpack` restores them."""
    torch.manual_seed(0)
    for shape in ((3, 7), (2, 2, 4), (1,)):
        bits = torch.rand(shape) < 0.5
        packed = pack(bits)
        assert packed.dtype is torch.uint8
        assert packed.numel() == -(-bits.numel() // 8)
        assert torch.equal(unpack(packed, bits.shape), bits)


def test_evaluation_equals_plain_transformer_up_to_rounding() -> None:
    """In evaluation mode, BDIA equals a plain transformer with the same weights up to quantisation."""
    ours, plain = network(), network(bdia=False, seed=1)
    models.sequential(plain).load_state_dict(models.sequential(ours).state_dict())
    assert len(ours) == len(plain) == 5
    x = batches(1)[0][0]
    with torch.no_grad():
        of_ours, of_plain = (models.sequential(stages).eval()(x) for stages in (ours, plain))
    assert_close(of_ours, of_plain, 2e-2)  # from rounding to 2^-9 in four blocks
    assert not torch.equal(of_ours, of_plain)
    fine = [copy.deepcopy(stage).double() for stage in ours]
    for quantise in (module for stage in fine for module in stage.modules() if isinstance(module, Quantise)):
        quantise.bits = 40
    with torch.no_grad():
        of_fine = models.sequential(fine).eval()(x.double())
        exact = models.sequential(plain).double().eval()(x.double())
    assert_close(of_fine, exact, 1e-9)


def test_gamma_has_random_sign() -> None:
    """Gamma is 0.5 or -0.5 with a mean near 0."""
    (block,) = blocks(1)
    torch.manual_seed(3)
    gammas = torch.stack([block._drawn(torch.zeros(64, 5, 8)).flatten() for _ in range(20)])
    assert set(gammas.unique().tolist()) == {-0.5, 0.5}
    assert abs(float(gammas.mean())) < 0.06


def test_gradients_equal_autograd() -> None:
    """In float64; the plain model draws the same gammas and masks as the engine without a seed."""
    x, y = toys.batches(1)[0]
    ours, plain = ([stage.double() for stage in network(dropout=0.1)] for _ in range(2))
    gradients: dict[int, list[Tensor]] = {}
    pipeline = Pipeline(
        ours,
        methods.BACKPROPAGATION,
        # Every weight has been through a backward, so its gradient is not None.
        before_update=lambda index, _, stage: gradients.update({index: [p.grad.clone() for p in stage.parameters()]}),
    )
    torch.manual_seed(5)
    pipeline.step(x, y)
    torch.manual_seed(5)
    head = plain[-1]
    assert isinstance(head, HeadStage)
    head.loss(models.sequential(plain).train()(x), y).backward()
    for index, stage in enumerate(plain):
        assert_close(gradients[index], [p.grad for p in stage.parameters()], 1e-10)


@pytest.mark.parametrize("method", [methods.REVERSIBLE_BACKPROPAGATION, methods.PAREPROP], ids=str)
def test_training_equals_backpropagation_bitwise(method: Method) -> None:
    """A reconstructed input is bitwise the true one, so all later values are equal too, including dropout."""
    runs = []
    for which in (methods.BACKPROPAGATION, method):
        p = Pipeline(network(dropout=0.1), which, accumulation=2, optimizer=toys.sgd, seed=3)
        runs.append((toys.train(p, batches(10)), toys.weights(p)))
    assert runs[0][0] == runs[1][0]
    assert_bitwise_equal(runs[0][1], runs[1][1])


@pytest.mark.parametrize("method", [methods.PETRA, methods.DSP], ids=str)
def test_resume_is_bitwise(method: Method, tmp_path: Path) -> None:
    """A BDIA network resumes bitwise with micro-batches in flight."""

    def fresh() -> Pipeline:
        return Pipeline(network(dropout=0.1), method, accumulation=2, optimizer=toys.sgd, seed=7)

    assert_resumes_bitwise(fresh, batches(14), 9, tmp_path)


@pytest.mark.parametrize("method", [methods.PETRA, methods.REVERSIBLE_BACKPROPAGATION, methods.DSP], ids=str)
def test_bytes_with_side_bits_match_prediction(method: Method) -> None:
    """Measured bytes equal the prediction, including a side bit per value of each micro-batch in flight."""
    _, predicted = assert_bytes_are_as_predicted(network(), method, batches(1)[0], 1, toys.sgd)
    values = 4 * 4 * 16  # samples, tokens, channels
    expected = 0 if method is methods.DSP else values // 8 * (Settings(method=method).vector(5)[1] + 1)
    assert predicted[1].peak["side_bits"] == expected


def test_gpt_is_causal() -> None:
    """Outputs of the BDIA-GPT depend only on earlier tokens."""
    torch.manual_seed(0)
    stages = gpt(TransformerSize(width=16, depth=4, heads=2), vocabulary=5, length=6, bdia=True)
    model = models.sequential(stages).eval()
    tokens = torch.randint(5, (2, 6))
    changed = tokens.clone()
    changed[:, 3] = (changed[:, 3] + 1) % 5
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.equal(before[:, 3:], after[:, 3:])
