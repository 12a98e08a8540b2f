"""Test the three gradients of Figures 5 and 6 against brute force, and the measures between them."""

import itertools
import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from petra_core import methods
from petra_core.methods import Method
from reproduce.measures.gradient_quality import MEASURES, PAIRS, GradientQuality, compare
from tests import toys
from tests.reference import RULES, ReferenceRun, Sgd, simulate
from tests.reference_networks import batches, network, pipeline_of, plain

pytestmark = pytest.mark.convolutions

RATE = 0.1

measured = partial(toys.measured, GradientQuality, rate=RATE)


def test_gradients_of_a_single_stage_are_equal() -> None:
    """Without a stage below or above it, a head has no delay."""
    for key, of_stages in measured(toys.network(1), methods.PETRA, toys.batches(14)).items():
        assert of_stages == pytest.approx([0.0 if key.endswith("relative_error") else 1.0], abs=1e-9), key


def brute_force(history: ReferenceRun, stages, data, m: int, j: int, ticks: Sequence[int]) -> list[Tensor]:
    """Return the gradient at stage j of the whole network, in which stage i has its weights of ticks[i]."""
    model = plain(stages)
    names = iter(name for name, _ in model.named_parameters())
    leaves: dict[str, Tensor] = {}
    of_stage: list[Tensor] = []
    for i, tick in enumerate(ticks):
        for part in history.weights[tick][i]:
            for tensor in part.values():
                leaf = leaves[next(names)] = tensor.clone().requires_grad_()
                if i == j:
                    of_stage.append(leaf)
    x, y = data[m]
    return list(torch.autograd.grad(F.cross_entropy(functional_call(model, leaves, (x,)), y), of_stage))


def by_numpy(a: list[Tensor], b: list[Tensor]) -> dict[str, float]:
    """Compute the measures a second time, explicitly."""
    by_measure: dict[str, list[float]] = {measure: [] for measure in MEASURES}
    for x, y in ((x.numpy().ravel(), y.numpy().ravel()) for x, y in zip(a, b, strict=True) if y.ndim >= 2):
        by_measure["cosine"].append(float(x @ y / math.sqrt(x @ x) / math.sqrt(y @ y)))
        by_measure["norm_ratio"].append(float(math.sqrt(x @ x) / math.sqrt(y @ y)))
        by_measure["relative_error"].append(float(math.sqrt((x - y) @ (x - y)) / math.sqrt(y @ y)))
    return {measure: float(np.mean(values)) for measure, values in by_measure.items()}


#: Stages, whether they have norms, and k.
NETWORKS = [("b r r r h", False, 1), ("b r r b r h", True, 3), ("br rr brr rh", False, 3)]
OTHERS = [(methods.DSP, 0), (methods.DSP, 2), (methods.DELAYED_GRADIENTS, 1), (methods.APPROXIMATE_INPUTS, 2)]


@pytest.mark.parametrize(("method", "number"), [*((methods.PETRA, n) for n in range(3)), *OTHERS], ids=str)
def test_three_gradients_match_brute_force(method: Method, number: int) -> None:
    """The method's, the delayed and the end-to-end gradient equal those computed from their definitions."""
    pattern, norm, k = NETWORKS[number]
    stages = network(pattern, norm=norm)
    last = len(stages) - 1
    data = batches(2 * last + 5)
    history = simulate(stages, RULES[method.name], k, Sgd(lambda tick: RATE), data, range(len(data)))
    followed = range(len(data) - 2 * last)
    measures = measured(pipeline_of(stages, method, k).stages, method, data, k=k)
    for j in range(len(stages)):
        expected: dict[str, list[float]] = {key: [] for key in measures}
        for m in followed:
            gradients = {
                "method": [gradient for part in history.gradients[j, m] for gradient in part.values()],
                "delayed": brute_force(history, stages, data, m, j, [m + i for i in range(len(stages))]),
                "end_to_end": brute_force(
                    history, stages, data, m, j, [m + 2 * (last - j) + i for i in range(last + 1)]
                ),
            }
            for a, b in PAIRS:
                for measure, value in by_numpy(gradients[a], gradients[b]).items():
                    expected[f"{a}/{b}/{measure}"].append(value)
        for key, values in expected.items():
            assert measures[key][j] == pytest.approx(np.mean(values), rel=1e-9, abs=1e-11), (key, j)
    # The comparison is meaningful: at every stage except the head the three differ, as far as they can.
    for (a, b), j in itertools.product(PAIRS, range(last)):
        if method in (methods.PETRA, methods.DSP) or b == "end_to_end":
            assert measures[f"{a}/{b}/relative_error"][j] > 1e-5, (a, b, j)


def test_compare_by_hand_and_undefined_measures() -> None:
    """The measures equal values by hand, ignore biases, and are None where they are undefined."""
    a = {"weight": torch.tensor([[3.0, 0.0], [0.0, 4.0]]), "bias": torch.tensor([1.0])}
    b = {"weight": torch.tensor([[0.0, 0.0], [0.0, 2.0]]), "bias": torch.tensor([-9.0])}
    assert compare(a, b) == pytest.approx({"cosine": 4 / 5, "norm_ratio": 5 / 2, "relative_error": 13**0.5 / 2})
    ones, zeros, bias = torch.ones(2, 2), torch.zeros(2, 2), torch.ones(2)
    assert compare({"bias": bias}, {"bias": -bias}) == dict.fromkeys(MEASURES)
    assert compare({"w": zeros}, {"w": zeros}) == dict.fromkeys(MEASURES)
    # There is a length but no direction: only the cosine is undefined.
    assert compare({"w": zeros}, {"w": ones}) == {"cosine": None, "norm_ratio": 0.0, "relative_error": 1.0}
    both = compare({"w": 2 * ones, "dead": zeros, "b": bias}, {"w": ones, "dead": zeros, "b": -bias})
    assert both == pytest.approx({"cosine": 1.0, "norm_ratio": 2.0, "relative_error": 1.0})
    assert compare({"w": torch.full((2, 2), math.inf)}, {"w": ones}) == dict.fromkeys(MEASURES)
