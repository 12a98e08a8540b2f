"""Test optimizers: the parameters with weight decay, and changes of the learning rate."""

import pickle

import pytest
import torch
from torch import nn

from petra_core import models
from petra_core.optimizers import adamw, nadam, optimizer_of, sgd


def test_weight_decay_excludes_batchnorm_and_biases():
    """Only the weights of convolutions and linear layers have weight decay."""
    model = models.sequential(models.revnet(18, num_classes=10, width=2))
    optimizer = sgd(0.1, weight_decay=5e-4)(model.parameters())
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    for module in model.modules():
        parameters = dict(module.named_parameters(recurse=False))
        for name, parameter in parameters.items():
            is_weight = isinstance(module, nn.Conv2d | nn.Linear) and name == "weight"
            assert decay.pop(id(parameter)) == (5e-4 if is_weight else 0.0), f"{module}.{name}"
    assert not decay
    for group in optimizer.param_groups:
        assert (group["lr"], group["momentum"], group["nesterov"]) == (0.1, 0.9, True)
    # A factory can be sent to another process, and a stage can have biases only.
    optimizer = pickle.loads(pickle.dumps(sgd(0.2, weight_decay=0.5)))([nn.Parameter(torch.ones(2))])
    assert [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups] == [(0.2, 0.0)]


@pytest.mark.parametrize(("factory", "kind"), [(adamw, torch.optim.AdamW), (nadam, torch.optim.NAdam)])
def test_weight_decay_of_adam_is_decoupled(factory, kind):
    """With a gradient of zero, matrices are multiplied by 1 - learning rate * weight decay."""
    matrix, vector = (nn.Parameter(torch.full(shape, 2.0, dtype=torch.float64)) for shape in ((2, 2), (2,)))
    optimizer = factory(0.1, beta1=0.8, beta2=0.9, weight_decay=0.5)([matrix, vector])
    assert type(optimizer) is kind
    assert all(group["betas"] == (0.8, 0.9) for group in optimizer.param_groups)
    matrix.grad, vector.grad = torch.zeros_like(matrix), torch.zeros_like(vector)
    optimizer.step()
    assert (matrix[0, 0].item(), vector[0].item()) == pytest.approx((2.0 * (1 - 0.1 * 0.5), 2.0), rel=1e-12)


def test_factory_without_a_signature_gets_the_parameters() -> None:
    """The signature of a function in C is often unknown; such a factory takes one argument."""
    assert optimizer_of(max, 0, [("low", 1), ("high", 2)]) == 2
