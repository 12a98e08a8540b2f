"""Test optimizers that depend on stage and names, and the learning rates of their parameter groups."""

import pytest
import torch
from torch import nn

from petra_core import Pipeline, merge, methods
from petra_core.optimizers import adamw
from petra_core.prediction.memory import predict
from tests import toys

Named = list[tuple[str, nn.Parameter]]


def layered(named: Named, stage: int) -> torch.optim.Optimizer:
    """Return SGD with lower rates in lower stages; biases have a tenth of the rate and no decay."""
    weights = [p for name, p in named if not name.endswith("bias")]
    biases = [p for name, p in named if name.endswith("bias")]
    groups = [
        {"params": weights, "lr": 0.1 * 2.0**stage, "weight_decay": 1e-3},
        {"params": biases, "lr": 0.01 * 2.0**stage},
    ]
    return torch.optim.SGD([group for group in groups if group["params"]])


def test_factory_of_two_arguments_gets_names_and_stage() -> None:
    """A factory of two arguments receives named trainable parameters and the index of the stage."""
    seen: dict[int, list[str]] = {}

    def look(named: Named, stage: int) -> torch.optim.Optimizer:
        seen[stage] = [name for name, _ in named]
        return torch.optim.SGD(named, lr=0.1)  # torch accepts named parameters

    stages = toys.network(4)
    stages = [stages[0], merge(stages[1:3]), stages[3]]
    stages[0].function[0].weight.requires_grad_(False)
    p = Pipeline(stages, methods.PETRA, optimizer=look)
    expected = {
        index: [name for name, parameter in stage.named_parameters() if parameter.requires_grad]
        for index, stage in enumerate(stages)
    }
    assert seen == expected
    toys.train(p, toys.batches(3))
    seen.clear()
    predict(stages, methods.PETRA, *toys.batches(1)[0], optimizer=look)
    assert {index: names for index, names in seen.items() if index != 1} == {0: expected[0], 2: expected[2]}
    assert set(seen[1]) < set(expected[1])  # per block


def test_set_learning_rate_keeps_group_ratios() -> None:
    """`set_learning_rate` keeps the ratios of parameter groups, even after a rate of 0."""
    p = Pipeline(toys.network(4), methods.PETRA, optimizer=layered)
    for rate in (0.0, 0.5):
        p.set_learning_rate(rate)
        for optimizer in p.optimizers:
            assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([rate, rate / 10])
    p.set_learning_rate(lambda stage: 0.25 * stage)
    assert p.optimizers[2].param_groups[1]["lr"] == pytest.approx(0.05)


def test_set_learning_rate_is_exact_for_equal_groups() -> None:
    p = Pipeline(toys.network(3), methods.PETRA, optimizer=adamw(0.3))
    p.set_learning_rate(0.1)
    assert {group["lr"] for optimizer in p.optimizers for group in optimizer.param_groups} == {0.1}


def test_set_learning_rate_refuses_groups_without_a_ratio() -> None:
    """A group that was added to the optimizer of a pipeline has no known ratio to the first group."""
    p = Pipeline(toys.network(3), methods.PETRA, optimizer=layered)
    p.optimizers[0].add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    with pytest.raises(ValueError, match="make all groups in the factory"):
        p.set_learning_rate(0.1)
