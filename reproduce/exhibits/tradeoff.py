"""Beyond the paper: what every way to train costs and what it gives: accuracy, bytes per device, time.

Accuracy, memory and speed each have their table, and each table has another winner. Whoever chooses a way to train
needs the three at once, on the number of devices that are there. So here they stand in one frame, for the methods of
this engine and for the synchronous pipelines that train as backpropagation does, with the front of what no other way
beats in all three. Accuracy is measured; bytes and times are modelled from the stages' measured costs.
"""

from collections.abc import Iterator
from typing import NamedTuple

from petra_core import methods
from reproduce.exhibits._exhibit import Exhibit, Sentence, Shown
from reproduce.grids.plans.tradeoff import ACCUMULATION
from reproduce.modelling.modelled import Modelled, timed_networks
from reproduce.modelling.tradeoff import WAYS, Way, front, taken
from reproduce.records.frames import Frame, Sheet
from reproduce.show import facets, plots
from reproduce.show.compare import Samples, means
from reproduce.show.content import MEGABYTE, Finding, with_sign
from reproduce.show.facets import Look, facet
from reproduce.show.tables import amount, mean, table, words

DEVICES = (2, 4, 10)
INTRODUCTION = (
    "What each way costs, and what it gives. Accuracy: as trained here. Bytes: of the device that holds most; time: "
    "for a micro-batch in the steady state. Both are simulated event by event from the stages' costs as measured on "
    "one device, over links that take no time, neighbouring stages sharing a device by the best cut. A synchronous "
    "pipeline has the accuracy of backpropagation and empties at every update of k micro-batches. A way is on the "
    "front if no other is at least as good in accuracy, bytes and time and better in one of them."
)
COSTS = {"megabytes": "fullest device, MB", "milliseconds": "a micro-batch, ms"}
PIPELINES = ("#7a5195", "#bc5090", "#003f5c", "#2f7ed8")
LOOKS = {
    way.title: Look(
        way.title,
        plots.COLOURS[way.method] if way.order is None else PIPELINES[place - len(methods.ALL)],
        marker="o" if way.order is None else "s",
    )
    for place, way in enumerate(WAYS)
}


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
    points = list(_points(timed[0], ways, accuracy, k))
    yield Sentence(_worth(points, DEVICES[-1], brief=True))
    worth = " ".join(_worth(points, devices) for devices in DEVICES)
    long = Frame(points).melt(["devices", "way", "accuracy", "beaten"], list(COSTS), var_name="cost")
    yield facet(
        long,
        [facets.dots(size=7, hollow="beaten")],
        key=f"tradeoff-{sheet.key}",
        title="What it costs and what it gives",
        caption=f"When is PETRA worth it? {worth} ({setting}; accuracy measured, costs modelled.) Filled: on the front "
        "of what no other way beats in all three; round: methods of this engine; square: synchronous pipelines.",
        x="value",
        y="accuracy",
        hue="way",
        looks=LOOKS,
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
        caption=f"Accuracy, bytes of the fullest device, and time for a micro-batch ({setting}).",
        rows=points,
        fields=[
            words("devices", lambda point: f"{point.devices} devices"),
            words("way", lambda point: point.way),
            mean("accuracy, %", lambda point: accuracy[point.trains_as]),
            amount("fullest device, MB", lambda point: point.megabytes, 1, group="modelled"),
            amount("a micro-batch, ms", lambda point: point.milliseconds, 2, group="modelled"),
            words("on the front", lambda point: point.beaten or "yes"),
        ],
        notes=(
            "Accuracy: mean ± half the 95 % interval (number of seeds). Modelled: not measured on several devices.",
        ),
        grouped=True,
    )
    yield Finding(f"Trade-off: {setting}. {worth}")


class Point(NamedTuple):
    """What a way costs and gives on some devices."""

    devices: int
    way: str
    trains_as: str
    accuracy: float  # percent
    megabytes: float  # of the fullest device
    milliseconds: float  # for a micro-batch
    beaten: str  # "beaten", or empty on the front


def _points(network: Modelled, ways: list[Way], accuracy: Samples, k: int) -> Iterator[Point]:
    reached = [found.mean for way in ways if (found := accuracy[way.trains_as.name].estimate)]
    for devices in DEVICES:
        costs = [taken(network.balance, network.invertible, way, devices, k) for way in ways]
        on = front([(-percent, cost.peak, cost.seconds) for percent, cost in zip(reached, costs, strict=True)])
        for way, percent, cost, unbeaten in zip(ways, reached, costs, on, strict=True):
            amounts = percent, cost.peak / MEGABYTE, 1e3 * cost.seconds
            yield Point(devices, way.title, way.trains_as.name, *amounts, "" if unbeaten else "beaten")


def _worth(points: list[Point], devices: int, *, brief: bool = False) -> str:
    """PETRA beside the quickest way without loss of accuracy, and the quickest of those in no more memory."""
    petra = next((p for p in points if (p.devices, p.way) == (devices, methods.PETRA.title)), None)
    exact = [p for p in points if p.devices == devices and p.trains_as == methods.BACKPROPAGATION.name]
    if petra is None or not exact:
        return ""
    quickest = min(exact, key=lambda p: p.milliseconds)
    lean = min((p for p in exact if p.megabytes <= petra.megabytes), key=lambda p: p.milliseconds, default=None)
    points_lost = with_sign(petra.accuracy - quickest.accuracy, 1)
    if brief:
        return (
            f"On {devices} devices PETRA takes {_said(petra)} ({points_lost} points), {quickest.way} "
            f"{_said(quickest)} without loss."
        )
    return (
        f"On {devices} devices PETRA takes {_said(petra)} for {points_lost} points of accuracy; without loss "
        f"{quickest.way} takes {_said(quickest)}, and in no more memory "
        + (f"{lean.way} {_said(lean)}." if lean else "nothing fits.")
    )


def _said(point: Point) -> str:
    return f"{point.milliseconds:.1f} ms and {point.megabytes:.1f} MB"


EXHIBIT = Exhibit("tradeoff", "The trade-off: accuracy, bytes and time", INTRODUCTION, each)
