"""The three pictures on top of the report: what PETRA reaches, what it holds, how fast it is.

Each is of the largest scale that has data, and says so. What is modelled of speed follows from the stage costs of
Table 5; the other numbers stand in exhibits too.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from petra_core import methods
from reproduce.cells.kinds import TrainingCell
from reproduce.exhibits import length
from reproduce.exhibits._exhibit import Sentence, first, sheets
from reproduce.exhibits.table5 import largest
from reproduce.grids.plans import PLANS
from reproduce.grids.plans.figure4 import NETWORK
from reproduce.grids.plans.table4 import METHODS
from reproduce.grids.scales import SCALES
from reproduce.modelling.held import by_kind, held
from reproduce.modelling.modelled import timed_networks
from reproduce.modelling.tradeoff import WAYS, taken
from reproduce.records.frames import Frames, Sheet
from reproduce.show import facets
from reproduce.show.compare import bounded, means
from reproduce.show.content import GIGABYTE, Figure, short_title

__all__ = ["Headline", "claim", "headlines"]

HEIGHT, WIDTH = 4.2, 5.2  # of a picture, inches
BACKPROPAGATION, PETRA = methods.BACKPROPAGATION.name, methods.PETRA.name


@dataclass(frozen=True)
class Headline:
    """A picture with one sentence, and the section that it leads to."""

    sentence: str
    figure: Figure
    anchor: str


def claim(frames: Frames) -> str:
    """What is known of the paper's claim that PETRA is as good as backpropagation."""
    begun = [sheet for sheet in sheets(frames, length.EXHIBIT.key) if sheet.begun]
    known = first([shown for sheet in begun for shown in length.each(sheet) if isinstance(shown, Sentence)])
    papers = [sheet for sheet in sheets(frames, "table2") if sheet.scale == "paper"]
    done, planned = sum(len(sheet.done) for sheet in papers), sum(len(sheet.runs) for sheet in papers)
    return (
        f"Is PETRA as good as backpropagation, as the paper says? {known} Of the {planned} runs of Table 2 at the "
        f"paper's own scale {done or 'none'} {'has' if done < 2 else 'have'} been made."
    )


def headlines(frames: Frames) -> list[Headline]:
    """The pictures of which there are data: accuracy against k, bytes by method, speed against devices."""
    return [*_accuracy(frames), *_memory(frames), *_speed(frames)]


def _accuracy(frames: Frames) -> Iterator[Headline]:
    """Of the largest scale at which there is a pair."""
    for scale in reversed(SCALES):
        plans = (PLANS[name](scale) for name in ("figure4", "accuracy"))
        cells = dict.fromkeys(cell for plan in plans for cell in plan if isinstance(cell, TrainingCell))
        for sheet in frames.sheets(scale, list(cells)):
            if not sheet.done.empty and (shown := _accuracy_of(sheet)):
                yield shown
                return


def _accuracy_of(sheet: Sheet) -> Headline | None:
    runs = sheet.done[sheet.done["model"] == NETWORK]
    of_petra = runs["batch_size"] == runs["batch_size"].min()
    fixed = means(runs[~of_petra], "test_accuracy", ["method"])[BACKPROPAGATION]  # the paper's baseline
    runs = runs[of_petra]
    accuracy = means(runs, "test_accuracy", ["method", "k"])
    gaps = {k: accuracy[PETRA, k] - accuracy[BACKPROPAGATION, k] for k in sorted(set(runs["k"]))}
    if not (known := [k for k, gap in gaps.items() if gap.values]):
        return None
    ends = dict.fromkeys((known[0], known[-1]))
    at_fixed = ", ".join(bounded(accuracy[PETRA, k] - fixed) for k in ends)
    return Headline(
        "PETRA less backpropagation at the same effective batch, points: "
        f"{', '.join(f'{bounded(gaps[k])} at k = {k}' for k in ends)}"
        f"{f'; at a fixed batch, as in the paper, {at_fixed}' * bool(fixed.values)} (scale “{sheet.scale}”).",
        facets.facet(
            runs,
            [facets.line("interval"), facets.cut_to(runs, "test_accuracy")],
            key="headline-accuracy",
            caption=f"Test accuracy against k, micro-batches of an update ({sheet.described(network=True)}). Line: "
            "mean over the seeds; band: 95 % interval.",
            x="k",
            y="test_accuracy",
            height=HEIGHT,
            width=WIDTH,
        ),
        "figure4",
    )


def _memory(frames: Frames) -> Iterator[Headline]:
    """The largest network that was really held under all four configurations of Table 3."""
    for sheet in sheets(frames, "table3"):
        runs = held(sheet, GIGABYTE).sort_values("held", ascending=False)
        runs = runs[runs.groupby("subject")["held"].transform("count") == len(METHODS)]
        if runs.empty:
            continue
        shown = runs[runs["subject"] == runs["subject"].iloc[0]]
        most, petra = shown.iloc[0], shown[shown["method"] == PETRA].iloc[0]
        bars = by_kind(frames, shown)
        bars["way"] = [short_title(methods.by_name(name)) for name in bars["method"]]
        yield Headline(
            f"PETRA held {petra['held']:.3g} GB where {methods.by_name(most['method']).title.lower()} held "
            f"{most['held']:.3g} GB, {100 * (1 - petra['held'] / most['held']):.0f} % less (scale “{sheet.scale}”).",
            facets.facet(
                bars.assign(gigabytes=bars["value"] / GIGABYTE),
                [facets.stack(sums=".3g")],
                key="headline-memory",
                caption=f"Bytes held by each method, all stages ({most['subject']}, k = 1, scale “{sheet.scale}”), by "
                "kind, each at its largest moment; measured.",
                x="way",
                y="gigabytes",
                hue="kind",
                looks=facets.KIND_LOOKS,
                xlabel="GB",
                height=HEIGHT,
                width=WIDTH,
                legend="area",
            ),
            "table3",
        )
        return


SPEED_K = 16
SPEED_LOOKS = {
    way: facets.TITLE_LOOKS[way]
    for way in ("PETRA", "1F1B", "1F1B, checkpointing", "GPipe", "Reversible backpropagation")
}


def _speed(frames: Frames) -> Iterator[Headline]:
    """Modelled from measured stage costs; beside it what the benchmark of pipelines measured with two processes."""
    if not (sheet := largest(frames)):
        return
    network, ways = timed_networks(sheet)[0], {way.title: way for way in WAYS}

    def seconds(title: str, devices: int) -> float:
        return taken(network.balance, network.invertible, ways[title], devices, SPEED_K).seconds

    most, alone = len(network.costs), seconds("Backpropagation", 1)
    speeds = {(title, p): alone / seconds(title, p) for title in SPEED_LOOKS for p in range(1, most + 1)}
    measured, where = _measured_speeds(frames)
    slower = max((p for p in range(1, most + 1) if speeds["PETRA", p] < speeds["1F1B", p]), default=0)
    pair = [f"{measured[way]:.2f}" for way in ("PETRA", "1F1B") if way in measured]
    by_two = f"; measured with two processes: {' and '.join(pair)}" * bool(pair)
    network_title = sheet.done["network"].iloc[0]
    yield Headline(
        f"{network_title} on {most} devices, modelled: PETRA {speeds['PETRA', most]:.1f} times as fast as one device "
        f"that backpropagates, the synchronous 1F1B {speeds['1F1B', most]:.1f}{by_two} (scale “{sheet.scale}”).",
        facets.facet(
            [
                {"way": title, "devices": p, "modelled": speed, "measured": measured.get(title) if p == 2 else None}
                for (title, p), speed in speeds.items()
            ],
            [facets.line(), facets.also("measured", facets.dots(size=6))],
            key="headline-speed",
            caption="Speed over one device that backpropagates. Lines: modelled from the stage costs of Table 5 "
            f"({network_title}, micro-batches of {network.balance.cell.batch_size}, k = {SPEED_K}, "
            f"scale “{sheet.scale}”; timed on {network.machine}; links take no time)."
            f"{f' 1F1B is ahead on up to {slower} devices.' * bool(slower)}{where}",
            x="devices",
            y="modelled",
            hue="way",
            looks=SPEED_LOOKS,
            xlabel="devices",
            ylabel="speed, one device with backpropagation = 1",
            height=HEIGHT,
            width=WIDTH,
        ),
        "table5",
    )


def _measured_speeds(frames: Frames) -> tuple[dict[str, float], str]:
    """Speeds of two processes over one that backpropagates, medians of ratios within a round; and their setting."""
    series = frames.series.query("benchmark == 'pipelining' and quantity == 'throughput'")
    rounds = series[series["group"].str.startswith(NETWORK)].pivot(index="round", columns="contestant", values="value")
    record = next((record for record in frames.results.benchmarks if record.name == "pipelining"), None)
    if record is None or rounds.empty:
        return {}, ""
    setting = record.setting
    where = f"width {setting['width']}, micro-batches of {setting['batch']}, k = {setting['micro_batches']}"
    medians = rounds.div(rounds["autograd, one process"], axis=0).median()
    return dict(medians), f" Marks: two processes, measured ({where}; benchmark “pipelining”)."
