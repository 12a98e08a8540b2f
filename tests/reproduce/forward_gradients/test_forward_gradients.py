"""Test forward gradients against their definition, in float64."""

import copy
import weakref
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from petra_core import BufferedStage, CheckpointError, HeadStage, optimizers
from petra_core.models import PointwiseConv2d
from reproduce.forward_gradients import blocks, training
from reproduce.forward_gradients.layers import layers_of, observing, shares, shift
from reproduce.forward_gradients.settings import Derivative, ForwardGradient, Guess, Scaling, Space, Target
from reproduce.forward_gradients.training import ForwardGradients
from reproduce.models.transformer import SelfAttention
from tests import toys

BATCH = 4


def trained(
    settings: ForwardGradient,
    *,
    norm: bool = True,
    seed: int = 0,
    steps: int = 1,
    rate: float | None = None,
    size: int = BATCH,
) -> ForwardGradients:
    """Train some steps, and keep the gradients of the last one."""
    stages = toys.convolutions(norm)
    torch.manual_seed(1)
    make = None if rate is None else optimizers.sgd(rate)
    trainer = ForwardGradients(stages, settings, auxiliary=toys.auxiliary(norm), optimizer=make, seed=seed)
    for x, y in toys.batches(steps, size=size):
        trainer.step(x, y)
    return trainer


def gradients(trainer: ForwardGradients) -> Tensor:
    """Return the gradients of all blocks except the last as one vector."""
    return torch.cat(
        [p.grad.flatten() for stage in trainer.stages[:-1] for p in stage.parameters() if p.grad is not None]
    )


def exact(norm: bool = True) -> Tensor:
    """Return the same vector by plain backpropagation."""
    model = nn.Sequential(*toys.convolutions(norm))
    ((x, y),) = toys.batches(1, size=BATCH)
    nn.functional.cross_entropy(model(x), y).backward()
    return torch.cat([p.grad.flatten() for p in model[:-1].parameters() if p.grad is not None])


@pytest.mark.parametrize("space", Space)
def test_guess_equal_to_target_gives_the_target(space: Space) -> None:
    """If the guess is the target, the gradient is that of backpropagation and all cosines are 1."""
    both = trained(ForwardGradient(Target.GLOBAL, Guess.GLOBAL, space))
    torch.testing.assert_close(gradients(both), exact(), rtol=1e-7, atol=1e-10)
    torch.testing.assert_close(both.cosines, torch.ones(3), rtol=1e-6, atol=0)


@pytest.mark.parametrize("space", Space)
def test_local_guess_of_local_target_is_local_learning(space: Space) -> None:
    """The local guess of the local target gives the gradients of local learning."""
    trainer = trained(ForwardGradient(Target.LOCAL, Guess.LOCAL, space))
    stages = toys.convolutions()
    torch.manual_seed(1)
    ((x, y),) = toys.batches(1, size=BATCH)
    for index, stage in enumerate(stages[:-1]):
        head = toys.auxiliary()(index)
        x = stage(x.detach())
        nn.functional.cross_entropy(head(x), y).backward()
        head_of_block = trainer.blocks[index].auxiliary
        assert head_of_block is not None
        for ours, theirs in zip((trainer.stages[index], head_of_block), (stage, head), strict=True):
            for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
                torch.testing.assert_close(p.grad, q.grad, rtol=1e-6, atol=1e-8)  # eps counts in small ones


def test_next_target_passes_through_the_next_block() -> None:
    """The target passes through the next block. For the last block it is that of the network's loss, the global one."""
    trainer = trained(ForwardGradient(Target.NEXT, Guess.NEXT))
    stages = toys.convolutions()
    torch.manual_seed(1)
    heads = [toys.auxiliary()(index) for index in range(3)]
    ((x, y),) = toys.batches(1, size=BATCH)
    for index, stage in enumerate(stages[:-1]):
        x = x.detach()
        above = stages[index + 1](stage(x))
        output = above if index == 2 else heads[index + 1](above)
        wanted = torch.autograd.grad(nn.functional.cross_entropy(output, y), list(stage.parameters()))
        for p, q in zip(trainer.stages[index].parameters(), wanted, strict=True):
            torch.testing.assert_close(p.grad, q, rtol=1e-7, atol=1e-10)
        x = stage(x)


@pytest.mark.parametrize("space", [Space.WEIGHTS, Space.BATCH_WEIGHTS, Space.ALL_WEIGHTS])
def test_update_length_is_target_length_times_cosine(space: Space) -> None:
    """Test every tensor with one coefficient, along the target; and single samples with a batch of one."""
    size = 1 if space is Space.WEIGHTS else BATCH
    target, guess, update = (
        gradients(trained(ForwardGradient(target, along, space), norm=False, size=size))
        for target, along in ((Target.GLOBAL, Guess.GLOBAL), (Target.LOCAL, Guess.LOCAL), (Target.GLOBAL, Guess.LOCAL))
    )
    sizes = [p.numel() for stage in toys.convolutions(norm=False)[:-1] for p in stage.parameters()]
    if space is Space.ALL_WEIGHTS:
        sizes = [sum(sizes)]
    for t, g, step in zip(*(v.split(sizes) for v in (target, guess, update)), strict=True):
        cosine = torch.cosine_similarity(t, g, dim=0)
        torch.testing.assert_close(step.norm(), t.norm() * cosine.abs(), rtol=1e-6, atol=1e-12)
        assert torch.dot(t, step) >= -1e-12


def test_projection_is_computed_per_sample() -> None:
    """Test the space of weights, tensor by tensor, with the gradient of each sample from autograd."""
    stages = toys.convolutions(norm=False)
    torch.manual_seed(1)
    heads = [toys.auxiliary(norm=False)(index) for index in range(3)]
    ((x, y),) = toys.batches(1, size=BATCH)
    wanted = [torch.zeros_like(p) for stage in stages[:-1] for p in stage.parameters()]
    for n in range(BATCH):
        value, at = x[n : n + 1], 0
        for index, stage in enumerate(stages[:-1]):
            parameters = list(stage.parameters())
            local = nn.functional.cross_entropy(heads[index](stage(value)), y[n : n + 1]) / BATCH
            whole = nn.functional.cross_entropy(nn.Sequential(*stages[index:])(value), y[n : n + 1]) / BATCH
            pairs = zip(torch.autograd.grad(whole, parameters), torch.autograd.grad(local, parameters), strict=True)
            for t, g in pairs:
                wanted[at] += (t * g).sum() / ((g * g).sum() + 1e-16) * g
                at += 1
            value = stage(value).detach()
    trainer = trained(ForwardGradient(), norm=False)
    torch.testing.assert_close(gradients(trainer), torch.cat([w.flatten() for w in wanted]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("guess", "space"), [*((Guess.GAUSSIAN, space) for space in Space), (Guess.RADEMACHER, Space.WEIGHTS)]
)
def test_plain_noise_is_unbiased(guess: Guess, space: Space) -> None:
    """Test Baydin's estimator, and Ren's of activations: the mean of many draws, within four standard errors."""
    stages, draws = toys.convolutions(norm=False), 200
    trainer = ForwardGradients(stages, ForwardGradient(Target.GLOBAL, guess, space, Scaling.PLAIN), seed=3)
    ((x, y),) = toys.batches(1, size=BATCH)
    drawn = []
    for _ in range(draws):
        trainer.step(x, y)
        drawn.append(gradients(trainer))
    values, target = torch.stack(drawn), exact(norm=False)
    apart = (values.mean(0) - target).abs() / (values.std(0) / draws**0.5 + 1e-15)
    # Of some 200 numbers about one in 16000 is as far away as that by chance.
    assert float(apart.max()) < 4.5
    assert float((apart < 2).double().mean()) > 0.9


@pytest.mark.parametrize(
    ("target", "space"),
    [
        (target, space)
        for target in Target
        for space in Space
        if target is Target.GLOBAL or space is not Space.ALL_WEIGHTS
    ],
)
@pytest.mark.parametrize("guess", [Guess.LOCAL, Guess.GAUSSIAN, Guess.FIXED])
def test_jvp_equals_projection(target: Target, space: Space, guess: Guess) -> None:
    """The gradients by jvp equal those by projection. One jvp does not suffice for several losses and all weights."""
    settings = ForwardGradient(target, guess, space)
    by_projection, by_jvp = (
        gradients(trained(replace(settings, derivative=derivative), norm=False)) for derivative in Derivative
    )
    torch.testing.assert_close(by_jvp, by_projection, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("space", [Space.BATCH_WEIGHTS, Space.ALL_WEIGHTS])
def test_jvp_with_batch_statistics_agrees_for_batch_spaces(space: Space) -> None:
    """Single samples do not agree, because the guess of each changes the losses of the others."""
    settings = ForwardGradient(space=space)
    same = [gradients(trained(replace(settings, derivative=derivative))) for derivative in Derivative]
    torch.testing.assert_close(*same, rtol=1e-8, atol=1e-12)
    each = replace(settings, space=Space.ACTIVATIONS)
    other = [gradients(trained(replace(each, derivative=derivative))) for derivative in Derivative]
    assert not torch.allclose(*other, rtol=1e-3)


@pytest.mark.parametrize("derivative", Derivative)
@pytest.mark.parametrize("space", Space)
def test_batch_statistics_are_updated_once_per_step(derivative: Derivative, space: Space) -> None:
    """Batch statistics are updated once per step, as in one forward pass."""
    target = Target.GLOBAL if space is Space.ALL_WEIGHTS else Target.NEXT
    settings = ForwardGradient(target, Guess.LOCAL, space, derivative=derivative)
    trainer = trained(settings, steps=1)
    model = nn.Sequential(*toys.convolutions())
    ((x, _),) = toys.batches(1, size=BATCH)
    model(x)
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(dict(trainer.model.named_buffers())[name], buffer)
    counts = [
        int(b) for block in trainer.blocks for m in block.modules.values() for n, b in m.named_buffers() if "num" in n
    ]
    assert counts == [1] * 6  # of three blocks and their auxiliary networks


@pytest.mark.parametrize("derivative", Derivative)
@pytest.mark.parametrize("space", Space)
def test_frozen_parameters_and_blocks_without_parameters(derivative: Derivative, space: Space) -> None:
    """Frozen parameters get no gradient and keep their values, and a block may have no parameters."""
    settings = ForwardGradient(Target.GLOBAL, Guess.LOCAL, space, derivative=derivative)

    def made(block: int, freezes: bool) -> nn.Module:
        own = toys.auxiliary()(block)
        next(own.parameters()).requires_grad_(not freezes)
        return own

    trainers = []
    for freezes in (False, True):
        stages = [BufferedStage(nn.Identity()), *toys.convolutions()]
        frozen = [stages[1].function[0].weight, stages[2].function[1].bias, stages[-1].function[2].bias]
        for parameter in frozen:
            parameter.requires_grad_(not freezes)
        torch.manual_seed(1)
        networks = partial(made, freezes=freezes)
        trainers.append(ForwardGradients(stages, settings, auxiliary=networks, optimizer=optimizers.sgd(0.1), seed=0))
        frozen += [next(block.auxiliary.parameters()) for block in trainers[-1].blocks[:-1]]
    before = [parameter.clone() for parameter in frozen]
    for trainer in trainers:
        trainer.step(*toys.batches(1, size=BATCH)[0])
    assert all(p.grad is None and torch.equal(p, old) for p, old in zip(frozen, before, strict=True))
    whole, partly = (trainer.model.parameters() for trainer in trainers)
    trained = [(one, other) for one, other in zip(whole, partly, strict=True) if other.requires_grad]
    alike = [torch.equal(one, other) for one, other in trained]
    # In the space of all weights one number is of all that is guessed, so only the last block is left as it was.
    assert all(alike[-1:] if space is Space.ALL_WEIGHTS else alike)


def test_per_sample_shares_are_exact_with_batch_statistics() -> None:
    """They sum up to autograd's gradient, and are the transpose of the effect of a change of weights."""
    torch.manual_seed(0)
    block = nn.Sequential(
        nn.Conv2d(4, 6, 3, stride=2, groups=2),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        PointwiseConv2d(6, 3, 2),
        nn.Flatten(2),
        nn.Linear(4, 5),
    ).double()
    x = torch.randn(3, 4, 8, 9, dtype=torch.float64, requires_grad=True)
    layers = layers_of(block)
    with observing(layers) as seen:
        output = block(x)
    down = torch.randn_like(output)
    output.backward(down)
    for layer in layers:
        shared = shares(layer, seen.features[layer.name], seen.gradients[layer.name])
        for name, parameter in layer.parameters.items():
            torch.testing.assert_close(shared[name].sum(0), parameter.grad)
            change = torch.randn_like(shared[name])
            moved = shift(layer, seen.features[layer.name], {name: change})
            shifted = (moved * seen.gradients[layer.name]).flatten(1).sum(1)
            torch.testing.assert_close(shifted, (shared[name] * change).flatten(1).sum(1))


def test_jvp_keeps_one_graph_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Projection holds the graphs of all blocks, counted by live objects and by the bytes of the blocks."""
    alive: list[int] = []
    evaluations: list[weakref.ref[training.BlockEvaluation]] = []
    made = training.BlockEvaluation.__init__

    def note(evaluation: training.BlockEvaluation, *arguments: Any) -> None:
        alive.append(sum(other() is not None for other in evaluations))
        evaluations.append(weakref.ref(evaluation))
        made(evaluation, *arguments)

    monkeypatch.setattr(training.BlockEvaluation, "__init__", note)
    peaks = {}
    for derivative in Derivative:
        alive.clear()
        trainer = trained(ForwardGradient(space=Space.ACTIVATIONS, derivative=derivative))
        assert alive == ([0, 1, 2, 3] if derivative is Derivative.PROJECTION else [0] * 4)
        of_blocks = [stage.peak["graph"] + stage.peak["inputs"] for stage in trainer.memory().stages]
        assert trainer.memory().now("graph", "inputs") == 0
        peaks[derivative] = trainer.graphs_peak, of_blocks
    assert peaks[Derivative.PROJECTION][1] == peaks[Derivative.JVP][1]
    assert peaks[Derivative.PROJECTION][0] == sum(peaks[Derivative.PROJECTION][1])
    assert peaks[Derivative.JVP][0] == max(peaks[Derivative.JVP][1])


# --- training as a whole


@pytest.mark.parametrize("guess", [Guess.GAUSSIAN, Guess.REDRAWN, Guess.FIXED])
def test_resumed_training_gives_same_weights(guess: Guess) -> None:
    """Training resumed from a checkpoint ends with the same weights; other settings are refused."""
    settings = ForwardGradient(Target.LOCAL, guess, Space.ACTIVATIONS)
    data = toys.batches(4, size=BATCH)
    whole = trained(settings, steps=4, rate=0.05)
    half = trained(settings, steps=2, rate=0.05)
    torch.manual_seed(5)  # of another process: what it drew does not matter
    make = optimizers.sgd(0.05)
    other = ForwardGradients(toys.convolutions(), settings, auxiliary=toys.auxiliary(), optimizer=make, seed=0)
    other.load_state_dict(copy.deepcopy(half.state_dict()))
    for x, y in data[2:]:
        other.step(x, y)
    for a, b in zip(whole.model.state_dict().values(), other.model.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(CheckpointError, match=r"settings .*gaussian|settings .*redrawn|settings .*fixed"):
        trained(ForwardGradient(), rate=0.05).load_state_dict(half.state_dict())


@pytest.mark.parametrize(("kind", "count"), [("cnn", 8), ("mlp", 16), ("linear", 8)])
def test_networks_have_shapes_of_the_paper_and_learn(kind: str, count: int) -> None:
    """The full width has the paper's shapes. A narrow network memorises a batch under local guesses."""
    outputs = [(64 << 4 * index // count, 32 >> 4 * index // count) for index in range(count - 1)]
    with torch.device("meta"):
        x: Tensor = torch.zeros(2, 3, 32, 32)
        stages, made = blocks.local_resnet(count, num_classes=10), blocks.auxiliary(kind, count, num_classes=10)
        for index, (stage, (channels, size)) in enumerate(zip(stages[:-1], outputs, strict=True)):
            x = stage(x)  # type: ignore[assignment]  # none of these stages has two streams
            assert tuple(x.shape[1:]) == (channels, size, size)
            assert made(index)(x).shape == (2, 10)
    hidden = {"cnn": "0.weight", "mlp": "1.weight"}.get(kind)
    if hidden:
        assert made(0).get_parameter(hidden).shape[0] == blocks.AUXILIARIES[kind][count]
    torch.manual_seed(0)
    trainer = ForwardGradients(
        blocks.local_resnet(count, num_classes=10, width=16),
        ForwardGradient(space=Space.ACTIVATIONS),
        auxiliary=blocks.auxiliary(kind, count, num_classes=10, width=16),
        optimizer=optimizers.sgd(0.02),
        seed=0,
    )
    images, labels = torch.randn(16, 3, 16, 16), torch.arange(16) % 10
    losses = [float(trainer.step(images, labels)) for _ in range(8)]
    assert losses[-1] < losses[0]


def test_pooling_equals_adaptive_average_pooling() -> None:
    """The pooling equals AdaptiveAvgPool2d for odd and even sizes."""
    for size in (1, 2, 5, 7, 8):
        images = torch.randn(2, 3, size, size + 1)
        torch.testing.assert_close(blocks._Pool()(images), nn.AdaptiveAvgPool2d(2)(images).flatten(1))


def test_forward_mode_supports_attention() -> None:
    attention = [BufferedStage(SelfAttention(4, 2)) for _ in range(2)]
    forward_mode = ForwardGradient(space=Space.ACTIVATIONS, derivative=Derivative.JVP)
    seen = ForwardGradients([*attention, HeadStage(nn.Flatten())], forward_mode, auxiliary=lambda _: nn.Flatten())
    assert bool(seen.step(torch.randn(3, 2, 4), torch.zeros(3, dtype=torch.int64)).isfinite())
