"""Check the properties of every network under every method, for the tests of the networks."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from petra_core import Clip, HeadStage, Pipeline, Stage, checkpoint, methods
from petra_core.methods import Method
from petra_core.models import sequential
from petra_core.optimizers import OptimizerFactory
from petra_core.prediction.footprint import StagePrediction
from petra_core.prediction.memory import predict
from petra_core.staleness import Action, Kind, backward_actions
from petra_core.tape import Value
from tests import toys
from tests.compare import assert_bitwise_equal, assert_close

EXACT = (methods.BACKPROPAGATION, methods.REVERSIBLE_BACKPROPAGATION)
HELD_BETWEEN_STEPS = ("inputs", "side_bits", "stashed_weights", "messages", "graph")

Data = Sequence[tuple[Tensor, Tensor]]


def program(
    method: Method, staleness: Sequence[int], stage: int, micro_batches: int, accumulation: int = 1
) -> Iterator[Action]:
    """Yield all actions of one stage, including those that drain the pipeline after the last micro-batch."""
    for step in range(micro_batches + staleness[stage]):
        if step < micro_batches:
            yield Action(Kind.FORWARD, step)
        number = step - staleness[stage]
        if 0 <= number < micro_batches:
            yield from backward_actions(method, number, accumulation, head=stage == len(staleness) - 1)


def evaluations(method: Method) -> int:
    """Return how often a method evaluates a residual function per micro-batch of a full pipeline."""
    if method.keeps_graph:
        return 1
    return 3 if method.reconstructs and method.stashes_weights else 2  # inverts with the current weights


def plain_model(stages: Sequence[Stage]) -> tuple[torch.nn.Sequential, Callable[[Tensor, Tensor], Tensor]]:
    """Return the plain model of `stages`, and a function (input, target) -> its loss."""
    model = sequential(stages)
    head = stages[-1].parts()[-1]
    assert isinstance(head, HeadStage)
    return model, lambda x, y: head.loss(model(x), y)


def plain_gradients(stages: Sequence[Stage], data: Data) -> dict[str, Tensor]:
    """Return the mean gradients of the plain model over micro-batches, computed only by torch.autograd."""
    model, loss = plain_model(copy.deepcopy(list(stages)))
    for x, y in data:
        (loss(x, y) / len(data)).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def engine_gradients(
    stages: Sequence[Stage], method: Method, data: Data, accumulation: int, **settings: Any
) -> dict[str, Tensor]:
    """Return the mean gradients that the first update of the engine uses, by the plain model's names in its order."""
    gradients: dict[str, Tensor] = {}
    offsets = [sum(len(stage.parts()) for stage in stages[:index]) for index in range(len(stages))]

    def look(index: int, version: int, stage: Stage) -> None:
        assert version == 0
        for number, part in enumerate(stage.parts(), offsets[index]):
            found = [(name, parameter.grad) for name, parameter in part.named_parameters()]
            gradients.update({f"{number}.{name}": grad.clone() for name, grad in found if grad is not None})

    settings = {"accumulation": accumulation, "optimizer": None, "before_update": look, **settings}
    toys.train(toys.pipeline(stages, method, **settings), data)
    return dict(sorted(gradients.items(), key=lambda item: int(item[0].partition(".")[0])))


def plain_training(
    stages: Sequence[Stage], data: Data, k: int = 1, *, optimizer: OptimizerFactory = toys.sgd, clip: Clip | None = None
) -> tuple[list[Tensor], torch.nn.Module]:
    """Return the losses and the plain model of `stages` after training in a plain loop of PyTorch."""
    model, loss = plain_model(stages)
    updates = optimizer(list(model.parameters()))
    losses = []
    for number, (x, y) in enumerate(data, 1):
        result = loss(x, y)
        losses.append(result[0] if isinstance(result, tuple) else result)
        losses[-1].backward()
        if number % k == 0:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad /= k  # not the loss, since hooks see the gradient of a micro-batch
            if clip is not None:
                for clipped in model.children() if clip.per_stage else [model]:
                    clip_grad_norm_(clipped.parameters(), clip.max_norm)
            updates.step()
            updates.zero_grad()
    return [loss.detach() for loss in losses], model


def assert_trains_as_plain_training(
    stages: Sequence[Stage],
    method: Method,
    accumulation: int,
    data: Data,
    *,
    optimizer: OptimizerFactory = toys.sgd,
    clip: Clip | None = None,
    plain: Sequence[Stage] | None = None,
    inspect: bool = True,
) -> None:
    """Assert that losses, weights, statistics and outputs of the engine equal those of a plain loop.

    Each micro-batch is drained, so that no gradient is late. PipeDream-2BW makes one update, at the end.

    Args:
        stages: Network that the engine trains.
        method: The method.
        accumulation: Number of micro-batches per update.
        data: The micro-batches.
        optimizer: Factory of the optimizers.
        clip: Clipping of gradients.
        plain: An equal network, which the plain loop trains. None for a deep copy, which has no hooks of parameters.
        inspect: Whether the engine inspects the stages.

    """
    k = len(data) if method.double_buffered else accumulation
    plain = copy.deepcopy(list(stages)) if plain is None else plain
    expected, model = plain_training(plain, data, k, optimizer=optimizer, clip=clip)
    p = Pipeline(stages, method, accumulation=k, optimizer=optimizer, clip=clip, inspect=inspect)
    losses = []
    for x, y in data:
        losses.append(p.step(x, y))
        p.drain()
        p.evaluate(x)  # it must leave no trace
    assert_close(losses, expected, 1e-9)
    assert_close(list(p.model.state_dict().values()), list(model.state_dict().values()), 1e-9)
    assert all(module.training for module in p.model.modules())
    assert_close(p.evaluate(data[-1][0]), model.eval()(data[-1][0]), 1e-9)


def assert_resumes_bitwise(fresh: Callable[[], Pipeline], data: Data, stop: int, folder: Path) -> None:
    """Assert that the state after `stop` micro-batches with a full pipeline resumes in another pipeline bitwise."""
    undisturbed, resumed = fresh(), fresh()
    toys.train(undisturbed, data[:stop], drain=False)
    checkpoint.save(folder / "state.pt", undisturbed.state_dict())
    toys.train(resumed, data[-3:], drain=False)  # earlier work of the pipeline must leave no trace
    resumed.load_state_dict(checkpoint.load(folder / "state.pt"))
    assert toys.train(resumed, data[stop:]) == toys.train(undisturbed, data[stop:])
    assert_bitwise_equal(resumed.state_dict(), undisturbed.state_dict())
    assert resumed.memory().now() == undisturbed.memory().now()


def assert_bytes_are_as_predicted(
    stages: Sequence[Stage],
    method: Method,
    batch: tuple[Value, Tensor],
    accumulation: int,
    optimizer: OptimizerFactory,
    *,
    inspect: bool = False,
    **settings: Any,
) -> tuple[Pipeline, tuple[StagePrediction, ...]]:
    """Assert that peak and held bytes of every stage and kind are as predicted.

    Returns:
        The full pipeline, and the prediction.

    """
    predicted = predict(stages, method, *batch, accumulation=accumulation, optimizer=optimizer, **settings)
    p = Pipeline(stages, method, accumulation=accumulation, optimizer=optimizer, seed=0, inspect=inspect, **settings)
    largest = [dict.fromkeys(HELD_BETWEEN_STEPS, 0) for _ in stages]
    # While the pipeline fills, all forwards see version 0. Only later do distinct versions fill the stash.
    steady = dataclasses.replace(method, weights=methods.Weights.STASH) if settings.get("delay") else method
    first = p.staleness[0]
    for _ in range((2 * first if steady.stashes_weights else first) + 2 * accumulation):
        p.step(*batch)
        for stage, held in zip(p.memory().stages, largest, strict=True):
            for kind in HELD_BETWEEN_STEPS:
                held[kind] = max(held[kind], stage.now[kind])
    for stage, held, prediction in zip(p.memory().stages, largest, predicted, strict=True):
        assert dict(stage.peak) == dict(prediction.peak), f"peak of stage {stage.stage}"
        between = {kind: prediction.held[kind] for kind in HELD_BETWEEN_STEPS}
        assert held == between, f"between steps, stage {stage.stage}"
    return p, predicted
