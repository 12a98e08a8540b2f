"""The training recipe: learning rates by the paper's numbers, and which parameters decay."""

import pickle

import pytest
import torch
from torch import nn

from petra_core import models
from petra_core.recipe import LearningRateSchedule, adamw, learning_rate, nadam, set_rate, sgd


def test_the_papers_schedule_on_cifar10():
    """Batch 64, k = 4: 781 micro-batches an epoch, 5 epochs of warm-up, drops at epochs 150 and 225."""
    for batch_size, accumulation, expected in [(64, 1, 0.025), (64, 32, 0.8), (1, 3, 0.3 / 256)]:
        assert learning_rate(batch_size, accumulation) == pytest.approx(expected, rel=1e-15)
    with pytest.raises(ValueError, match=r"k=33 is outside 1\.\.32"):
        learning_rate(64, 33)
    schedule = LearningRateSchedule(learning_rate(64, 4), warmup := 5 * 781, drops=(150 * 781, 225 * 781))
    assert schedule(0) == 0
    steps = [schedule(i + 1) - schedule(i) for i in range(warmup)]
    assert steps == pytest.approx([0.1 / warmup] * warmup, rel=1e-9)  # linear per iteration, not per epoch
    for iteration, expected in [
        (warmup, 0.1),
        (150 * 781 - 1, 0.1),
        (150 * 781, 0.01),
        (225 * 781 - 1, 0.01),
        (225 * 781, 0.001),
        (300 * 781 - 1, 0.001),
    ]:
        assert schedule(iteration) == pytest.approx(expected, rel=1e-12), f"micro-batch {iteration}"


def test_other_factors_lists_of_drops_and_none_of_them():
    assert [LearningRateSchedule(0.3)(i) for i in (0, 1, 10**6)] == [0.3] * 3
    schedule = LearningRateSchedule(1.0, 2, [2, 5], factor=0.5)
    assert [schedule(i) for i in range(7)] == [0, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25]
    assert hash(schedule) == hash(LearningRateSchedule(1.0, 2, (2, 5), factor=0.5))


@pytest.mark.parametrize(
    ("make", "settings", "error", "message"),
    [
        (LearningRateSchedule, {"base": -0.1}, ValueError, "base must be at least 0 and finite, got -0.1"),
        (LearningRateSchedule, {"factor": -1}, ValueError, "factor must be at least 0"),
        (LearningRateSchedule, {"warmup_iterations": -1}, ValueError, "warmup_iterations must be at least 0, got -1"),
        (LearningRateSchedule, {"drops": (5, 5)}, ValueError, r"drops must increase, got 5 after 5 in \(5, 5\)"),
        (LearningRateSchedule, {"drops": (3,), "warmup_iterations": 4}, ValueError, "a drop must be at least 4, got 3"),
        (LearningRateSchedule, {"drops": (1.5,)}, TypeError, r"a drop must be an int .* got 1\.5"),
        (sgd, {"learning_rate": -1}, ValueError, "learning_rate must be at least 0 and finite, got -1"),
        (sgd, {"momentum": 1.0}, ValueError, "momentum must be at least 0 and below 1, got 1.0"),
        (sgd, {"momentum": 0.0}, ValueError, "needs a momentum above 0"),
        (adamw, {"beta1": 1.0}, ValueError, "beta1"),
        (adamw, {"weight_decay": -1}, ValueError, "weight_decay"),
        (nadam, {"momentum_decay": -1}, ValueError, "momentum_decay"),
    ],
)
def test_what_makes_no_sense_is_refused(make, settings, error, message):
    rate = {"base": 0.1} if make is LearningRateSchedule else {"learning_rate": 0.1}
    with pytest.raises(error, match=message):
        make(**rate | settings)


def test_batchnorm_and_biases_do_not_decay():
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
    # A factory can be sent to another process, and a stage can have biases alone.
    optimizer = pickle.loads(pickle.dumps(sgd(0.2, weight_decay=0.5)))([nn.Parameter(torch.ones(2))])
    assert [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups] == [(0.2, 0.0)]


def test_two_updates_of_adamw_by_hand():
    weight, bias = (nn.Parameter(torch.full(shape, 2.0, dtype=torch.float64)) for shape in ((1, 1), (1,)))
    optimizer = adamw(0.1, beta1=0.8, beta2=0.9, weight_decay=0.5)([weight, bias])
    for parameter, decay in ((weight, 0.5), (bias, 0.0)):
        theta, mean, square = 2.0, 0.0, 0.0
        for step, gradient in enumerate((3.0, -1.0), 1):
            mean, square = 0.8 * mean + 0.2 * gradient, 0.9 * square + 0.1 * gradient**2
            theta -= 0.1 * decay * theta
            theta -= 0.1 * (mean / (1 - 0.8**step)) / ((square / (1 - 0.9**step)) ** 0.5 + 1e-8)
            optimizer.zero_grad()
            parameter.grad = torch.full_like(parameter, gradient)
            optimizer.step()
        assert parameter.item() == pytest.approx(theta, rel=1e-12)


def test_weight_decay_of_nadam_is_decoupled():
    weight = nn.Parameter(torch.full((2, 2), 2.0, dtype=torch.float64))
    optimizer = nadam(0.1, weight_decay=0.5)([weight])
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    assert weight[0, 0].item() == pytest.approx(2.0 * (1 - 0.1 * 0.5), rel=1e-12)


def test_a_rate_that_is_a_tensor_is_written_to_when_it_changes() -> None:
    """On a GPU that is a kernel for each group, and was at every step, for a rate that stays the same for epochs."""
    optimizer = sgd(0.5)([torch.zeros(2, 2, requires_grad=True), torch.zeros(2, requires_grad=True)])
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(0.5)
    written: list[int] = []
    for rate in (0.25, 0.25, 0.25, 0.125):
        set_rate(optimizer, rate)
        assert [group["lr"].item() for group in optimizer.param_groups] == [rate, rate]
        written.append(sum(group["lr"]._version for group in optimizer.param_groups))
    assert written == [2, 2, 2, 4]
    again = sgd(1.0)([torch.zeros(2, 2, requires_grad=True), torch.zeros(2, requires_grad=True)])
    again.load_state_dict(optimizer.state_dict())
    set_rate(again, 0.125)
    assert [group["lr"].item() for group in again.param_groups] == [0.125, 0.125]
