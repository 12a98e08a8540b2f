"""Test errors of reconstructed inputs against brute force and direct inversion, and at visible depths."""

from functools import partial

import pytest
import torch
from torch import Tensor

from petra_core import Pipeline, ReversibleStage, Stage, merge, methods, models
from petra_core.delay import PredictedWeights
from petra_core.methods import Method
from petra_core.optimizers import sgd
from reproduce.measures.reconstruction import CAUSES, TENSORS, ReconstructionProbe, rounding_errors
from reproduce.models.permutation import PixelUnshuffleStage
from reproduce.models.sizes import TransformerSize
from reproduce.models.vit import vit
from tests import toys
from tests.compare import assert_bitwise_equal
from tests.delay_by_hand import MOMENTUM, RATE, ByHand
from tests.reference import RULES, Sgd, simulate
from tests.reference_networks import batches, network, pipeline_of

pytestmark = pytest.mark.convolutions

RECONSTRUCTING = [methods.PETRA, methods.APPROXIMATE_INPUTS]

measured = partial(toys.measured, ReconstructionProbe)


@pytest.mark.parametrize("pattern", ["b r r r h", "b r r b r h", "br rr brr rh"])
@pytest.mark.parametrize("method", RECONSTRUCTING, ids=str)
def test_training_errors_match_brute_force(method: Method, pattern: str) -> None:
    """The reconstruction errors in training equal those computed from the paper's equations."""
    stages, data, rate = network(pattern, norm=False), batches(18), 0.1
    k = 1 if (method is methods.PETRA) == (len(stages) == 5) else 2  # every method and every pattern with both
    last = len(stages) - 1
    history = simulate(stages, RULES[method.name], k, Sgd(lambda tick: rate), data, range(len(data)))
    of_cause = measured(pipeline_of(stages, method, k).stages, method, data, rate=rate, k=k)
    followed = range(len(data) - 2 * last)
    for j, word in enumerate(pattern.split()):
        if word[0] != "r":
            assert all(of_stages[j] is None for of_stages in of_cause.values())
            continue
        errors = []
        for m in followed:
            true, reconstructed = history.inputs[m, j, 0], history.reconstructed[m, j, 0]
            streams = [(torch.cat(reconstructed), torch.cat(true)), *zip(reconstructed, true, strict=True)]
            errors.append([float((r - t).norm() / t.norm()) for r, t in streams])
        expected = torch.tensor(errors, dtype=torch.float64).mean(0).tolist()
        assert [of_cause[f"training/{tensor}"][j] for tensor in TENSORS] == pytest.approx(expected, rel=1e-9, abs=1e-11)
        assert expected[0] > 1e-5 or j == last  # forward and backward of the head are in one tick
        assert of_cause["rounding/input"][j] < 1e-14  # type: ignore[operator]  # only unmeasured values are None


@pytest.mark.parametrize("k", [1, 2])
def test_predicted_weights_use_true_input_of_engine_forward(k: int) -> None:
    """With predicted weights, errors are relative to the input of the engine's forward pass."""
    pattern, settings = "b r r r h", {"delay": [PredictedWeights()]}
    stages, data = network(pattern, norm=False), batches(18)
    reference = Sgd(lambda tick: RATE, MOMENTUM, nesterov=False)
    about = ByHand(nesterov=False, **settings)
    history = simulate(stages, RULES["PETRA"], k, reference, data, range(len(data)), about=about)
    probe = ReconstructionProbe(interval=1)
    p = pipeline_of(
        *(stages, methods.PETRA, k),
        optimizer=sgd(RATE, momentum=MOMENTUM, nesterov=False),
        after_backward=probe.after_backward,
        **settings,
    )
    probe.watch(p, len(data))
    for x, y in data:
        probe.before_step(x, y)
        p.step(x, y)
    collected = probe.collect()["measured"]["training/input"]
    for j in (1, 2, 3):
        pairs = [
            (torch.cat(history.reconstructed[m, j, 0]), torch.cat(history.inputs[m, j, 0]))
            for m in range(len(data) - 2 * (len(stages) - 1))
        ]
        expected = sum(float((r - t).norm() / t.norm()) for r, t in pairs) / len(pairs)
        assert collected[j] == pytest.approx(expected, rel=1e-9, abs=1e-11)


@pytest.mark.parametrize("method", RECONSTRUCTING, ids=str)
def test_without_updates_the_engine_only_rounds(method: Method) -> None:
    """Without updates, the reconstruction errors in training are rounding errors."""
    net = [*toys.network(4)[:3], PixelUnshuffleStage(2), ReversibleStage(toys.residual(8)), toys.head(8)]
    net = [merge([net[0]]), net[1], merge(net[2:4]), *(stage.double() for stage in net[4:])]
    values = measured(net, method, toys.batches(14), rate=0.0)
    assert set(values) == {f"{cause}/{tensor}" for cause in CAUSES for tensor in TENSORS}
    for j in (1, 2, 3):
        for tensor in TENSORS:
            assert values[f"training/{tensor}"][j] == pytest.approx(values[f"rounding/{tensor}"][j], rel=0.5, abs=1e-16)
            assert values[f"training/{tensor}"][j] < 1e-14  # type: ignore[operator]  # only unmeasured values are None
    assert [values["training/input"][j] for j in (0, 4)] == [None, None]


def chain(depth: int) -> tuple[list[Stage], Tensor]:
    torch.manual_seed(depth)
    return models.chain(depth, num_classes=10, channels=8, stem_stride=2), torch.randn(8, 3, 16, 16)


def test_rounding_errors_match_inversion_by_hand() -> None:
    """Rounding errors equal those of an explicit inversion of a chain."""
    stages, images = chain(3)
    errors = rounding_errors(stages, images)
    with torch.no_grad():
        inputs = [stages[0](images)]
        for stage in stages[1:4]:
            inputs.append(stage(inputs[-1]))
        y, y_tilde = inputs[3]
        for j in (3, 2, 1):
            y, y_tilde = y_tilde, y - stages[j].residual(y_tilde)
            x, x_tilde = inputs[j - 1]
            whole = (torch.cat([y, y_tilde]) - torch.cat([x, x_tilde])).norm() / torch.cat([x, x_tilde]).norm()
            expected = [whole, (y - x).norm() / x.norm(), (y_tilde - x_tilde).norm() / x_tilde.norm()]
            assert [errors[j][tensor] for tensor in TENSORS] == pytest.approx(
                [float(error) for error in expected], rel=1e-3
            )
    assert sorted(errors) == [1, 2, 3]


def test_rounding_grows_with_depth_and_lower_precision() -> None:
    """The engine keeps streams in float32, because in bfloat16 a chain of thirty stages reconstructs noise."""
    stages, images = chain(30)
    single, half = (rounding_errors(stages, images, streams) for streams in (None, torch.bfloat16))
    for errors, top, bottom in ((single, (1e-9, 3e-7), (3e-7, 1e-3)), (half, (3e-4, 1e-2), (0.05, 10.0))):
        assert top[0] < errors[30]["input"] < top[1]
        assert bottom[0] < errors[1]["input"] < bottom[1]
    # The error grows over every ten stages, not at every stage.
    assert all(single[j]["input"] < single[j - 10]["input"] for j in range(11, 31))


def test_random_network_is_inverted_with_its_forward_draws() -> None:
    """With its side bits BDIA is exact at every depth. The float form at least doubles an error at each."""
    data = [(images.float(), labels) for images, labels in toys.batches(29)]
    size = TransformerSize(width=16, depth=12, heads=2)
    by_bits = {
        bits: measured(
            vit(size, num_classes=3, image_size=6, patch=3, dropout=0.2, bdia=True, bits=bits),
            methods.PETRA,
            data,
            rate=0.0,
        )
        for bits in (9, None)
    }
    blocks = range(1, size.depth)
    assert {by_bits[9][f"{cause}/input"][j] for cause in ("rounding", "training") for j in blocks} == {0.0}
    for cause in ("rounding", "training"):
        errors = by_bits[None][f"{cause}/input"]
        assert 2**10 < errors[1] / errors[size.depth - 1] < 2**17


def test_probing_random_stages_changes_no_bit() -> None:
    """A probe of stages that draw random numbers does not change the training."""
    data, probe = [(images.float(), labels) for images, labels in toys.batches(12)], ReconstructionProbe(interval=1)
    states = []
    for look in (probe.after_backward, None):
        torch.manual_seed(0)
        size = TransformerSize(width=16, depth=3, heads=2)
        net = vit(size, num_classes=3, image_size=6, patch=3, dropout=0.2, bdia=True)
        p = Pipeline(net, methods.PETRA, optimizer=toys.sgd, seed=3, after_backward=look)
        if look:
            probe.watch(p, len(data))
        for x, y in data:
            if look:
                probe.before_step(x, y)
            p.step(x, y)
        states.append(p.state_dict())
    assert_bitwise_equal(*states)
    assert probe.collect()["measured"]["training/input"][1] > 0  # weights changed in between
