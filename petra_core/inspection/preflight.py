"""Check before training whether stages would train as with plain autograd, and report the reasons if not.

    report = petra_core.check(stages, x, y, method=methods.PETRA, optimizer=sgd(0.1))
    print(report)  # one line per finding: stage, parameter, problem, remedy

The check trains copies of the stages, so the weights, the buffers and torch's generators do not change. It trains them
with the method for some micro-batches, inspects the first ones as in every pipeline (`petra_core.inspection`), and
compares the gradients of the first update with those of autograd on the plain network.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from petra_core.errors import Finding, PetraError, StageError
from petra_core.inspection.evaluations import Generators, Inspection
from petra_core.methods import PETRA, Method
from petra_core.optimizers import OptimizerFactory, optimizer_of
from petra_core.pipeline import Pipeline
from petra_core.randomness import capture_all, restore_all
from petra_core.stages import HeadStage, Stage, copy_stages, sequential
from petra_core.tape import Value, as_streams, as_value
from petra_core.targets import Target, convert_tensors
from petra_core.worker import Worker, devices_of

#: Allowed relative difference from autograd's gradient, by dtype. That of float32 allows for reconstruction errors.
TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-2}
ROUGH_TOLERANCE = 0.2  # in mixed precision


@dataclass(frozen=True)
class Report:
    """The findings of `check`. `str(report)` has one line per finding.

    Attributes:
        findings: One finding for each reason; empty if the network trains as with plain autograd.

    """

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Return whether there are no findings."""
        return not self.findings

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings)) or "nothing found: the network trains as plain autograd trains it"


def check(
    stages: Sequence[Stage],
    inputs: Value,
    target: Target,
    *,
    method: Method = PETRA,
    optimizer: OptimizerFactory | None = None,
    **settings: Any,
) -> Report:
    """Check whether a network trains as with plain autograd. Errors are reported as findings.

    Args:
        stages: Stages of the pipeline. They are copied and not changed.
        inputs: A micro-batch, the input of stage 0.
        target: Target of the micro-batch, the second argument of the loss.
        method: Method of the pipeline.
        optimizer: Factory of the pipeline's optimizers.
        **settings: `accumulation`, `staleness`, `delay` and `autocast`, as for `Pipeline`.

    Returns:
        The findings, without duplicates.

    Raises:
        TypeError: If a seed is given. The check draws from torch's global generators, as the plain network does.

    """
    if "seed" in settings:
        raise TypeError(
            f"check() takes no seed, got {settings['seed']!r}: it draws from torch's global generators, as the plain "
            f"network does, with which it compares; leave it out"
        )
    findings: list[Finding] = []
    valid = [stage for stage in stages if isinstance(stage, Stage)]  # others become findings
    devices = {device.index or 0 for device in devices_of(valid) if device.type == "cuda"}
    with torch.random.fork_rng(list(devices)):
        try:
            _check(stages, inputs, target, findings, method=method, optimizer=optimizer, **settings)
        except StageError as error:
            findings.append(error.finding)
        except Exception as error:
            notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
            kind = "" if isinstance(error, PetraError) else f"{type(error).__name__}: "
            findings.append(Finding(None, None, f"training stops with {kind}{error}{notes}", "correct that first"))
    return Report(tuple(dict.fromkeys(findings)))


def _check(stages: Sequence[Stage], inputs: Value, target: Target, findings: list[Finding], **settings: Any) -> None:
    """Train copies of the stages, and add a finding for each difference from plain autograd."""
    plain = copy_stages(stages)
    first: dict[tuple[int, str], Tensor] = {}

    def note(index: int, version: int, stage: Stage) -> None:
        if version == 0:
            first.update({(index, n): p.grad.clone() for n, p in stage.named_parameters() if p.grad is not None})

    pipeline = Pipeline(copy_stages(stages), before_update=note, **settings)
    accumulation, autocast = pipeline.accumulation, pipeline.settings.autocast
    assert pipeline._inspection is not None
    pipeline._inspection.findings = findings
    pipeline._inspection.owners |= Inspection(stages).owners  # a closure refers to the modules that were copied
    findings += _static_findings(pipeline)
    devices = [worker.device for worker in pipeline.workers]
    states, others = capture_all(devices), Generators(plain[0])
    for _ in range(accumulation):  # with the initial weights in all forwards and backwards
        pipeline.step(inputs, target)
        pipeline.drain()
    for _ in range(2 * pipeline.staleness[0] + accumulation):  # fill the pipeline, with updates
        pipeline.step(inputs, target)
    pipeline.drain()
    restore_all(states, devices)
    others.restore()
    wanted = _plain_gradients(plain, inputs, target, accumulation, autocast)
    findings += _compare(first, wanted, autocast)
    trained = [worker for worker in pipeline.workers if worker.optimizer is not None]
    if len(trained) > 1 and _couples(settings["optimizer"], max(trained, key=lambda worker: len(worker.parameters))):
        name = type(trained[0].optimizer).__name__
        what = f"a step of {name} depends on gradients of other parameters, but each stage has a separate optimizer"
        remedy = "switch that off (Pipeline(clip=...) clips by norms), unless a norm or step size by stage is intended"
        findings.append(Finding(None, None, what, remedy))


def _static_findings(pipeline: Pipeline) -> list[Finding]:
    """Return the findings that need no evaluation."""
    findings = []
    for worker in pipeline.workers:
        if not any(module.training for module in worker.stage.modules()):
            what = "is in evaluation mode: no dropout, and BatchNorm with running statistics"
            findings.append(Finding(worker.index, None, what, "call train() on it, unless that is intended"))
        if worker.optimizer is None:
            continue
        given = {id(parameter) for group in worker.optimizer.param_groups for parameter in group["params"]}
        for name, parameter in worker.stage.named_parameters():
            if parameter.requires_grad and id(parameter) not in given:
                what = "was not given to the optimizer of the stage, so it never moves"
                remedy = "make the optimizer of the whole list of parameters, or freeze this one"
                findings.append(Finding(worker.index, name, what, remedy))
    return findings


def _couples(factory: OptimizerFactory, worker: Worker) -> bool:
    """Return whether the optimizer's step of a stage's first parameter depends on the gradients of the others."""
    results = []
    for other in (0.0, 2.0):
        torch.manual_seed(0)
        named = [(name, nn.Parameter(parameter.detach().clone())) for name, parameter in worker._named.items()]
        optimizer = optimizer_of(factory, worker.index, named)
        for _ in range(3):
            for number, (_, parameter) in enumerate(named):
                parameter.grad = torch.randn_like(parameter).add_(other if number else 0.0)
            with torch.no_grad():
                optimizer.step()
        numbers = [v for group in optimizer.param_groups for v in group.values() if isinstance(v, int | float | Tensor)]
        results.append((str(numbers), named[0][1]))
    (before, weight), (after, other_weight) = results
    return before != after or not torch.equal(weight, other_weight)


def _plain_gradients(
    stages: Sequence[Stage], inputs: Value, target: Target, accumulation: int, autocast: torch.dtype | None
) -> dict[tuple[int, str], Tensor]:
    """Return the mean gradients of k micro-batches by plain autograd, for parameters that have one."""
    head = stages[-1].parts()[-1]
    assert isinstance(head, HeadStage)
    model = sequential(stages)
    devices = devices_of(stages)
    value = as_value(tuple(stream.to(devices[0]) for stream in as_streams(inputs)))
    for _ in range(accumulation):
        with torch.autocast(devices[0].type, dtype=autocast, enabled=autocast is not None):
            loss = head.loss(model(value), convert_tensors(target, lambda tensor: tensor.to(devices[-1])))
        (loss if isinstance(loss, Tensor) else loss[0]).backward()
    return {
        (index, name): parameter.grad / accumulation
        for index, stage in enumerate(stages)
        for name, parameter in stage.named_parameters()
        if parameter.grad is not None
    }


def _compare(
    first: dict[tuple[int, str], Tensor], wanted: dict[tuple[int, str], Tensor], autocast: torch.dtype | None
) -> list[Finding]:
    """Return findings for parameters whose first mean gradient differs from that of plain autograd."""
    findings = []
    largest = max((float(gradient.abs().max()) for gradient in wanted.values()), default=0.0)
    for index, name in sorted(first.keys() | wanted.keys()):
        if (index, name) not in first or (index, name) not in wanted:
            has, has_not = ("autograd", "the pipeline") if (index, name) in wanted else ("the pipeline", "autograd")
            what = f"has a gradient by plain {has} and none by {has_not}".replace("plain the", "the")
            findings.append(Finding(index, name, what, "let the stage's output depend on it through its module"))
            continue
        gradient, expected = first[index, name], wanted[index, name]
        tolerance = ROUGH_TOLERANCE if autocast is not None else TOLERANCES.get(gradient.dtype, 1e-2)
        scale = max(float(expected.abs().max()), 1e-3 * largest)  # a bias before a BatchNorm has only rounding errors
        difference = float((gradient - expected).abs().max())
        if not difference <= tolerance * scale:
            what = f"has another gradient than by plain autograd (relative difference {difference / (scale or 1):.1g})"
            remedy = "see the other findings; without any, compare with BACKPROPAGATION"
            findings.append(Finding(index, name, what, remedy))
    return findings
