"""The three pictures on top of the report: what PETRA reaches, what it holds, how fast it is.

Each is of the largest scale that has data, and says so. They show nothing that the exhibits below do not.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from petra_core import methods
from petra_core.ledger import KINDS
from reproduce.cells.kinds import StageCostCell, TrainingCell
from reproduce.exhibits import length
from reproduce.exhibits._exhibit import Sentence, sheets
from reproduce.grids.plans import PLANS
from reproduce.grids.plans.figure4 import NETWORK
from reproduce.grids.scales import SCALES
from reproduce.modelling.modelled import timed_networks
from reproduce.modelling.tradeoff import WAYS, taken
from reproduce.records.frames import Frame, Frames, Sheet
from reproduce.show import facets, plots
from reproduce.show.compare import means
from reproduce.show.content import GIGABYTE, Figure, short_title, with_sign
from reproduce.show.facets import KIND_LOOKS, Look, facet

__all__ = ["Headline", "claim", "headlines"]


@dataclass(frozen=True)
class Headline:
    """A picture with one sentence, and the section that it leads to."""

    sentence: str
    figure: Figure
    anchor: str


def claim(frames: Frames) -> str:
    """What is known of the paper's claim that PETRA is as good as backpropagation."""
    begun = (sheet for sheet in sheets(frames, length.EXHIBIT.key) if sheet.begun)
    known = next((shown.words for sheet in begun for shown in length.each(sheet) if isinstance(shown, Sentence)), "")
    papers = [sheet for sheet in sheets(frames, "table2") if sheet.scale == "paper"]
    done, planned = (sum(map(len, runs)) for runs in zip(*((sheet.done, sheet.runs) for sheet in papers), strict=True))
    return (
        f"Is PETRA as good as backpropagation, as the paper says? {known} Of the {planned} runs of Table 2 at the "
        f"paper's own scale {done or 'none'} {'has' if done < 2 else 'have'} been made."
    )


def headlines(frames: Frames) -> list[Headline]:
    """Those of which there are data: accuracy against k, bytes by method, speed against devices."""
    return [*_accuracy(frames), *_memory(frames), *_speed(frames)]


def _largest(frames: Frames, *plans: str, kind: type = TrainingCell) -> Iterator[Sheet]:
    """The sheet of the largest scale at which a cell of this kind in these plans is finished."""
    for scale in reversed(SCALES):
        cells = dict.fromkeys(c for plan in plans for c in PLANS[plan](scale) if isinstance(c, kind))
        for sheet in frames.sheets(scale, list(cells)):
            if not sheet.done.empty:
                yield sheet
                return


def _accuracy(frames: Frames) -> Iterator[Headline]:
    for sheet in _largest(frames, "figure4", "accuracy"):
        runs = sheet.done[sheet.done["model"] == NETWORK]
        runs = runs[runs["batch_size"] == runs["batch_size"].min()]  # without backpropagation at a fixed batch
        accuracy = means(runs, "test_accuracy", ["method", "k"])
        gaps = {
            k: found.mean
            for method, k in accuracy
            if method == methods.PETRA.name
            and (found := (accuracy[method, k] - accuracy[methods.BACKPROPAGATION.name, k]).estimate)
        }
        if not gaps:
            return
        ends = dict.fromkeys((min(gaps), max(gaps)))
        setting = sheet.described(network=True)
        yield Headline(
            "PETRA less backpropagation, points of accuracy: "
            + ", ".join(f"{with_sign(gaps[k], 1)} at k = {k}" for k in ends)
            + f" (scale “{sheet.scale}”).",
            facet(
                runs,
                [facets.line("interval"), facets.cut_to(runs, "test_accuracy")],
                key="headline-accuracy",
                title="Accuracy against k",
                caption=f"Test accuracy against k, micro-batches of an update ({setting}). Line: mean over the seeds; "
                "band: 95 % interval.",
                x="k",
                y="test_accuracy",
                xlabel="k",
                ylabel="test accuracy, %",
                xlog=True,
                ticks=sorted(set(runs["k"])),
                height=4.2,
                width=5.2,
            ),
            "figure4",
        )


def _memory(frames: Frames) -> Iterator[Headline]:
    """The largest network that was really held under all four configurations of Table 3."""
    for scale in reversed(SCALES):
        held = []
        for sheet in frames.sheets(scale, PLANS["table3"](scale)):
            for subject, runs in sheet.done.groupby(["network", "dataset", "batch_size"]):
                if len(runs) == len(set(sheet.runs["method"])):
                    parts = frames.parts(runs["cell"]).merge(runs[["cell", "method"]], on="cell")
                    peaks = parts[(parts["of"] == "peak") & parts["kind"].isin(KINDS)]
                    held.append((peaks["value"].sum(), subject, peaks))
        if not held:
            continue
        _, (network, dataset, batch), peaks = max(held, key=lambda one: one[0])
        sums = (peaks.groupby("method")["value"].sum() / GIGABYTE).sort_values(ascending=False)
        unit, name = (1.0, "GB") if sums.max() > 0.5 else (1e3, "MB")
        order = [methods.by_name(method) for method in sums.index]
        petra, most = sums[methods.PETRA.name], sums.max()
        bars = Frame(
            {
                "way": [short_title(methods.by_name(method)) for method in peaks["method"]],
                "kind": peaks["kind"],
                "amount": peaks["value"] / GIGABYTE * unit,
            }
        )
        bars["place"] = bars["way"].map([short_title(method) for method in order].index)
        yield Headline(
            f"PETRA held {petra * unit:.2f} {name} where {order[0].title.lower()} held {most * unit:.2f} {name}, "
            f"{100 * (1 - petra / most):.0f} % less (scale “{scale}”).",
            facet(
                bars.sort_values("place", kind="stable"),
                [facets.stack(sums=".2f")],
                key="headline-memory",
                title="Bytes held by each method",
                caption=f"Bytes held by each method, all stages ({network}, {dataset}, batch {batch}, k = 1, scale "
                f"“{scale}”), by kind, each at its largest moment; measured.",
                x="way",
                y="amount",
                hue="kind",
                looks=KIND_LOOKS,
                xlabel=name,
                height=4.2,
                width=5.2,
                legend="area",
            ),
            "table3",
        )
        return


SPEED_K = 16
SPEED_LOOKS = {
    "PETRA": Look("PETRA", plots.COLOURS[methods.PETRA]),
    "1F1B": Look("1F1B", "#0072b2", (4, 1.5), "s"),
    "1F1B, checkpointing": Look("1F1B, checkpointing", "#0072b2", (1, 1), "s"),
    "GPipe": Look("GPipe", "#7a5195", (5, 1, 1, 1), "^"),
    "Reversible backpropagation": Look("Reversible backpropagation", plots.COLOURS[methods.REVERSIBLE_BACKPROPAGATION]),
}


def _speed(frames: Frames) -> Iterator[Headline]:
    """Modelled from measured stage costs; beside it what the benchmark of pipelines measured with two processes."""
    ways = {way.title: way for way in WAYS}
    for sheet in _largest(frames, "table5", kind=StageCostCell):
        network = timed_networks(sheet)[0]
        stages, most = network.balance, len(network.costs)
        alone = taken(stages, network.invertible, ways["Backpropagation"], 1, SPEED_K).seconds
        speeds = {
            (p, title): alone / taken(stages, network.invertible, ways[title], p, SPEED_K).seconds
            for title in SPEED_LOOKS
            for p in range(1, most + 1)
        }
        measured = _measured(frames)
        yield Headline(
            f"On {most} devices PETRA is modelled at {speeds[most, 'PETRA']:.1f} times the speed of one that "
            f"backpropagates, the synchronous 1F1B at {speeds[most, '1F1B']:.1f} times (scale “{sheet.scale}”).",
            facet(
                [
                    {"devices": p, "way": way, "modelled": speed, "measured": measured.get(way) if p == 2 else None}
                    for (p, way), speed in speeds.items()
                ],
                [facets.line(), facets.also("measured", facets.dots(size=6))],
                key="headline-speed",
                title="Speed against the number of devices",
                caption="Speed over one device that backpropagates. Lines: modelled from measured stage costs "
                f"({sheet.done['network'].iloc[0]}, micro-batches of {stages.cell.batch_size}, k = {SPEED_K}, scale "
                f"“{sheet.scale}”; links take no time)."
                + (" Marks: measured, the benchmark “pipelining”, two processes on a CPU." if measured else ""),
                x="devices",
                y="modelled",
                hue="way",
                looks=SPEED_LOOKS,
                xlabel="devices",
                ylabel="speed, one device with backpropagation = 1",
                height=4.2,
                width=5.2,
            ),
            "tradeoff",
        )


def _measured(frames: Frames) -> dict[str, float]:
    """Throughput of the ways with two processes, over that of autograd in one."""
    series = frames.series
    ours = series[(series["benchmark"] == "pipelining") & (series["quantity"] == "throughput")]
    medians = ours[ours["group"].str.startswith(NETWORK)].groupby("contestant")["value"].median()
    return {way: medians[way] / medians["autograd, one process"] for way in SPEED_LOOKS if way in medians}
