"""Training runs put together as they may be compared: one scale, one data set, one recipe.

A table of "accuracy by method" over whatever records there are would mix scales, lengths and batch sizes in one
column. Here runs are first split into experiments: those that agree in every setting but the network, the method, k,
the seed and the learning rate that follows from k (`reproduce.cells.rates`), and were trained on the same text if on
any. Within one, `Group`s are runs that differ in their seed only.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from petra_core import methods
from petra_core.methods import Method
from reproduce.cells import catalogue, rates, transformers
from reproduce.cells.kinds import TrainingCell
from reproduce.records.record import Status
from reproduce.records.results import Run
from reproduce.show.content import TIMES
from reproduce.show.statistics import Estimate, Judgement, estimate, judge, paired

REFERENCE_RATE, TEXT = "reference_rate", "text"
#: Settings in which the runs of one experiment may differ.
VARIED = ("model", "stem", "width", "method", "accumulation", "seed", "learning_rate")


class Network(NamedTuple):
    """A model at a width."""

    model: str
    stem: str
    width: int

    @property
    def title(self) -> str:
        """As tables call it."""
        if self.model in transformers.MODELS:
            return f"{transformers.title(self.model)}, width {self.width}"
        family = self.model.rstrip("0123456789")
        depth = self.model.removeprefix(family)
        names = {
            "revnet": f"RevNet-{depth}",
            "resnet": f"ResNet-{depth}",
            "invertible_revnet": f"Invertible RevNet-{depth}",
            "chain": f"Reversible chain of {depth}",
        }
        return f"{names.get(family, self.model)}, width {self.width}"

    @property
    def key(self) -> str:
        """For anchors."""
        return f"{self.model}-{self.stem}-w{self.width}"


Key = tuple[Network, Method, int]  # network, method, k


@dataclass(frozen=True)
class Group:
    """Runs of one network, method and k that differ in their seed only; there may be none."""

    runs: tuple[Run[TrainingCell], ...]

    @property
    def cell(self) -> TrainingCell:
        """The configuration, of one of them."""
        return self.runs[0].cell

    def values(self, name: str) -> dict[int, float]:
        """A value of the result by seed, of the finished runs."""
        return self.measured(lambda run: float(run.result[name]))

    def measured(self, measure: Callable[[Run[TrainingCell]], float]) -> dict[int, float]:
        """What `measure` says of each finished run, by seed."""
        return {run.cell.seed: measure(run) for run in self.runs if run.done}

    def estimate(self, name: str) -> Estimate | None:
        """Mean of such a value over the seeds; None if no run is finished."""
        found = self.values(name)
        return estimate(list(found.values())) if found else None

    @property
    def summary(self) -> str:
        """The same without the seeds: "not run", if that is true of all, or, say, "diverged; not run"."""
        states = [str(run.state) for run in self.runs] or [str(Status.NOT_RUN.value)]
        amounts = Counter(states)
        if len(amounts) == 1:
            return states[0]
        return "; ".join(f"{amount} {TIMES} {state}" if amount > 1 else state for state, amount in amounts.items())

    @property
    def unfinished(self) -> str:
        """What there is instead of a result, seed by seed: "seed 1: 3 of 8 epochs"; empty if all runs are done."""
        return "; ".join(f"seed {run.cell.seed}: {run.state}" for run in self.runs if not run.done)


@dataclass(frozen=True)
class Experiment:
    """Runs that may stand in one table.

    Attributes:
        scale: see `reproduce.cells.kinds.Cell`.
        settings: what all runs share, by name.
        groups: by network, method and k, in the order of networks, methods, k.

    """

    scale: str
    settings: Mapping[str, Any]
    groups: Mapping[Key, Group]

    @property
    def runs(self) -> list[Run[TrainingCell]]:
        """All of them."""
        return [run for group in self.groups.values() for run in group.runs]

    @property
    def begun(self) -> bool:
        """Whether there is a record of any run."""
        return any(run.state.status is not Status.NOT_RUN for run in self.runs)

    @property
    def networks(self) -> tuple[Network, ...]:
        """Networks in their order."""
        return tuple(dict.fromkeys(network for network, _, _ in self.groups))

    @property
    def accumulations(self) -> tuple[int, ...]:
        """All k, rising."""
        return tuple(sorted({k for _, _, k in self.groups}))

    @property
    def key(self) -> str:
        """For anchors: the scale, and a hash of the settings that tells experiments of one scale apart."""
        canonical = json.dumps(dict(self.settings), sort_keys=True)
        return f"{self.scale}-{hashlib.sha256(canonical.encode()).hexdigest()[:6]}"

    @property
    def described(self) -> str:
        """The settings that matter to a reader, in words."""
        s = self.settings
        known = catalogue.by_name(s["dataset"])
        named = f"{s['optimizer']}, " if "optimizer" in s else ""  # SGD is not written
        return (
            f"scale “{self.scale}”, {known.title}{self.text}, {known.sized(s['image_size'])}, "
            f"batch {s['batch_size']}, {s['epochs']} epochs, learning rate {self.rate}, "
            f"{named}{s['precision']}"
        )

    @property
    def optimizer(self) -> str:
        """Its name, which the settings have unless it is SGD."""
        name: str = self.settings.get("optimizer", "sgd")
        return name

    @property
    def rate(self) -> str:
        """The rule of the learning rate, in words."""
        return rates.described(self.optimizer, self.settings[REFERENCE_RATE])

    @property
    def text(self) -> str:
        """Which text the runs were trained on, in words; empty for images."""
        return f" (SHA-256 {self.settings[TEXT][:12]}…)" if TEXT in self.settings else ""

    def difference(self, key: Key, to: Method = methods.BACKPROPAGATION) -> Estimate | None:
        """Accuracy less that of another method on the same network with the same k, over the shared seeds, points."""
        network, _, k = key
        ours, reference = self.groups.get(key), self.groups.get((network, to, k))
        if ours is None or reference is None:
            return None
        return paired(ours.values("test_accuracy"), reference.values("test_accuracy"))

    def judged(self) -> dict[Key, Judgement]:
        """All differences to backpropagation, as one family."""
        return judge({key: self.difference(key) for key in self.groups if key[1] is not methods.BACKPROPAGATION})


def experiments(runs: Iterable[Run[TrainingCell]]) -> list[Experiment]:
    """Split runs into experiments, ordered by scale and settings."""
    split: dict[tuple[tuple[str, Any], ...], dict[Key, list[Run[TrainingCell]]]] = {}
    for run in runs:
        settings = run.cell.to_dict()
        shared = tuple((name, settings[name]) for name in settings if name not in VARIED)
        shared = (*shared, (REFERENCE_RATE, rates.reference_of(run.cell)), *([(TEXT, run.text)] if run.text else []))
        network = Network(run.cell.model, run.cell.stem, run.cell.width)
        key = (network, methods.by_name(run.cell.method), run.cell.accumulation)
        split.setdefault(shared, {}).setdefault(key, []).append(run)
    found = [
        Experiment(
            dict(shared)["scale"],
            dict(shared),
            {
                key: Group(tuple(sorted(groups[key], key=lambda run: run.cell.seed)))
                for key in sorted(groups, key=_order)
            },
        )
        for shared, groups in split.items()
    ]
    return sorted(found, key=lambda experiment: str(experiment.settings))


def _order(key: Key) -> tuple[int, int, Network, int, int]:
    network, method, k = key
    family = network.model.rstrip("0123456789")
    families = ("resnet", "revnet", "invertible_revnet", "chain")
    place = families.index(family) if family in families else len(families)
    return place, int(network.model.removeprefix(family) or 0), network, methods.KNOWN.index(method), k
