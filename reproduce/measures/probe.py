"""Measure quantities during a training run without changing its results.

Several questions about PETRA concern one micro-batch on its way through the pipeline. How far is its gradient from the
exact one? How far are its reconstructed inputs from the true ones? A second, parallel pipeline would have to be kept in
step with the first. It is not needed, because everything can be computed between two steps of the run itself. At that
moment the weights are those that the next step will use. Values inside a step are provided by the engine
(`Pipeline(after_backward=...)`).

A probe follows every `interval`-th micro-batch. Every stage runs the forward of micro-batch m in step m, and stage j
runs its backward in step m + d_j (`petra_core.staleness`), that is at ages 0 and d_j. Evaluations of the network for
the probe leave running statistics and the state of random generators unchanged. Values that are kept for a later
comparison are part of the checkpoint, so a resumed run yields the same results.
"""

import abc
import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from petra_core import Pipeline, checkpoint
from petra_core.buffers import FrozenBuffers
from petra_core.errors import check_int
from petra_core.randomness import capture
from petra_core.worker import Backward

Values = dict[str, list[float | None]]  # measure -> a value for each stage; None if it is undefined

DIGITS = 6  # significant digits for single micro-batches, which are only plotted; means are compared


@dataclass
class FollowedMicroBatch:
    """A micro-batch that a probe follows.

    Attributes:
        micro_batch: Its number.
        age: Number of steps since it entered, at the next step.
        values: Values measured so far.

    """

    micro_batch: int
    age: int = 0
    values: Values = field(default_factory=dict)


S = TypeVar("S", bound=FollowedMicroBatch)


class Probe(abc.ABC, Generic[S]):
    """Follow micro-batches 0, interval, 2·interval, … through a pipeline. Subclasses define the measures.

        probe = GradientQuality(interval=50)
        pipeline = Pipeline(stages, methods.PETRA, after_backward=probe.after_backward)
        probe.watch(pipeline, micro_batches=len(batches))
        for x, y in batches:
            probe.before_step(x, y)
            pipeline.step(x, y)
        values = probe.collect()

    If the pipeline is drained, the micro-batches in flight are not followed any further. The probe evaluates the
    network in the precision of the training, the pipeline's `autocast`.
    """

    subject: ClassVar[type[FollowedMicroBatch]]

    def __init__(self, interval: int, *, autocast: torch.dtype | None = None) -> None:
        self.interval = check_int("interval", interval, 1)
        self._autocast = autocast
        self._in_flight: dict[int, S] = {}
        self._finished: list[dict[str, Any]] = []  # `micro_batch` and `measured` of those that are complete

    def watch(self, pipeline: Pipeline, micro_batches: int) -> None:
        """Attach the probe to a pipeline of a pipelined method.

        Args:
            pipeline: The pipeline.
            micro_batches: Total number of micro-batches of the run. The last d_0 of them are not followed.

        """
        self.pipeline = pipeline
        self._last = micro_batches - 1 - pipeline.staleness[0]
        self._network = nn.ModuleList(pipeline.stages)
        self._device = next((p.device for p in self._network.parameters()), torch.device("cpu"))

    def before_step(self, images: Tensor, labels: Tensor) -> None:
        """Measure what is due before a step. Call this just before `pipeline.step(images, labels)`."""
        number = self.pipeline.micro_batches
        if number % self.interval == 0 and number <= self._last:
            with self._aside():
                self._in_flight[number] = self._follow(number, images.detach().clone(), labels.detach().clone())
        for subject in self._in_flight.values():
            subject.age = number - subject.micro_batch
            with self._aside():
                self._before_step(subject)

    def after_backward(self, backward: Backward) -> None:
        """Measure the result of a backward. Pass this method as `Pipeline(after_backward=...)`."""
        subject = self._in_flight.get(backward.micro_batch)
        if subject is None:
            return
        if self.pipeline.staleness[backward.stage] != subject.age:  # in a drain
            del self._in_flight[backward.micro_batch]
            return
        with torch.no_grad():
            self._note(subject, backward.stage, self._compare(subject, backward))
        if backward.stage == 0:
            measured = self._in_flight.pop(backward.micro_batch).values
            self._finished.append({"micro_batch": backward.micro_batch, "measured": measured})

    def collect(self) -> dict[str, Any]:
        """Return the means over the micro-batches whose backward at stage 0 was run since the last call.

        Returns:
            `probes`: number of these micro-batches;
            `measured`: for each measure a list over the stages, with None if no micro-batch has a value;
            `measured_at`: number (`micro_batch`) and values of each micro-batch, rounded to `DIGITS` significant
            digits (not in old records).

        """
        finished, self._finished = self._finished, []
        rows = [probe["measured"] for probe in finished]
        measures = {measure: None for values in rows for measure in values}
        means = {
            measure: [_mean(stage) for stage in zip(*(row[measure] for row in rows if measure in row), strict=True)]
            for measure in measures
        }
        return {"probes": len(finished), "measured": means, "measured_at": [_round(probe) for probe in finished]}

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resume needs, as tensors and plain data (references, not copies)."""
        return {"in_flight": [dict(vars(s)) for s in self._in_flight.values()], "finished": self._finished}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from `state`, together with the pipeline."""
        subjects = [self.subject(**checkpoint.copy_tree(values, self._device)) for values in state["in_flight"]]
        self._in_flight = {subject.micro_batch: subject for subject in subjects}  # type: ignore[misc]  # S is self.subject
        self._finished = list(state["finished"])

    @abc.abstractmethod
    def _follow(self, micro_batch: int, images: Tensor, labels: Tensor) -> S:
        """Begin to follow a micro-batch that is about to enter. `images` and `labels` are copies."""

    @abc.abstractmethod
    def _before_step(self, subject: S) -> None:
        """Compute values that later comparisons need, with the weights of the next step."""

    @abc.abstractmethod
    def _compare(self, subject: S, backward: Backward) -> Mapping[str, float | None]:
        """Return the values of one backward, by measure."""

    def _note(self, subject: S, stage: int, measured: Mapping[str, float | None]) -> None:
        for measure, value in measured.items():
            stage_values = subject.values.setdefault(measure, [None] * len(self.pipeline.stages))
            stage_values[stage] = value if value is not None and math.isfinite(value) else None

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """Restore running statistics and random state after evaluating the network in this context.

        Raises:
            ValueError: If the network draws random numbers, because they would differ from those of the run.

        """
        kind = self._device.type
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng([self._device] if kind == "cuda" else []))
            stack.enter_context(FrozenBuffers(self._network).freeze())
            if self._autocast is not None:  # no cache of converted weights, which would be stale after an update
                stack.enter_context(torch.autocast(kind, self._autocast, cache_enabled=False))
            before = capture(self._device)
            yield
            if not all(map(torch.equal, before, capture(self._device))):
                raise ValueError(
                    "the network draws random numbers in its forward (dropout), so the probe's evaluation differs from "
                    "the run's; probe a network that draws none, or set the dropout's probability to 0"
                )


def _round(finished: Mapping[str, Any]) -> dict[str, Any]:
    measured = {
        measure: [None if value is None else float(f"{value:.{DIGITS}g}") for value in values]
        for measure, values in finished["measured"].items()
    }
    return {**finished, "measured": measured}


def _mean(values: tuple[float | None, ...]) -> float | None:
    defined = [value for value in values if value is not None]
    return math.fsum(defined) / len(defined) if defined else None
