"""Table 5: speed of PETRA against reversible backpropagation without overlap, with one device a stage.

The published values were measured on J devices. Where there are none, the times are modelled: runs are simulated event
by event from what each stage costs on one device (`reproduce.modelling.modelled`), and say so wherever they stand. What
other cuts and replicas of heavy stages would give is in `reproduce.exhibits.arrangements`.
"""

from collections.abc import Iterator, Sequence

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from petra_core.prediction.simulation import Link
from reproduce import published
from reproduce.cells import catalogue
from reproduce.cells.kinds import StageCostCell
from reproduce.exhibits import arrangements
from reproduce.grids.plans.table5 import PAPER_WIDTH, SETTINGS
from reproduce.modelling import modelled
from reproduce.modelling.modelled import Modelled
from reproduce.records.results import Results, Run
from reproduce.show import plots
from reproduce.show.content import (
    MEGABYTE,
    TIMES,
    Block,
    Column,
    Entry,
    Figure,
    Finding,
    Section,
    Table,
    Tone,
    missing,
    number,
    text,
)
from reproduce.show.content import published as published_entry

STATED_LINK = Link(latency=10e-6, bandwidth=10e9)
LINK_NAME = "10 GB/s, 10 µs"


def section(results: Results) -> Section:
    """Published beside modelled, then scale by scale the times and what each stage costs."""
    runs = results.of_kind(StageCostCell)
    found = modelled.timed_networks(results)
    scales = dict.fromkeys(m.run.cell.scale for m in found)
    by_scale = {scale: [m for m in found if m.run.cell.scale == scale] for scale in scales}
    blocks: list[Block] = [_INTRODUCTION, _published_table(runs)]
    for scale, own in reversed(by_scale.items()):  # the largest first
        blocks += [_table(scale, own), _figure(scale, own)]
    if by_scale:
        scale, own = next(reversed(by_scale.items()))
        blocks += [
            arrangements.INTRODUCTION,
            arrangements.table(own, STATED_LINK, LINK_NAME, _setting(scale, own).rpartition(", k")[0]),
        ]
    coverage = f"modelled from measured stage costs ({', '.join(scales)})" if found else "published values"
    return Section(
        key="table5",
        title="Table 5: speed with one device a stage",
        blocks=blocks,
        findings=[*_findings(by_scale)],
        coverage=f"{coverage}; not measured on several devices",
        folded=[_stages_table(scale, own) for scale, own in by_scale.items()],
        folded_title="What every stage costs",
    )


_INTRODUCTION = (
    "Published is the time of an iteration of PETRA against reversible backpropagation without overlap, one device a "
    "stage. The column “measured on J devices” waits for such a run. What is modelled here starts from measured times: "
    "the engine's worker of each stage alone on one device, its forward, its backward with what it rebuilds, and its "
    "update (medians; the first turns are left out). From them runs on J devices are simulated event by event: every "
    "device does the schedule's actions in order, each as soon as the device is free and what it needs has arrived. "
    "Devices are taken to be equal to the one that was measured, and, unless a link is named, messages take no time. "
    "With perfectly balanced stages the speed-up would be J."
)


def _findings(by_scale: dict[str, list[Modelled]]) -> Iterator[Finding]:
    if not by_scale:
        yield Finding("Table 5: no stage has been timed yet.", Tone.MISSING)
        return
    scale, own = next(reversed(by_scale.items()))  # the largest
    claims = [
        f"{m.title} {m.speedup():.1f}{TIMES} with J = {len(m.costs)}"
        + (f" ({row['speedup_over_reversible_backpropagation']}{TIMES} {row.mark.value})" if row else "")
        for m in own
        for row in [_published().get(m.run.cell.model) if m.run.cell.width == PAPER_WIDTH else None]
    ]
    narrow = "" if own[0].run.cell.width == PAPER_WIDTH else " Networks this narrow say nothing about the paper's."
    yield Finding(
        f"Table 5: modelled from stage costs measured at the scale “{scale}”, PETRA with one device a stage is as many "
        f"times as fast as reversible backpropagation without overlap: {', '.join(claims)}. Not measured on several "
        f"devices.{narrow}"
    )


def _published() -> dict[str, published.Row]:
    return {row["model"]: row for row in published.read("table5_speed")}


def _published_table(runs: Sequence[Run[StageCostCell]]) -> Table:
    columns = [
        Column("network", numeric=False),
        Column("J"),
        Column("published", group="speed-up"),
        Column("measured on J devices", group="speed-up"),
        Column("modelled", group="speed-up", hint="from stage costs measured at the scale paper"),
    ]
    body = []
    for model, row in _published().items():
        at_paper = next((run for run in runs if (run.cell.scale, run.cell.model) == ("paper", model)), None)
        foretold = (
            number(Modelled(at_paper).speedup(), 2, hint=Modelled(at_paper).machine)
            if at_paper and at_paper.done
            else missing(str(at_paper.state) if at_paper else "not run")
        )
        shown = row["speedup_over_reversible_backpropagation"]
        body.append(
            [
                text(_title(model)),
                number(row.number("devices"), 0, tone=Tone.PLAIN),
                published_entry(f"{shown}{TIMES}", row.mark, value=float(shown)),
                missing("not run", "the report has no run on several devices"),
                foretold,
            ]
        )
    return Table(
        key="table5",
        caption=(
            "Time of an iteration without overlap over that of PETRA, CIFAR-10, one device a stage; modelled: at batch "
            f"{SETTINGS['paper'][1]}, scale “paper”."
        ),
        columns=columns,
        rows=body,
    )


def _table(scale: str, own: Sequence[Modelled]) -> Table:
    columns = [
        Column("network", numeric=False),
        Column("J"),
        Column("without overlap, ms", group="modelled"),
        Column("PETRA, ms", group="modelled"),
        Column("speed-up", group="modelled"),
        Column(f"at {LINK_NAME}", group="modelled", hint="speed-up if every message passes over such a link"),
        Column("if balanced", group="modelled", hint="all stages equal: J"),
        Column("stage j", group="slowest stage"),
        Column("share of all work, %", group="slowest stage"),
        Column("idle, %", hint="mean over the devices, while the slowest works"),
        Column("devices enough", hint="for the same pace, if quick neighbours share a device"),
    ]
    return Table(
        key=f"table5-{scale}",
        caption=f"Times for a micro-batch, modelled from measured stage costs, {_setting(scale, own)}.",
        columns=columns,
        rows=[_row(m) for m in own],
        notes=(
            "Modelled, not measured: see above. The stages were measured on "
            + "; ".join(f"{m.machine} ({m.title})" for m in own)
            + ". Load: processes that wanted to run in the last minute; if above the number of cores, times include "
            "waiting.",
        ),
    )


def _row(m: Modelled) -> list[Entry]:
    seconds = m.balance.seconds
    work, pace = sum(seconds), m.pace()
    return [
        text(m.title),
        number(len(seconds), 0, tone=Tone.PLAIN),
        number(1e3 * modelled.seconds_without_overlap(m.costs, accumulation=m.run.cell.accumulation), 1),
        number(1e3 * pace, 1),
        number(m.speedup(), 2),
        number(m.speedup(STATED_LINK), 2),
        number(len(seconds), 0),
        number(m.slowest, 0),
        number(100 * seconds[m.slowest] / work, 1),
        number(100 * (1 - work / (len(seconds) * pace)), 1),
        number(_devices_enough(m), 0),
    ]


def _devices_enough(m: Modelled) -> int:
    """The least number of devices whose best cut is as fast as one stage a device."""
    pace = max(m.balance.seconds) * (1 + 1e-9)  # sums round
    return next(count for count in range(1, len(m.costs) + 1) if m.balance.best(count).slowest <= pace)


def _stages_table(scale: str, own: Sequence[Modelled]) -> Table:
    columns = [
        Column("network", numeric=False),
        Column("stage j"),
        Column("kind", numeric=False),
        *(Column(f"{name}, ms", group="median") for name in ("forward", "backward", "update")),
        Column("turn over the slowest", hint="1: this stage sets the pace"),
        Column("forward, ms", group="range", numeric=False),
        Column("backward, ms", group="range", numeric=False),
        Column("up", group="message, MB"),
        Column("down", group="message, MB"),
    ]
    body = []
    for m in own:
        pace = max(m.balance.seconds)
        for row, cost, turn in zip(m.run.result["stages"], m.costs, m.balance.seconds, strict=True):
            body.append(
                [
                    text(f"{m.title}, {m.run.cell.repetitions} turns timed"),
                    number(row["stage"], 0, tone=Tone.PLAIN),
                    text("reversible" if row["invertible"] else "buffered" if cost.up else "head"),
                    *(number(1e3 * seconds, 2) for seconds in (cost.forward, cost.backward, cost.update)),
                    number(turn / pace, 2),
                    *(_range(row[name]) for name in ("forward", "backward")),
                    number(cost.up / MEGABYTE, 2),
                    number(cost.down / MEGABYTE, 2),
                ]
            )
    return Table(
        key=f"table5-stages-{scale}",
        caption=f"Measured cost of every stage, {_setting(scale, own)}. 1 MB = 10⁶ bytes.",
        columns=columns,
        rows=body,
        grouped=True,
    )


def _range(times: dict[str, float]) -> Entry:
    shown = f"{1e3 * times['lowest']:.2f} to {1e3 * times['highest']:.2f}"
    return text(shown, tone=Tone.OURS, sort=times["lowest"])


def _figure(scale: str, own: Sequence[Modelled]) -> Figure:
    key, title = f"costs-{scale}", "What each stage costs"
    description = "One panel for each network, one bar for each stage, of forward, backward and update. " + " ".join(
        f"{m.title}: the slowest is stage {m.slowest} with {1e3 * max(m.balance.seconds):.3g} ms, the mean of all "
        f"stages is {1e3 * sum(m.balance.seconds) / len(m.costs):.3g} ms."
        for m in own
    )
    with plots.style():
        drawing = Drawing(figsize=(10.4, 3.0), layout="constrained")
        for panel, m in zip(drawing.subplots(1, len(own), squeeze=False)[0], own, strict=True):
            _bars(panel, m)
        sns.despine(drawing)
        handles, labels = drawing.axes[0].get_legend_handles_labels()
        drawing.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        svg = plots.to_svg(drawing, key=f"figure-{key}", title=title, description=description)
    caption = (
        f"{title}, measured, {_setting(scale, own)}. PETRA's pace is the highest bar; the line is the mean, which "
        "perfectly balanced stages would reach. Every panel has an axis of its own."
    )
    return Figure(key, title, description, svg, caption)


def _bars(panel: Axes, m: Modelled) -> None:
    stages = range(len(m.costs))
    bottom = [0.0] * len(m.costs)
    for name, colour in (("forward", "#56b4e9"), ("backward", "#0072b2"), ("update", "#e69f00")):
        share = m.run.cell.accumulation if name == "update" else 1
        heights = [1e3 * getattr(cost, name) / share for cost in m.costs]
        panel.bar(stages, heights, bottom=bottom, color=colour, label=name, width=0.72)
        bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
    panel.axhline(sum(bottom) / len(bottom), color=plots.INK, linewidth=1, linestyle=(0, (4, 2)), label="mean")
    panel.set(title=m.title, xlabel="stage j", ylabel="ms", xticks=stages)
    panel.tick_params(axis="x", length=0, labelsize=7.5)


def _setting(scale: str, own: Sequence[Modelled]) -> str:
    cell = own[0].run.cell
    width = "" if cell.width == PAPER_WIDTH else f", width {cell.width}"
    return (
        f"scale “{scale}”, images like {catalogue.by_name(cell.dataset).title}'s, batch {cell.batch_size}{width}, "
        f"k = {cell.accumulation}"
    )


def _title(model: str) -> str:
    return model.replace("revnet", "RevNet-")
