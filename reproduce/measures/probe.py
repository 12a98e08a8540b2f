"""Probes: look into a training run without changing a bit of it.

Several questions about PETRA are about one micro-batch on its way through the pipeline: how far is its gradient from
the exact one, how far are its reconstructed inputs from the true ones? The obvious way, a second pipeline beside the
first, would have to be kept in step with it. But all that such a question needs can be had between two steps of the run
itself, when nothing changes: the weights that the step to come will use, and so everything that follows from them. What
happens inside the step is shown by the engine (`Pipeline(after_backward=...)`).

A probe follows some micro-batches, every so many of them. The forward of micro-batch m is in step m at every stage, its
backward at stage j in step m + d_j (`petra_core.staleness`): at age 0 and d_j. The network is evaluated aside: running
statistics and random numbers are as before. What has been taken for a comparison to come is part of a checkpoint, so a
run that was stopped goes on to the same values.
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
from petra_core.arguments import check_int
from petra_core.buffers import FrozenBuffers
from petra_core.randomness import capture
from petra_core.worker import Backward

Values = dict[str, list[float | None]]  # measure -> a value for each stage; None where it is not defined

DIGITS = 6  # of the values of single micro-batches: they are drawn, while means are compared


@dataclass
class FollowedMicroBatch:
    """A micro-batch that is followed, with what has been measured of it so far."""

    micro_batch: int
    age: int = 0  # steps since it entered, at the step to come
    values: Values = field(default_factory=dict)


S = TypeVar("S", bound=FollowedMicroBatch)


class Probe(abc.ABC, Generic[S]):
    """Follows micro-batches 0, every, 2·every, … through a pipeline; subclasses say what is measured.

        probe = GradientQuality(every=50)
        pipeline = Pipeline(stages, methods.PETRA, after_backward=probe.after_backward)
        probe.watch(pipeline, micro_batches=len(batches))
        for x, y in batches:
            probe.before_step(x, y)
            pipeline.step(x, y)
        values = probe.collect()

    Where the pipeline is drained on the way, micro-batches that are in flight then are not followed any further. The
    network is evaluated aside in the precision that trains, the pipeline's `autocast`.
    """

    subject: ClassVar[type[FollowedMicroBatch]]

    def __init__(self, every: int, *, autocast: torch.dtype | None = None) -> None:
        self.every = check_int("every", every, 1)
        self._autocast = autocast
        self._in_flight: dict[int, S] = {}
        self._finished: list[dict[str, Any]] = []  # `micro_batch` and `measured` of those back at stage 0

    def watch(self, pipeline: Pipeline, micro_batches: int) -> None:
        """Watch `pipeline`, of a pipelined method, for `micro_batches` in all; the last d_0 are not followed."""
        self.pipeline = pipeline
        self._last = micro_batches - 1 - pipeline.staleness[0]
        self._network = nn.ModuleList(pipeline.stages)
        self._device = next((p.device for p in self._network.parameters()), torch.device("cpu"))

    def before_step(self, images: Tensor, labels: Tensor) -> None:
        """Measure what is due; to be called just before `pipeline.step(images, labels)`."""
        number = self.pipeline.micro_batches
        if number % self.every == 0 and number <= self._last:
            with self._aside():
                self._in_flight[number] = self._follow(number, images.detach().clone(), labels.detach().clone())
        for subject in self._in_flight.values():
            subject.age = number - subject.micro_batch
            with self._aside():
                self._before_step(subject)

    def after_backward(self, backward: Backward) -> None:
        """Measure what a backward comes to; to be given as `Pipeline(after_backward=...)`."""
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
        """Means over the micro-batches that have come back to stage 0 since the last call.

        Returns:
            `probes`, their number; `measured`: by measure a list over the stages, with None where no micro-batch has a
            value; and `measured_at`: the values of each of them with its number `micro_batch`, rounded to `DIGITS`
            significant digits. Records of before there was a `measured_at` have none.

        """
        finished, self._finished = self._finished, []
        every = [probe["measured"] for probe in finished]
        measures = {measure: None for values in every for measure in values}
        means = {
            measure: [_mean(of_stage) for of_stage in zip(*(v[measure] for v in every if measure in v), strict=True)]
            for measure in measures
        }
        return {"probes": len(finished), "measured": means, "measured_at": [_rounded(probe) for probe in finished]}

    def state_dict(self) -> dict[str, Any]:
        """The state that a resume needs, as tensors and plain data (references, not copies)."""
        return {"in_flight": [dict(vars(s)) for s in self._in_flight.values()], "finished": self._finished}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`, together with the pipeline."""
        subjects = [self.subject(**checkpoint.copied(values, self._device)) for values in state["in_flight"]]
        self._in_flight = {subject.micro_batch: subject for subject in subjects}  # type: ignore[misc]  # S is self.subject
        self._finished = list(state["finished"])

    @abc.abstractmethod
    def _follow(self, micro_batch: int, images: Tensor, labels: Tensor) -> S:
        """Begin to follow a micro-batch that is about to enter; images and labels are copies."""

    @abc.abstractmethod
    def _before_step(self, subject: S) -> None:
        """Take from the network what will be needed, with the weights of the step to come."""

    @abc.abstractmethod
    def _compare(self, subject: S, backward: Backward) -> Mapping[str, float | None]:
        """The values of one backward, by measure."""

    def _note(self, subject: S, stage: int, measured: Mapping[str, float | None]) -> None:
        for measure, value in measured.items():
            of_stages = subject.values.setdefault(measure, [None] * len(self.pipeline.stages))
            of_stages[stage] = value if value is not None and math.isfinite(value) else None

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """Evaluate the network so that the run does not notice.

        Raises: ValueError: it draws random numbers, which differ from those that the run draws.
        """
        kind = self._device.type
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng([self._device] if kind == "cuda" else []))
            stack.enter_context(FrozenBuffers(self._network))
            if self._autocast is not None:  # without its cache, which would outlive an update
                stack.enter_context(torch.autocast(kind, self._autocast, cache_enabled=False))
            before = capture(self._device)
            yield
            if not all(map(torch.equal, before, capture(self._device))):
                raise ValueError(
                    "the network draws random numbers in its forward (dropout), so what is evaluated aside is not what "
                    "the run computes; probe a network that does not, or set the dropout's probability to 0"
                )


def _rounded(finished: Mapping[str, Any]) -> dict[str, Any]:
    measured = {
        measure: [None if value is None else float(f"{value:.{DIGITS}g}") for value in of_stages]
        for measure, of_stages in finished["measured"].items()
    }
    return {**finished, "measured": measured}


def _mean(values: tuple[float | None, ...]) -> float | None:
    defined = [value for value in values if value is not None]
    return math.fsum(defined) / len(defined) if defined else None
