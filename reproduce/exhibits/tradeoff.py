"""Beyond the paper: costs and results of every way to train: accuracy, bytes per device, time.

Accuracy, memory and speed each have a separate table with a different winner, but the choice of a way to train needs
all three. Accuracy is measured; bytes and times are modelled from the measured costs of the stages.
"""

import math
from collections.abc import Iterator
from itertools import combinations

from pandas import DataFrame

from petra_core import methods
from reproduce.exhibits._exhibit import Sentence, Shown, declare, text_of
from reproduce.grids.plans.tradeoff import ACCUMULATION
from reproduce.modelling.network import TimedNetwork, read_timed_networks
from reproduce.modelling.strategies import STRATEGIES, Strategy, evaluate_best, find_front
from reproduce.presentation import facets
from reproduce.presentation.compare import SeedSamples, format_difference, means
from reproduce.presentation.content import MEGABYTE
from reproduce.presentation.statistics import Verdict
from reproduce.presentation.tables import amount, mean, table, words
from reproduce.records.frames import RunSet
from reproduce.text import conjunction

DEVICES = (2, 4, 10)
EXACT = methods.BACKPROPAGATION.name
SAME = 0.02  # relative difference of two costs up to which they count as equal
COSTS = {"megabytes": "fullest device, MB", "milliseconds": "a micro-batch, ms"}


def each(run_set: RunSet) -> Iterator[Shown]:
    """Yield the comparison as a figure and a table, and when PETRA is worth using."""
    timed = read_timed_networks(run_set)
    accuracy = means(run_set.runs[run_set.runs["kind"] == "training"], "test_accuracy", ["method"])
    k = ACCUMULATION[run_set.scale]
    setting = f"{run_set.describe(network=True)}, k = {k}"
    ways = [way for way in STRATEGIES if accuracy[way.trains_as.name].values]
    if not (timed and ways):
        yield f"At the scale “{run_set.scale}” stage costs and accuracies are not both there yet."
        return
    points = _points(timed[0], ways, accuracy, k)
    yield _worth(run_set, points, accuracy)
    yield facets.facet(
        points.melt(["devices", "way", "accuracy", "beaten"], list(COSTS), var_name="cost"),
        [facets.dots(size=7, hollow="beaten")],
        key=f"tradeoff-{run_set.key}",
        caption=text_of("tradeoff", "figure", setting=setting),
        x=facets.Axis("value", log=True),
        y=facets.Axis("accuracy", label="test accuracy, %"),
        hue="way",
        looks=facets.TITLE_LOOKS,
        panels=facets.Panels(
            row="cost",
            col="devices",
            titles=lambda cost, devices: f"{devices} devices: {COSTS[cost]}",
            share=(False, True),
        ),
        legend="mark",
    )
    yield table(
        key=f"tradeoff-{run_set.key}",
        caption=text_of("tradeoff", "table", setting=setting),
        rows=points.itertuples(),
        fields=[
            words("devices", lambda point: f"{point.devices} devices", heading=True),
            words("way", lambda point: point.way),
            mean("accuracy, %", lambda point: accuracy[point.trains_as]),
            amount("fullest device, MB", lambda point: point.megabytes, 1, group="modelled"),
            amount("a micro-batch, ms", lambda point: point.milliseconds, 2, group="modelled"),
            words("on the front", lambda point: point.beaten or "yes"),
        ],
        notes=[f"Stages were timed on {timed[0].machine}.", text_of("tradeoff", "merging")],
    )


def _points(network: TimedNetwork, ways: list[Strategy], accuracy: SeedSamples, k: int) -> DataFrame:
    """Return the costs and results of each way on each number of devices; `beaten` is empty on the front."""
    names = [way.trains_as.name for way in ways]
    reached = [estimate.mean for name in names if (estimate := accuracy[name].estimate)]
    pairs = combinations(dict.fromkeys(names), 2)
    gaps = {frozenset({one, other}): accuracy[one] - accuracy[other] for one, other in pairs}

    def stands(better: int, other: int) -> bool:
        difference = gaps.get(frozenset({names[better], names[other]}))
        return difference is not None and difference.verdict in (Verdict.HIGHER, Verdict.LOWER)

    rows: list[tuple[int | str | float, ...]] = []
    for devices in DEVICES:
        costs = [evaluate_best(network, way, devices, k) for way in ways]
        on = find_front(
            [(-percent, cost.peak, cost.seconds) for percent, cost in zip(reached, costs, strict=True)], stands
        )
        for way, percent, cost, unbeaten in zip(ways, reached, costs, on, strict=True):
            amounts = percent, cost.peak / MEGABYTE, 1e3 * cost.seconds
            rows.append((devices, way.title, way.trains_as.name, *amounts, "" if unbeaten else "beaten"))
    return DataFrame(rows, columns=["devices", "way", "trains_as", "accuracy", *COSTS, "beaten"])


def _worth(run_set: RunSet, points: DataFrame, accuracy: SeedSamples) -> Sentence:
    """State where PETRA is on the front, and where the plain pipeline is smaller, faster and exact."""
    ours, plain, keeping = (
        points[points["way"] == title].set_index("devices")
        for title in (methods.PETRA.title, "1F1B", methods.DSP.title)
    )
    if ours.empty or plain.empty:
        return Sentence("PETRA and backpropagation have not both been trained.", known=False)
    lost = format_difference(accuracy[methods.PETRA.name] - accuracy[methods.BACKPROPAGATION.name], unit="points")
    on = [str(devices) for devices in DEVICES if not ours["beaten"][devices]]
    better = [
        str(devices)
        for devices in DEVICES
        if all(plain[cost][devices] < ours[cost][devices] for cost in COSTS) and accuracy[EXACT].estimate
    ]
    front = f"with {conjunction(on)} devices" if on else "with no number of devices"
    beaten = f"; with {conjunction(better)} devices plain 1F1B is smaller, faster and exact" if better else ""
    most = DEVICES[-1]
    same = most in keeping.index and all(math.isclose(keeping[c][most], ours[c][most], rel_tol=SAME) for c in COSTS)
    return Sentence(
        f"In the model, at k = {ACCUMULATION[run_set.scale]} and in lockstep, PETRA with its stages kept apart is on "
        f"the front of accuracy, bytes and time {front}{beaten}. On {most} devices PETRA takes "
        f"{ours['milliseconds'][most]:.1f} ms and {ours['megabytes'][most]:.0f} MB{', as DSP does' * same}, 1F1B "
        f"{plain['milliseconds'][most]:.1f} ms and {plain['megabytes'][most]:.0f} MB; {run_set.after} PETRA − "
        f"backpropagation is {lost}."
    )


EXHIBIT = declare("tradeoff", each)
