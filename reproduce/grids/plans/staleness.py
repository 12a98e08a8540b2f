"""Staleness: its price, and the staleness that 2, 4 and 10 devices need.

Results depend on d_j, the number of micro-batches that enter stage j between the forward and the backward of one
(`petra_core.staleness`). Points of one curve differ only in timing and stages, which determine d_0; backpropagation is
the point at 0. The plan is ordered by value: the comparisons that were declared before their runs
(`reproduce/exhibits/primary.json`), the choices of users with 2, 4 and 10 devices, the curve, other networks, rates,
corrections for delay, longer trainings, depth and stability. Cells in lockstep are shared with other plans.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from petra_core import methods
from petra_core.methods import Method
from reproduce.cells import rates
from reproduce.cells.kinds import Cell, ReconstructionCell, TrainingCell
from reproduce.cells.timing import LOCKSTEP, ONE_F_ONE_B
from reproduce.grids import recipes
from reproduce.grids.plans import corrections, depth, length, stability, sweeps, table5, tradeoff, transformers

Stages = tuple[int, ...]


class Point(NamedTuple):
    """A point on the curve: a timing, and the numbers of blocks of the stages; if empty, each block is a stage."""

    timing: str
    stages: Stages = ()

    @property
    def changes(self) -> dict[str, Any]:
        """Settings of a cell."""
        return {"timing": self.timing, "stages": self.stages}


NETWORK, CHAIN = length.NETWORK, "chain16"
PETRA, DSP, DELAYED = methods.PETRA, methods.DSP, methods.DELAYED_GRADIENTS
EXACT = methods.BACKPROPAGATION
COMPARED = (PETRA, DELAYED, DSP)
KS = (1, 4)
SEEDS = tuple(range(6))
CONFIRMING = (3, 4, 5)  # seeds that had no part in forming the hypothesis
FREE, PAPER = Point(ONE_F_ONE_B), Point(LOCKSTEP)
#: Four stages of RevNet-18 as in the hypothesis. The cut by their costs is in `DEVICES`.
FOUR = Point(ONE_F_ONE_B, (3, 2, 2, 3))
#: Points by network, the most informative first. RevNet-18: d_0 of 3, 9, 18, 1, 6, 14 and 12.
POINTS: dict[str, tuple[Point, ...]] = {
    NETWORK: (
        *(FOUR, FREE, PAPER, Point(ONE_F_ONE_B, (5, 5)), Point(LOCKSTEP, FOUR.stages)),
        *(Point(f"{ONE_F_ONE_B}+0.5"), Point(f"{ONE_F_ONE_B}+0.33")),
    ),
    CHAIN: (PAPER, FREE, Point(ONE_F_ONE_B, (5, 4, 4, 5))),
    transformers.IMAGES.model: (PAPER, FREE, Point(ONE_F_ONE_B, (4, 3, 3, 4)), Point(ONE_F_ONE_B, (7, 7))),
    transformers.LANGUAGE.model: (PAPER, FREE, Point(ONE_F_ONE_B, (2, 1, 1, 2)), Point(ONE_F_ONE_B, (3, 3))),
}
#: By number of devices: the cut of RevNet-18 whose slowest stage is fastest at this width, and the k for comparison
#: with a pipeline that drains or keeps one older version of the weights.
DEVICES: dict[int, tuple[Stages, int]] = {2: ((3, 7), 4), 4: ((2, 2, 2, 4), 4), 10: ((), 16)}
RIVALS = (PETRA, DELAYED, DSP, methods.PIPEDREAM_2BW)
_ON_CURVE = tuple((PETRA, point) for point in POINTS[NETWORK])
_AT_ENDS = ((PETRA, PAPER), (PETRA, FREE))
#: Points to try at other learning rates, by the multiple of the recipe's rate. The widest are shared with the study of
#: corrections.
SWEPT = {0.5: _ON_CURVE, 2.0: _ON_CURVE, 0.25: _AT_ENDS, 4.0: _AT_ENDS}
#: Multiples of the rate to choose from after long trainings, by the accuracy of this many held-out training images.
CHOICES, HELD_OUT = (1.0, 0.25, 4.0), 5000
#: Mitigations of delay to combine with less staleness, and the learning rates to try, as multiples of the recipe's.
MITIGATIONS: dict[str, tuple[float, ...]] = {"predicted weights": (1.0,), corrections.NADAM: (16.0, 4.0, 64.0)}
DEEP = 48  # blocks of the chain of 50 stages
DEEP_POINTS = (FREE, Point(ONE_F_ONE_B, (13, 12, 12, 13)), Point(ONE_F_ONE_B, (5,) * 10))
MAP_POINTS = (FREE, Point(ONE_F_ONE_B, (3, 2, 2, 3)))
LASTING, LONG = length.AGAINST[0], 81  # epochs


def cells(scale: str) -> list[Cell]:
    """Return the cells of the scale; at `narrow` and `paper` the timings at the paper's length, for comparison."""
    if scale == "small":
        return list(dict.fromkeys(cell for part in PARTS for cell in part()))
    if scale == "smoke":
        return [recipes.cell(scale, NETWORK, PETRA, 1, **point.changes) for point in (FREE, FOUR)]
    if scale not in ("narrow", "paper"):
        return []
    k = 1 if scale == "narrow" else recipes.ACCUMULATIONS[0]
    return [plan_cell(method, point, k, seed, scale=scale) for seed in recipes.seeds(scale) for method, point in _ENDS]


_ENDS = ((EXACT, PAPER), (PETRA, PAPER), (PETRA, FREE), (PETRA, FOUR))


def plan_cell(
    method: Method,
    point: Point,
    k: int = 1,
    seed: int = 0,
    network: str = NETWORK,
    scale: str = "small",
    **changes: Any,
) -> Cell:
    """Return the cell of a point. For the chain in lockstep it is a cell of the study of corrections."""
    timing = point.changes if method.pipelined else {}
    study = {study.model: study for study in transformers.STUDIES if study.scale == scale}.get(network)
    if study is not None:
        return dataclasses.replace(study.cell(method, k, seed), **timing | changes)
    settings = recipes.settings(scale, network, method, k, seed, **changes)
    usual = not changes and k == 1
    if network == CHAIN and method is PETRA and point == PAPER and usual and seed in recipes.seeds(scale):
        return ReconstructionCell(**settings, probe_every=corrections.PROBE_EVERY)
    return TrainingCell(**settings | timing)


def _seed_by_seed(
    seeds: Iterable[int], pairs: Sequence[tuple[Method, Point]], k: int = 1, network: str = NETWORK, **changes: Any
) -> Iterator[Cell]:
    """Yield the cells of these methods at these points, all pairs of a seed before those of the next."""
    for seed in seeds:
        yield from (plan_cell(method, point, k, seed, network, **changes) for method, point in pairs)


def confirming() -> Iterator[Cell]:
    """Yield the comparisons after 3 epochs that were declared before their runs."""
    pairs = ((EXACT, PAPER), (PETRA, FREE), (PETRA, FOUR), (PETRA, PAPER), (DELAYED, FREE))
    yield from _seed_by_seed(CONFIRMING, pairs)


def choices() -> Iterator[tuple[int, int, Method]]:
    """Yield the choices of users with 2, 4 and 10 devices: number of devices, k, and method.

    Two versions of the weights suffice only if k micro-batches cover the staleness.
    """
    for number, (_, most) in DEVICES.items():
        for k in (1, most):
            yield from ((number, k, method) for method in RIVALS if not method.double_buffered or k >= number - 1)


def devices() -> Iterator[Cell]:
    """Yield those choices, and the stage costs for the models of bytes and times."""
    yield tradeoff.cells("small")[0]
    yield from table5.cells("small")
    for seed in recipes.seeds("small"):
        for number, k, method in choices():
            yield plan_cell(EXACT, PAPER, k, seed)
            yield plan_cell(method, on_devices(number), k, seed)


def on_devices(number: int) -> Point:
    """Return the point of one stage per device, on the cut by costs."""
    return Point(ONE_F_ONE_B, DEVICES[number][0])


def curve() -> Iterator[Cell]:
    """Yield every point of RevNet-18, k = 1 first."""
    for k in KS:
        for seeds in (recipes.seeds("small"), CONFIRMING):
            for method in COMPARED:
                for point in POINTS[NETWORK]:
                    yield from _seed_by_seed(seeds, ((EXACT, PAPER), (method, point)), k)


def networks() -> Iterator[Cell]:
    """Yield the other networks with three seeds: the chain with the methods of the curve, transformers with two."""
    for network, points in POINTS.items():
        if network == NETWORK:
            continue
        compared = COMPARED if network == CHAIN else COMPARED[:2]
        for method in (EXACT, *compared):
            for point in points if method.pipelined else (PAPER,):
                yield from _seed_by_seed(recipes.seeds("small"), [(method, point)], network=network)


def swept() -> Iterator[Cell]:
    """Yield other learning rates, k = 1: the best rate may depend on the staleness."""
    usual = recipes.settings("small", NETWORK)["learning_rate"]
    for seed in recipes.seeds("small"):
        for rate, points in SWEPT.items():
            yield from _seed_by_seed([seed], ((EXACT, PAPER), *points), learning_rate=usual * rate)


def plan_mitigations() -> Iterator[Cell]:
    """Yield less staleness with its best mitigation in lockstep, and backpropagation with the same optimizer."""
    of_title = {mitigation.title: mitigation for mitigation in corrections.MITIGATIONS}
    for title, tried in MITIGATIONS.items():
        mitigation = of_title[title]
        all_pairs = ((PETRA, FREE), (PETRA, FOUR), (PETRA, PAPER), (EXACT, PAPER))
        pairs = [(method, point) for method, point in all_pairs if mitigation.fits(method)]
        batch_size = recipes.settings("small", NETWORK)["batch_size"]
        usual = rates.learning_rate(batch_size, optimizer=mitigation.changes.get("optimizer", "sgd"))
        for rate in tried:
            seeds = recipes.seeds("small") if rate == tried[0] else (0,)
            yield from _seed_by_seed(seeds, pairs, **mitigation.changes | {"learning_rate": usual * rate})


def longer() -> Iterator[Cell]:
    """Yield RevNet-18 for 27 epochs with six seeds, then the chain of 16 with three."""
    lasting = length.lasting("small", LASTING)
    yield from _seed_by_seed(SEEDS, (*_ENDS, (DELAYED, FREE), (DELAYED, FOUR), (DELAYED, PAPER)), **lasting)
    pairs = ((EXACT, PAPER), *((method, point) for method in COMPARED for point in (PAPER, FREE)))
    yield from _seed_by_seed(recipes.seeds("small"), pairs, network=CHAIN, **lasting)


def longest() -> Iterator[Cell]:
    """Yield RevNet-18 for 81 epochs, and RevViT for three times its length."""
    pairs = ((PETRA, FOUR), (EXACT, PAPER), (PETRA, PAPER))
    yield from _seed_by_seed(SEEDS, pairs, **length.lasting("small", LONG))
    vit, usual = transformers.IMAGES.model, transformers.IMAGES.cell(PETRA, 1)
    epochs, drops = 3 * usual.epochs, tuple(3 * drop for drop in usual.drops)
    of_vit = ((EXACT, PAPER), *((PETRA, point) for point in POINTS[vit][:3]))
    yield from _seed_by_seed(recipes.seeds("small"), of_vit, network=vit, epochs=epochs, drops=drops)


def chosen() -> Iterator[TrainingCell]:
    """Yield RevNet-18 for 27 epochs, tested on held-out images, to choose its rate, and the paper's baseline."""
    lasting = length.lasting("small", LASTING)
    for seed in recipes.seeds("small"):
        baseline = sweeps.SMALL.baseline("cifar10", NETWORK, seed)
        compared = [baseline, *_seed_by_seed([seed], ((EXACT, PAPER), *_AT_ENDS))]
        for rate in CHOICES:
            for cell in compared:
                assert isinstance(cell, TrainingCell)  # RevNet-18 is not followed by probes
                changes = lasting | {"learning_rate": cell.learning_rate * rate, "held_out": HELD_OUT}
                yield dataclasses.replace(cell, **changes)


def deep() -> Iterator[Cell]:
    """Yield the chain of 50 stages of the study of depth, which has lockstep and backpropagation."""
    probe_every, seeds, changes = depth.GRIDS["small"]
    for seed in seeds:
        yield plan_cell(EXACT, PAPER, 1, seed, f"chain{DEEP}", **changes)
        for point in (PAPER, *DEEP_POINTS):
            settings = recipes.settings("small", f"chain{DEEP}", PETRA, 1, seed, **changes)
            yield ReconstructionCell(**settings | point.changes, probe_every=probe_every)


def plan_map() -> Iterator[Cell]:
    """Yield PETRA's part of the map of the study of stability, which has lockstep, with less staleness."""
    epochs, warmups = stability.GRIDS["small"]
    for warmup in reversed(warmups):
        for point in (PAPER, *MAP_POINTS):
            for k in sorted(recipes.ACCUMULATIONS):
                for rate in stability.REFERENCE_RATES:
                    brief = {"warmup_epochs": warmup, "epochs": epochs, "drops": ()}
                    yield recipes.cell("small", "chain8", PETRA, k, reference_rate=rate, **brief, **point.changes)


#: Parts of the plan at `small`, the cheapest and most valuable first.
PARTS: tuple[Callable[[], Iterator[Cell]], ...] = (
    *(confirming, devices, curve, networks, swept, plan_mitigations, longer, chosen, deep, longest, plan_map),
)
