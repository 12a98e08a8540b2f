"""Table 5: speed of PETRA against reversible backpropagation without overlap, with one device a stage.

The published values were measured on J devices. Where there are none, the times are modelled from what each stage
costs on one device (`reproduce.measures.stage_costs`, `reproduce.tables.speed_model`), and say so wherever they stand.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from petra_core import methods
from reproduce import published
from reproduce.cells import Cell, StageCostCell
from reproduce.data import catalogue
from reproduce.scales import SCALES
from reproduce.tables import plots
from reproduce.tables.content import (
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
from reproduce.tables.content import published as published_entry
from reproduce.tables.deferred import sns
from reproduce.tables.results import Results, Run
from reproduce.tables.speed_model import NO_LINK, Cost, Link, devices_enough, one_at_a_time, pipelined, slowest

MODELS = ("revnet18", "revnet34", "revnet50")
PAPER_WIDTH = 64
STATED_LINK = Link(bandwidth=10e9, latency=10e-6)
LINK_NAME = "10 GB/s, 10 µs"
#: By scale: width, samples in a micro-batch, timed turns of each stage, models.
SETTINGS = {
    "smoke": (4, 8, 5, MODELS),
    "small": (PAPER_WIDTH, 64, 5, MODELS[:2]),
    "paper": (PAPER_WIDTH, 64, 50, MODELS),
}


def cells(scale: str) -> list[Cell]:
    """Every stage of the RevNets on images like CIFAR-10's, timed under PETRA."""
    width, batch_size, repetitions, models = SETTINGS[scale]
    known = catalogue.CIFAR10
    return [
        StageCostCell(
            scale=scale,
            dataset=known.name,
            image_size=known.image_size,
            model=model,
            stem=known.stem,
            width=width,
            method=methods.PETRA.name,
            accumulation=1,
            batch_size=batch_size,
            seed=0,
            repetitions=repetitions,
        )
        for model in models
    ]


@dataclass(frozen=True)
class Modelled:
    """The times of one network, from the measured costs of its stages."""

    run: Run[StageCostCell]

    @property
    def title(self) -> str:
        """As tables call the network."""
        return _title(self.run.cell.model)

    @property
    def costs(self) -> list[Cost]:
        """Of each stage; medians."""
        k = self.run.cell.accumulation
        return [
            Cost(
                row["forward"]["median"],
                row["backward"]["median"],
                row["update"]["median"] / k,
                row["bytes_up"],
                row["bytes_down"],
            )
            for row in self.run.result["stages"]
        ]

    def speedup(self, link: Link = NO_LINK) -> float:
        """Time of reversible backpropagation without overlap over that of PETRA."""
        return one_at_a_time(self.costs, link) / pipelined(self.costs, link)

    @property
    def machine(self) -> str:
        """Where it was measured, and how busy it was."""
        environment, result = self.run.environments[-1], self.run.result
        name = environment["device"] if environment["device"] != "cpu" else environment["processor"]
        load = " and ".join(f"{load:.1f}" for load in result["load"])
        threads = "1 thread" if environment["threads"] == 1 else f"{environment['threads']} threads"
        return f"{name}, {threads}; load before and after {load} on {result['cores']} cores"


def section(results: Results) -> Section:
    """Published beside modelled, then scale by scale the times and what each stage costs."""
    runs = sorted(results.of_kind(StageCostCell), key=_order)
    found = [Modelled(run) for run in runs if run.done]
    scales = dict.fromkeys(m.run.cell.scale for m in found)
    by_scale = {scale: [m for m in found if m.run.cell.scale == scale] for scale in scales}
    blocks: list[Block] = [_INTRODUCTION, _published_table(runs)]
    for scale, own in reversed(by_scale.items()):  # the largest first
        blocks += [_table(scale, own), _figure(scale, own)]
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
    "update (medians; the first turns are left out). Without overlap a micro-batch takes the sum of all forwards and "
    "backwards and the update of stage 0; PETRA takes the turn of the slowest stage. Devices are taken to be equal to "
    "the one that was measured, and, unless a link is named, messages to take no time. With perfectly balanced stages "
    "the speed-up would be J."
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
        modelled = (
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
                modelled,
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
    costs = m.costs
    work = sum(cost.turn for cost in costs)
    pace = pipelined(costs)
    last = slowest(costs)
    return [
        text(m.title),
        number(len(costs), 0, tone=Tone.PLAIN),
        number(1e3 * one_at_a_time(costs), 1),
        number(1e3 * pace, 1),
        number(m.speedup(), 2),
        number(m.speedup(STATED_LINK), 2),
        number(len(costs), 0),
        number(last, 0),
        number(100 * costs[last].turn / work, 1),
        number(100 * (1 - work / (len(costs) * pace)), 1),
        number(devices_enough(costs), 0),
    ]


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
        pace = pipelined(m.costs)
        for row, cost in zip(m.run.result["stages"], m.costs, strict=True):
            body.append(
                [
                    text(f"{m.title}, {m.run.cell.repetitions} turns timed"),
                    number(row["stage"], 0, tone=Tone.PLAIN),
                    text("reversible" if row["invertible"] else "buffered" if cost.up else "head"),
                    *(number(1e3 * seconds, 2) for seconds in (cost.forward, cost.backward, cost.update)),
                    number(cost.turn / pace, 2),
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
        f"{m.title}: the slowest is stage {slowest(m.costs)} with {1e3 * pipelined(m.costs):.3g} ms, the mean of all "
        f"stages is {1e3 * sum(cost.turn for cost in m.costs) / len(m.costs):.3g} ms."
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
        heights = [1e3 * getattr(cost, name) for cost in m.costs]
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


def _order(run: Run[StageCostCell]) -> tuple[int, str, str]:
    scales = list(SCALES)
    scale = run.cell.scale
    return scales.index(scale) if scale in scales else -1, scale, run.cell.model
