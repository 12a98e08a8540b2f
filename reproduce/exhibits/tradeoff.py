"""Beyond the paper: what every way to train costs and what it gives: accuracy, bytes per device, time.

Accuracy, memory and speed each have their table, and each table has another winner; whoever chooses a way to train
needs the three at once. Accuracy is measured; bytes and times are modelled from the stages' measured costs.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from pandas import DataFrame

from petra_core import methods
from reproduce.exhibits._exhibit import Exhibit, Sentence, Shown
from reproduce.grids.plans.tradeoff import ACCUMULATION
from reproduce.modelling.modelled import Modelled, timed_networks
from reproduce.modelling.tradeoff import PIPELINES, WAYS, Way, front, taken
from reproduce.records.frames import Sheet
from reproduce.show import facets
from reproduce.show.compare import Samples, bounded, means
from reproduce.show.content import MEGABYTE
from reproduce.show.statistics import Verdict
from reproduce.show.tables import amount, mean, table, words

DEVICES = (2, 4, 10)
INTRODUCTION = (
    "Accuracy is as trained here; bytes are of the device that holds most, time is for a micro-batch in the steady "
    "state. Both are simulated event by event from the stages' costs as measured on one device, over links that take "
    "no time, neighbouring stages sharing a device by the best cut; pipelined methods are in lockstep. A synchronous "
    "pipeline has the accuracy of "
    "backpropagation and empties at every update of k micro-batches. Modelled devices run freely, so that what waits "
    "for a slow stage is held beside it; measured is the fullest stage of the run in one process, tick by tick."
)
COSTS = {"megabytes": "fullest device, MB", "milliseconds": "a micro-batch, ms"}


def each(sheet: Sheet) -> Iterator[Shown]:
    """The frame, as a figure and a table, and when PETRA is worth it."""
    timed = timed_networks(sheet)
    accuracy = means(sheet.runs[sheet.runs["kind"] == "training"], "test_accuracy", ["method"])
    k = ACCUMULATION[sheet.scale]
    setting = f"{sheet.described(network=True)}, k = {k}"
    ways = [way for way in WAYS if accuracy[way.trains_as.name].values]
    if not (timed and ways):
        yield f"At the scale “{sheet.scale}” stage costs and accuracies are not both there yet."
        return
    points = _points(timed[0], ways, accuracy, k)
    totals = sheet.parts().query("kind == 'total'").groupby("method")["value"].max() / MEGABYTE
    in_process = {way.title: totals.get(way.method.name) for way in ways if way.order is None}

    def measured(point: Any) -> float | None:
        return in_process.get(point.way) if point.devices == len(timed[0].costs) else None  # a stage a device

    yield _worth(points, accuracy, DEVICES[-1])
    yield facets.facet(
        points.melt(["devices", "way", "accuracy", "beaten"], list(COSTS), var_name="cost"),
        [facets.dots(size=7, hollow="beaten")],
        key=f"tradeoff-{sheet.key}",
        caption=f"What it costs and what it gives ({setting}); accuracy measured, costs modelled. Filled: on the front "
        "of what no other way beats in all three; round: methods of this engine; square: synchronous pipelines.",
        x="value",
        y="accuracy",
        hue="way",
        looks=facets.TITLE_LOOKS,
        row="cost",
        col="devices",
        titles=lambda cost, devices: f"{devices} devices: {COSTS[cost]}",
        ylabel="test accuracy, %",
        xlog=True,
        share=(False, True),
        legend="mark",
    )
    yield table(
        key=f"tradeoff-{sheet.key}",
        caption=f"Accuracy, bytes of the fullest device, and time for a micro-batch ({setting}). On the front: no "
        "other is at least as good in all three and better in one; in accuracy alone only if the interval of the "
        "difference excludes 0 and reaches beyond the margin.",
        rows=points.itertuples(),
        fields=[
            words("devices", lambda point: f"{point.devices} devices"),
            words("way", lambda point: point.way),
            mean("accuracy, %", lambda point: accuracy[point.trains_as]),
            amount("fullest device, MB", lambda point: point.megabytes, 1, group="modelled"),
            amount("a micro-batch, ms", lambda point: point.milliseconds, 2, group="modelled"),
            amount("in one process, MB", measured, 1, group="measured"),
            words("on the front", lambda point: point.beaten or "yes"),
        ],
        notes=[f"Stages were timed on {timed[0].machine}."],
        grouped=True,
    )


def _points(network: Modelled, ways: list[Way], accuracy: Samples, k: int) -> DataFrame:
    """What each way costs and gives on so many devices; `beaten` is empty on the front."""
    names = [way.trains_as.name for way in ways]
    reached = [estimate.mean for name in names if (estimate := accuracy[name].estimate)]
    pairs = combinations(dict.fromkeys(names), 2)
    less = {frozenset({one, other}): accuracy[one] - accuracy[other] for one, other in pairs}

    def stands(better: int, other: int) -> bool:
        difference = less.get(frozenset({names[better], names[other]}))
        return difference is not None and difference.verdict in (Verdict.HIGHER, Verdict.LOWER)

    rows: list[tuple[int | str | float, ...]] = []
    for devices in DEVICES:
        costs = [taken(network.balance, network.invertible, way, devices, k) for way in ways]
        on = front([(-percent, cost.peak, cost.seconds) for percent, cost in zip(reached, costs, strict=True)], stands)
        for way, percent, cost, unbeaten in zip(ways, reached, costs, on, strict=True):
            amounts = percent, cost.peak / MEGABYTE, 1e3 * cost.seconds
            rows.append((devices, way.title, way.trains_as.name, *amounts, "" if unbeaten else "beaten"))
    return DataFrame(rows, columns=["devices", "way", "trains_as", "accuracy", *COSTS, "beaten"])


def _worth(points: DataFrame, accuracy: Samples, devices: int) -> Sentence:
    """PETRA beside the ways without loss of accuracy: the quickest, and the pipeline that holds least."""
    part = points[points["devices"] == devices].sort_values("milliseconds", kind="stable")
    petra, exact = part[part["way"] == methods.PETRA.title], part[part["trains_as"] == methods.BACKPROPAGATION.name]
    if petra.empty or exact.empty:
        return Sentence("PETRA and backpropagation have not both been trained.", known=False)
    pipelines = exact[exact["way"].isin([way.title for way in PIPELINES])]
    shown = petra.iloc[0], exact.iloc[0], pipelines.nsmallest(1, "megabytes").iloc[0]
    ours, *others = (f"{way['way']} {way['milliseconds']:.1f} ms, {way['megabytes']:.1f} MB" for way in shown)
    lost = bounded(accuracy[methods.PETRA.name] - accuracy[methods.BACKPROPAGATION.name])
    rest = "; ".join(dict.fromkeys(others))
    return Sentence(f"On {devices} devices, modelled: {ours}, {lost} points; synchronous: {rest}.")


EXHIBIT = Exhibit("tradeoff", "The trade-off: accuracy, bytes and time", INTRODUCTION, each)
