"""Table 5: speed of PETRA against reversible backpropagation without overlap, with one device a stage.

The published values were measured on J devices. Where there are none, the times are modelled: runs are simulated event
by event from what each stage costs on one device (`reproduce.modelling.modelled`), and say so wherever they stand. So
is what other cuts and replicas of heavy stages would give (`reproduce.modelling.arrangements`).
"""

from collections.abc import Iterator, Sequence
from typing import Any

from petra_core.prediction.simulation import Link
from reproduce import published as published_tables
from reproduce.cells import catalogue
from reproduce.exhibits._exhibit import Coverage, Exhibit, Folded, Sentence, Shown, sheets
from reproduce.grids.plans.table5 import PAPER_WIDTH, SETTINGS
from reproduce.modelling.arrangements import DEVICES, arrangements
from reproduce.modelling.modelled import Modelled, timed_networks
from reproduce.records.frames import Frames, Sheet
from reproduce.show import facets
from reproduce.show.content import MEGABYTE, TIMES, Entry, Figure, Finding, Table, Tone, missing, text
from reproduce.show.content import number as number_entry
from reproduce.show.facets import Look, facet
from reproduce.show.tables import amount, number, published, published_value, table, words

STATED_LINK = Link(latency=10e-6, bandwidth=10e9)
LINK_NAME = "10 GB/s, 10 µs"
SPEEDUP = "speedup_over_reversible_backpropagation"
LOOKS = {
    "forward": Look("forward", "#56b4e9"),
    "backward": Look("backward", "#0072b2"),
    "update": Look("update", "#e69f00"),
}
INTRODUCTION = (
    "Published is the time of an iteration of PETRA against reversible backpropagation without overlap, one device a "
    "stage. The column “measured on J devices” waits for such a run. What is modelled here starts from measured times: "
    "the engine's worker of each stage alone on one device, its forward, its backward with what it reconstructs, and "
    "its update (medians; the first turns are left out). From them runs on J devices are simulated event by event: "
    "every device does the schedule's actions in order, each as soon as the device is free and what it needs has "
    "arrived. Devices are taken to be equal to the one that was measured, and, unless a link is named, messages take "
    "no time. With perfectly balanced stages the speed-up would be J."
)
ARRANGEMENTS = (
    f"One device a stage leaves most devices waiting for the slowest. On {DEVICES} devices, modelled: the cut into "
    "equal numbers of stages; the cut that makes the slowest device fastest, its stages apart (the delay is that of J "
    "stages) or merged (that of as many stages as devices, so fewer micro-batches wait, at the same pace; what is "
    "lost is the time in which a message travels while other stages of its device work); and heavy stages replicated "
    "over r devices that take micro-batches in turn and add up their gradients at every update, for which k is a "
    "multiple of r and the delay longer. All devices as replicas of everything are data parallelism: balanced and "
    "without delay, every device with all weights; its backward reconstructs graphs here as everywhere in this table."
)


def largest(frames: Frames) -> Sheet | None:
    """The largest scale at which stages were timed."""
    return next((sheet for sheet in sheets(frames, "table5") if not sheet.done.empty), None)


def whole(frames: Frames) -> Iterator[Shown]:
    """The published values, and beside them what is modelled from stage costs at the paper's scale."""
    papers = next(sheets(frames, "table5"))
    states = papers.runs.set_index("model")["state"]
    speedups = {m.run.cell.model: number_entry(m.speedup(), 2, hint=m.machine) for m in timed_networks(papers)}
    yield Coverage("speeds are modelled, not measured on several devices")
    yield table(
        key="table5",
        caption="Time of an iteration without overlap over that of PETRA, CIFAR-10, one device a stage; modelled: at "
        f"batch {SETTINGS['paper'][1]}, scale “paper”.",
        rows=published_tables.read("table5_speed"),
        fields=[
            words("network", lambda row: row["model"].replace("revnet", "RevNet-")),
            number("J", lambda row: row.number("devices")),
            published("published", lambda row: published_value(row, SPEEDUP, TIMES), group="speed-up"),
            amount("measured on J devices", lambda _: None, 2, group="speed-up", without="not run"),
            words(
                "modelled",
                lambda row: speedups.get(row["model"], missing(states[row["model"]])),
                group="speed-up",
                hint="from stage costs measured at the scale paper",
            ),
        ],
    )


def each(sheet: Sheet) -> Iterator[Shown]:
    """Times and stage costs; of the largest scale also what other ways would give, and what follows."""
    own = timed_networks(sheet)
    if not own:
        return
    yield _times(sheet, own)
    yield _bars(sheet, own)
    yield Folded(_costs(sheet, own))
    speaker = largest(sheet.frames)
    if speaker and speaker.scale == sheet.scale:
        yield ARRANGEMENTS
        yield _arrangements(sheet, own)
        yield from _findings(sheet, own)


def _findings(sheet: Sheet, own: Sequence[Modelled]) -> Iterator[Shown]:
    rows = {row["model"]: row for row in published_tables.read("table5_speed")}
    narrow = own[0].run.cell.width != PAPER_WIDTH
    claims = [
        f"{m.title} {m.speedup():.1f}{TIMES} with J = {len(m.costs)}"
        + (f" ({row[SPEEDUP]}{TIMES} {row.mark.value})" if row and not narrow else "")
        for m in own
        for row in [rows.get(m.run.cell.model)]
    ]
    yield Sentence(f"Speed over that without overlap, modelled, not measured: {claims[0]}.")
    yield Finding(
        f"Table 5: modelled from stage costs measured at the scale “{sheet.scale}”, PETRA with one device a stage is "
        f"as many times as fast as reversible backpropagation without overlap: {', '.join(claims)}. Not measured on "
        f"several devices.{' Networks this narrow say nothing about those of the paper.' if narrow else ''}"
    )


def _times(sheet: Sheet, own: Sequence[Modelled]) -> Table:
    at_link = "speed-up if every message passes over such a link"
    at_pace = "for the same pace, if quick neighbours share a device"
    return table(
        key=f"table5-{sheet.key}",
        caption=f"Times for a micro-batch, modelled from measured stage costs, {_setting(own)}.",
        rows=own,
        fields=[
            words("network", lambda m: m.title),
            number("J", lambda m: len(m.costs)),
            amount("without overlap, ms", lambda m: 1e3 * m.without_overlap(), 1, group="modelled"),
            amount("PETRA, ms", lambda m: 1e3 * m.pace(), 1, group="modelled"),
            amount("speed-up", lambda m: m.speedup(), 2, group="modelled"),
            amount(f"at {LINK_NAME}", lambda m: m.speedup(STATED_LINK), 2, group="modelled", hint=at_link),
            amount("if balanced", lambda m: len(m.costs), 0, group="modelled", hint="all stages equal: J"),
            amount("stage j", lambda m: m.slowest, 0, group="slowest stage"),
            amount("share of all work, %", lambda m: 100 * m.share_of_slowest, 1, group="slowest stage"),
            amount("idle, %", lambda m: 100 * m.idle, 1, hint="mean over the devices, while the slowest works"),
            amount("devices enough", lambda m: m.devices_enough, 0, hint=at_pace),
        ],
        notes=(
            "Modelled, not measured: see above. The stages were measured on "
            + "; ".join(f"{m.machine} ({m.title})" for m in own)
            + ". Load: processes that wanted to run in the last minute; if above the number of cores, times include "
            "waiting.",
        ),
    )


def _bars(sheet: Sheet, own: Sequence[Modelled]) -> Figure:
    title = "What each stage costs"
    return facet(
        [
            {"network": m.title, "stage": stage, "part": part, "ms": 1e3 * seconds}
            for m in own
            for stage, cost in enumerate(m.costs)
            for part, seconds in (
                ("forward", cost.forward),
                ("backward", cost.backward),
                ("update", cost.update / m.run.cell.accumulation),
            )
        ],
        [facets.stack(sideways=False, mean=True)],
        key=f"costs-{sheet.key}",
        title=title,
        caption=f"{title}, measured, {_setting(own)}. PETRA's pace is the highest bar; the dashed line is the mean, "
        "which perfectly balanced stages would reach. Every panel has an axis of its own.",
        x="stage",
        y="ms",
        hue="part",
        looks=LOOKS,
        col="network",
        xlabel="stage j",
        ylabel="ms",
        share=(False, False),
        legend="area",
    )


def _arrangements(sheet: Sheet, own: Sequence[Modelled]) -> Table:
    group = "a micro-batch"
    over, with_link = "over reversible backpropagation without overlap", "speed-up if everything passes over such links"
    return table(
        key="table5-arrangements",
        caption=f"Ways to use {DEVICES} devices for PETRA, modelled from measured stage costs, "
        f"{_setting(own).rpartition(', k')[0]}.",
        rows=[way for m in own for way in arrangements(m)],
        fields=[
            words("network", lambda way: way.network.title),
            words("way", lambda way: way.name),
            words("stages of each part", _parts, hint="4 on 2: four stages, replicated over two devices"),
            number("devices", lambda way: way.plan.devices),
            number("k", lambda way: way.accumulation),
            amount("delay", lambda way: way.delay, 0, hint="micro-batches between forward and backward at stage 0"),
            amount("ms", lambda way: 1e3 * way.pace, 1, group=group),
            amount("speed-up", lambda way: way.speedup(), 2, group=group, hint=over),
            amount(f"at {LINK_NAME}", lambda way: way.speedup(STATED_LINK), 2, group=group, hint=with_link),
            amount("idle, %", lambda way: 100 * way.idle, 1, hint="mean over the devices"),
            amount("peak memory, MB", lambda way: way.peak / MEGABYTE, 0, hint="of the device that holds most"),
        ],
        notes=(
            "Modelled: simulated event by event; published for 10 devices is the measured speed-up of the table above. "
            "Memory: weights, gradients, momentum, what waits, messages and the graph of one backward, followed "
            "through the simulated run.",
        ),
        grouped=True,
    )


def _parts(way: Any) -> str:
    parts = zip(way.plan.partition, way.plan.replicas, strict=True)
    return ", ".join(f"{size}" if count == 1 else f"{size} on {count}" for size, count in parts)


def _costs(sheet: Sheet, own: Sequence[Modelled]) -> Table:
    """Rows are network, what was measured of a stage, cost of a stage, its share of the slowest."""

    def span(times: dict[str, float]) -> Entry:
        shown = f"{1e3 * times['lowest']:.2f} to {1e3 * times['highest']:.2f}"
        return text(shown, tone=Tone.OURS, sort=times["lowest"])

    def kind(row: Any) -> str:
        return "reversible" if row[1]["invertible"] else "buffered" if row[2].up else "head"

    return table(
        key=f"table5-stages-{sheet.key}",
        caption=f"Measured cost of every stage, {_setting(own)}. 1 MB = 10⁶ bytes.",
        rows=[
            (m, row, cost, seconds / max(m.balance.seconds))
            for m in own
            for row, cost, seconds in zip(m.run.result["stages"], m.costs, m.balance.seconds, strict=True)
        ],
        fields=[
            words("network", lambda row: f"{row[0].title}, {row[0].run.cell.repetitions} turns timed"),
            number("stage j", lambda row: row[1]["stage"]),
            words("kind", kind),
            amount("forward, ms", lambda row: 1e3 * row[2].forward, 2, group="median"),
            amount("backward, ms", lambda row: 1e3 * row[2].backward, 2, group="median"),
            amount("update, ms", lambda row: 1e3 * row[2].update, 2, group="median"),
            amount("turn over the slowest", lambda row: row[3], 2, hint="1: this stage sets the pace"),
            words("forward, ms", lambda row: span(row[1]["forward"]), group="range"),
            words("backward, ms", lambda row: span(row[1]["backward"]), group="range"),
            amount("up", lambda row: row[2].up / MEGABYTE, 2, group="message, MB"),
            amount("down", lambda row: row[2].down / MEGABYTE, 2, group="message, MB"),
        ],
        grouped=True,
    )


def _setting(own: Sequence[Modelled]) -> str:
    cell = own[0].run.cell
    width = "" if cell.width == PAPER_WIDTH else f", width {cell.width}"
    return (
        f"scale “{cell.scale}”, images like {catalogue.by_name(cell.dataset).title}'s, batch {cell.batch_size}{width}, "
        f"k = {cell.accumulation}"
    )


EXHIBIT = Exhibit(
    "table5",
    "Table 5: speed with one device a stage",
    INTRODUCTION,
    each,
    whole,
    folded="What every stage costs",
)
