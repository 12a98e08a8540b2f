"""Test training of transformers: exactness, resuming, predicted bytes and the error of inversion."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from petra_core import Pipeline, methods
from petra_core.methods import Method
from petra_core.optimizers import adamw
from tests import toys
from tests.compare import assert_bitwise_equal, assert_close, relative_error
from tests.properties import assert_bytes_are_as_predicted, assert_resumes_bitwise, engine_gradients, plain_gradients
from tests.transformers import FAMILIES, RANDOM, batches, every_family, network, random_network

pytestmark = pytest.mark.convolutions


def comparable(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors without gradients that are zero up to rounding and biases that therefore stay zero."""
    zero = {name for name in tensors if name.endswith("pool_k.norm.bias")}
    assert all(tensors[name].abs().max() < 1e-14 for name in zero)
    return {name: tensor for name, tensor in tensors.items() if name not in zero}


@every_family
def test_gradients_equal_autograd(family: str) -> None:
    net, data = network(family), batches(family, 2)
    gradients, expected = engine_gradients(net, methods.REVERSIBLE_BACKPROPAGATION, data, 2), plain_gradients(net, data)
    assert_close(comparable(gradients), comparable(expected), 1e-10)


@pytest.mark.parametrize("family", RANDOM)
def test_dropout_equals_plain_pytorch(family: str) -> None:
    """With dropout, gradients and the global generator's state equal those of plain PyTorch."""
    net, data = random_network(family), batches(family, 2)
    torch.manual_seed(11)
    expected = plain_gradients(net, data)
    state = torch.get_rng_state()
    without = plain_gradients(network(family), data)
    torch.manual_seed(11)
    gradients = engine_gradients(net, methods.REVERSIBLE_BACKPROPAGATION, data, 2)
    assert_bitwise_equal(torch.get_rng_state(), state)
    assert_close(comparable(gradients), comparable(expected), 1e-10)
    assert any(relative_error(without[name], expected[name]) > 1e-2 for name in expected), "nothing was dropped"


FAMILIES_AND_METHODS = [*((family, methods.PETRA) for family in FAMILIES), ("RevRoBERTa", methods.DELAYED_GRADIENTS)]


@pytest.mark.parametrize(("family", "method"), FAMILIES_AND_METHODS, ids=str)
def test_resume_with_a_full_pipeline_is_bitwise(family: str, method: Method, tmp_path: Path) -> None:
    def fresh() -> Pipeline:
        optimizer = adamw(0.01, weight_decay=0.05)
        return toys.pipeline(random_network(family), method, accumulation=2, seed=5, optimizer=optimizer)

    assert_resumes_bitwise(fresh, batches(family, 11, size=2), 6, tmp_path)


def test_predicted_bytes_equal_measured_with_adamw() -> None:
    """`tests/petra_core/prediction/test_kernels.py` compares the bytes of every family with SGD."""
    stages, batch = network("RevRoBERTa"), batches("RevRoBERTa", 1, size=2)[0]
    assert_bytes_are_as_predicted(stages, methods.DELAYED_GRADIENTS, batch, 2, adamw(0.01))
