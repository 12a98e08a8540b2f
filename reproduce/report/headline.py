"""Make the first screen: the answers in words, and three pictures of one network at one setting.

The pictures show RevNet-18 at the width of the scale `small`, the only network with runs of several lengths, measured
bytes and timed stages. Every sentence is computed from the records, the published values and the model of the
trade-off, so it changes with them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, takewhile
from typing import Any

from pandas import DataFrame, concat

from petra_core import methods
from reproduce import published
from reproduce.cells import timing
from reproduce.cells.kinds import TrainedCell
from reproduce.cells.networks import title_of, title_of_convolutional
from reproduce.exhibits import length
from reproduce.exhibits._exhibit import run_sets, text_of
from reproduce.exhibits.figure5 import count_reconstructing
from reproduce.exhibits.primary import Primary, compare_variant, primaries
from reproduce.exhibits.staleness import Modelled, model, number_of_devices
from reproduce.exhibits.table2 import BEST
from reproduce.grids.grid import cells_of
from reproduce.grids.plans import PLANS
from reproduce.grids.plans import staleness as plan
from reproduce.grids.plans.length import NETWORK
from reproduce.grids.plans.length import PETRA as VARIANT
from reproduce.modelling.network import TimedNetwork, read_timed_networks
from reproduce.modelling.strategies import STRATEGIES, Sharing, Strategy, evaluate_best
from reproduce.presentation import facets, plots
from reproduce.presentation.compare import Difference, SeedSamples, format_difference, means, with_intervals
from reproduce.presentation.content import Figure, in_prose, short_title
from reproduce.presentation.statistics import Verdict
from reproduce.records.benchmarks import PEAK_OF_ALL, THROUGHPUT, Comparison
from reproduce.records.frames import Frames, RunSet, settings_key
from reproduce.records.gradients import kinds_of
from reproduce.text import conjunction, count

#: What the page asks, and the terms of its answers and pictures.
QUESTION = text_of("headline", "question")
TERMS = text_of("headline", "terms")

SCALE = "small"
BY = ["method", "epochs", "staleness"]  # settings of a mark in the first picture
HEIGHT, WIDTH = 4.2, 5.2  # of a picture, in inches
WAYS = {way.title: way for way in STRATEGIES}
PAPER_WIDTH = 64  # channels of the first blocks of the paper's networks
OF_CHAIN = "PETRA − DSP"  # the primary comparison on the chain
BACKPROPAGATION, PETRA, DSP, DELAYED = (
    m.name for m in (methods.BACKPROPAGATION, methods.PETRA, methods.DSP, methods.DELAYED_GRADIENTS)
)


@dataclass(frozen=True)
class Answer:
    """An answer: one line, a picture, and the numbers in words.

    Attributes:
        title: The answer in one line.
        figure: The picture.
        text: What it is based on.
        anchor: Key of the section with its numbers.

    """

    title: str
    figure: Figure
    text: str
    anchor: str


def first_screen(frames: Frames) -> list[Answer]:
    """Return the answers for which there are data.

    Whether PETRA is as good as backpropagation, with accuracy against staleness; what it saves, with bytes by method;
    and when it is worth using, with speed against the number of devices.
    """
    answers: list[Answer] = []
    of_length = run_sets(frames, length.EXHIBIT.key)
    for run_set in [run_set for run_set in of_length if run_set.scale == SCALE and run_set.begun][:1]:
        answers += _as_good(frames, run_set)
    if (network := _find_timed(frames)) is not None:
        answers += [_saves(network), _worth(frames, network)]
    return answers


# --- is it as good?


def _as_good(frames: Frames, run_set: RunSet) -> Iterator[Answer]:
    known = {
        epochs: gap
        for (variant, epochs), gap in length.gaps(run_set, "final_accuracy").items()
        if variant == VARIANT and gap.estimate
    }
    if not known:
        return
    listed = [f"{format_difference(gap, trailing=True)} after {epochs}{_counts(gap)}" for epochs, gap in known.items()]
    cell = run_set.example
    width = f" at 1/{PAPER_WIDTH // cell.width} of the paper's width" * (cell.width < PAPER_WIDTH)
    network = title_of(cell).partition(",")[0]
    trails = text_of("headline", "trails", network=f"{network}{width}", k=VARIANT.k, listed=conjunction(listed))
    chain = compare_variant(frames, OF_CHAIN, {}, {"method": BACKPROPAGATION})
    figure, sooner = _accuracy(frames, run_set)
    parts = [trails, _on_same_machines(frames), sooner, _state_published_gaps()]
    parts += [_reconstruction(frames, run_set, chain), _at_paper_scale(frames)]
    yield Answer(_title(with_intervals(known), network, chain), figure, " ".join(filter(None, parts)), "length")


def _counts(gap: Difference) -> str:
    """Return the numbers of runs of a difference with an interval, as " (6 + 6)"."""
    known = gap.estimate
    return f" ({' + '.join(map(str, known.counts))})" if known and known.half_width is not None else ""


def _with_counts(gap: Difference, *, trailing: bool = False) -> str:
    """Format a difference with its numbers of runs, as "0.7 ± 0.3 (6 + 6)"; see `format_difference`."""
    return format_difference(gap, trailing=trailing) + _counts(gap)


def _on_same_machines(frames: Frames) -> str:
    """State the primary difference between PETRA and backpropagation over the runs on the machines of both."""
    primary = next(comparison for comparison in primaries(frames) if comparison.title == "PETRA − backpropagation")
    if not primary.accuracy.mixed or primary.alike.estimate is None:
        return ""
    gap = _with_counts(primary.alike, trailing=True)
    return text_of("headline", "alike", epochs=primary.epochs, gap=gap)


def _title(gaps: Mapping[int, Difference], network: str, chain: Primary) -> str:
    """Return the verdict of the longest training that has an interval.

    Args:
        gaps: Differences to backpropagation by number of epochs, those with an interval if there are any.
        network: Title of their network.
        chain: PETRA and backpropagation on the chain of 16.

    """
    epochs, gap = max(gaps.items())
    known = gap.estimate
    assert known is not None  # `gaps` contains only differences with an estimate
    if known.low is None or known.high is None:
        return "It is not yet known whether PETRA is as good as backpropagation: no training has several runs."
    if gap.verdict is Verdict.EQUAL:
        return f"After {epochs} epochs PETRA is as good as backpropagation, within half a point."
    if gap.verdict is Verdict.HIGHER:
        return f"After {epochs} epochs PETRA is better than backpropagation."
    if gap.verdict is Verdict.OPEN:
        return f"After {epochs} epochs it is still open whether PETRA is as good as backpropagation."
    shortest = gaps[min(gaps)].estimate
    before = f" ({-shortest.mean:.1f} after {min(gaps)} epochs)" if shortest and min(gaps) < epochs else ""
    lost = chain.accuracy.estimate if chain.epochs == epochs else None
    deeper = f", and {-lost.mean:.1f} on a chain of 16 blocks" if lost and (lost.high or 0) < 0 else ""
    below = f"{-known.mean:.1f} points below backpropagation on {network}{before}{deeper}"
    return f"After {epochs} epochs PETRA is {below}."


def _published_rows() -> dict[tuple[str, str, str], published.Row]:
    """Return the published accuracies by data set, model and method."""
    rows = published.read("table2_accuracy")
    return {(row["dataset"], row["model"], methods.by_name(row["method"]).name): row for row in rows}


def _state_published_gaps() -> str:
    """State the paper's differences on CIFAR-10 between PETRA and backpropagation on the same network."""
    rows = _published_rows()
    listed = conjunction(
        [
            f"{abs(rows[dataset, model, PETRA].number('top1_percent') - row.number('top1_percent')):.1f}"
            for (dataset, model, method), row in rows.items()
            if (dataset, method) == ("cifar10", BACKPROPAGATION) and (dataset, model, PETRA) in rows
        ]
    )
    return f"The paper reports gaps of {listed} points on CIFAR-10 for its three RevNets, after 300 epochs."


def _reconstruction(frames: Frames, run_set: RunSet, chain: Primary) -> str:
    """State the cost of reconstruction according to the primary comparisons, and on the chain that of PETRA."""
    by_title = {comparison.title: comparison for comparison in primaries(frames)}
    of_delayed, of_chain = by_title["PETRA − delayed gradients"], by_title[OF_CHAIN]
    text = ""
    if of_delayed.accuracy.estimate:
        gap = f"{_with_counts(of_delayed.accuracy)} points{_after_short_training(frames, run_set)}"
        where = count_reconstructing(next(iter(kinds_of(run_set).values())))
        text = text_of("headline", "delayed", epochs=of_delayed.epochs, gap=gap, seen=_seen(of_delayed), where=where)
    if of_chain.accuracy.estimate and chain.accuracy.estimate:
        behind, cost = (_with_counts(gap, trailing=True) for gap in (chain.accuracy, of_chain.accuracy))
        deep = text_of("headline", "chain", epochs=of_chain.epochs, behind=behind, cost=cost)
        return f"{text} {deep}{_at_half_the_staleness(frames)}"
    return f"{text} {text_of('headline', 'no_chain')}"


def _at_half_the_staleness(frames: Frames) -> str:
    """State the differences on the chain under asynchronous 1F1B, if it has been run."""
    asynchronous = {"timing": timing.ONE_F_ONE_B}
    sides = ({"method": BACKPROPAGATION}, asynchronous)
    gaps = [compare_variant(frames, OF_CHAIN, asynchronous, other).accuracy for other in sides]
    if not all(gap.estimate for gap in gaps):
        return ""
    behind, cost = (_with_counts(gap, trailing=True) for gap in gaps)
    return " " + text_of("headline", "half", behind=behind, cost=cost)


def _after_short_training(frames: Frames, run_set: RunSet) -> str:
    """State PETRA − delayed gradients in lockstep after the shortest training that has both; empty without one."""
    runs = _of_staleness(frames, run_set)
    reached, most = means(runs, "final_accuracy", BY), max(_numbers_of_devices())
    for epochs in sorted(set(runs["epochs"])):
        gap = reached[PETRA, epochs, most] - reached[DELAYED, epochs, most]
        if gap.estimate:
            return f", after {int(epochs)} epochs {_with_counts(gap)}"
    return ""


def _seen(comparison: Primary) -> str:
    verdict = comparison.accuracy.verdict
    if verdict is Verdict.LOWER and comparison.holds:
        return "reconstruction and current weights cost accuracy"
    if verdict is Verdict.HIGHER and comparison.holds:
        return "reconstruction and current weights cost no accuracy"
    if verdict is Verdict.EQUAL:
        return "no cost of reconstruction and current weights above half a point is left"
    return "whether reconstruction and current weights cost accuracy is open"


def _at_paper_scale(frames: Frames) -> str:
    """State how many runs of the paper's size are finished, and what a single one reached compared with the paper."""
    papers = [run_set for run_set in run_sets(frames, "table2") if run_set.scale == "paper"]
    planned = sum(len(run_set.planned) for run_set in {run_set.dataset: run_set for run_set in papers}.values())
    done = [row for run_set in papers for row in run_set.done.to_dict("records")]
    if not done:
        return f"None of the {planned} runs that Table 2 needs at the paper's size has been made yet."
    if len(done) > 1:
        return f"{len(done)} of the {planned} runs of Table 2 at the paper's size are finished."
    (single,) = done
    row = _published_rows().get((single["dataset"], single["model"], single["method"]))
    reached = f"{single[BEST]:.2f} %" + (f" (published: {row['top1_percent']} %)" if row else "")
    way = f"{methods.by_name(single['method']).title} on {single['network'].partition(',')[0]}"
    return text_of("headline", "single", planned=planned, way=way, reached=reached)


# --- what does it save?


def _hold(network: TimedNetwork, title: str, slack: float = 1) -> Modelled:
    """Return the cost of a strategy with one stage per device, or on one device if it has no pipeline.

    A synchronous pipeline has many micro-batches per update.
    """
    strategy = replace(WAYS[title], slack=slack)
    devices = len(network.costs) if strategy.method.pipelined else 1
    k = SPEED_K[-1] if strategy.schedule else VARIANT.k
    return model(network, evaluate_best(network, strategy, devices, k))


def _held(network: TimedNetwork) -> dict[str, Modelled]:
    """Return bytes by method, as the model of the trade-off predicts them from shapes.

    The bytes that runs have counted are not used: a single process orders the actions of its stages differently than
    devices that work at the same time, and so did engines of different versions.
    """
    return {name: _hold(network, methods.by_name(name).title) for name in (BACKPROPAGATION, PETRA, DSP, DELAYED)}


def _saves(network: TimedNetwork) -> Answer:
    held = _held(network)
    ours, rival, exact, sooner = held[PETRA], held[DSP], held[BACKPROPAGATION], _hold(network, OURS, slack=0)
    saved = [
        f"{100 * (1 - ours.total / held[name].total):.0f} % less than {in_prose(methods.by_name(name))}"
        for name in (DELAYED, DSP)
    ]
    same = ours.fullest > 0.98 * rival.fullest
    title = (
        "In total PETRA holds less than delayed gradients and DSP, but on the fullest device no less than DSP"
        if same
        else "PETRA holds less than delayed gradients and DSP on every device"
    )
    title += ", and there more than backpropagation on one device." if ours.fullest > exact.total else "."
    why = ", since a stage that cannot be inverted keeps its inputs under both" * same
    costs = ": pipelining itself costs memory" * (exact.total < ours.total)
    numbers = {"held": held, "sooner": sooner, "again": _hold(network, CHECKPOINTED), "k": SPEED_K[-1]}
    numbers |= {"devices": len(network.costs), "saved": conjunction(saved)}
    text = text_of("headline", "saves", why=why, costs=costs, **numbers)
    return Answer(title, _memory(network, held), text, "tradeoff")


# --- when is it worth it?


SPEED_K = (1, 4, 16, 32)
OURS, MERGED, PIPELINE, CHECKPOINTED = methods.PETRA.title, "PETRA, merged stages", "1F1B", "1F1B, checkpointing"
KEEPING = methods.DELAYED_GRADIENTS.title
SHOWN, ONE_PROCESS = (OURS, PIPELINE, CHECKPOINTED), "autograd, one process"  # of the benchmark “pipelining”
FASTER = 1.15  # least ratio of two speeds that counts as a difference: measured stage costs vary by about 15 %


def _find_timed(frames: Frames) -> TimedNetwork | None:
    """Return the network of the first screen with its timed stages; None if its stages are not timed."""
    of_scale = (run_set for run_set in run_sets(frames, "tradeoff") if run_set.scale == SCALE)
    timed = (network for run_set in of_scale for network in read_timed_networks(run_set))
    return next((network for network in timed if network.cell.model == NETWORK), None)


Speeds = dict[tuple[str, int, int], Modelled]  # by way of training, k and number of devices


def _speeds(network: TimedNetwork) -> Speeds:
    """Model PETRA with separate and with merged stages, delayed gradients, and 1F1B.

    "Merged" means that all stages of a device form one stage. A synchronous pipeline computes the same either way.
    """
    ways = WAYS | {MERGED: Strategy(MERGED, methods.PETRA, sharing=Sharing.EVERYTHING)}
    return {
        (title, k, devices): model(network, evaluate_best(network, ways[title], devices, k))
        for title in (OURS, MERGED, KEEPING, PIPELINE, CHECKPOINTED)
        for k in (SPEED_K if title != CHECKPOINTED else SPEED_K[-1:])
        for devices in sorted({1, 2, 4, 7, len(network.costs)})
    }


def _worth(frames: Frames, network: TimedNetwork) -> Answer:
    speeds = _speeds(network)
    several = sorted({devices for *_, devices in speeds} - {1})
    most = several[-1]

    def faster(k: int, devices: int) -> bool:
        return speeds[OURS, k, devices].speed >= FASTER * speeds[PIPELINE, k, devices].speed

    # By k, the least number of devices from which on PETRA is faster; 0 if it never is.
    ahead = {k: min(takewhile(partial(faster, k), reversed(several)), default=0) for k in SPEED_K}
    wins = [f"k = {k} from {count(least, 'device')} on" for k, least in ahead.items() if least]
    loses = [f"k = {k}" for k, least in ahead.items() if not least]
    won = text_of("headline", "faster", percent=100 * (FASTER - 1), wins=conjunction(wins))
    lost = f"At {conjunction(loses)} it is not, on up to {most} devices."
    few = max(SPEED_K)
    plain, apart, merged, checkpointed = (
        {devices: speeds[way, few, devices] for devices in several} for way in (PIPELINE, OURS, MERGED, CHECKPOINTED)
    )
    beaten = [d for d in several if plain[d].speed >= apart[d].speed and plain[d].fullest < apart[d].fullest]
    better = text_of("headline", "beaten", devices=conjunction([str(devices) for devices in beaten]), k=few)
    merging = ""
    if beaten and all(merged[devices].fullest <= plain[devices].fullest for devices in beaten):
        sizes, theirs, again = (
            conjunction([f"{way[devices].fullest:.0f}" for devices in beaten]) for way in (merged, plain, checkpointed)
        )
        merging = text_of("headline", "merged", sizes=sizes, theirs=theirs, again=again)
    title = (
        "In the model PETRA is faster than synchronous 1F1B only where few micro-batches make an update."
        if wins and loses
        else "In the model PETRA is faster than synchronous 1F1B."
        if wins
        else "In the model synchronous 1F1B is as fast as PETRA, and exact."
    )
    reached = [_list_range(speeds, way, most) for way in (OURS, KEEPING, PIPELINE)]
    times = text_of("headline", "times", most=most, low=min(SPEED_K), high=max(SPEED_K), reached=reached)
    parts = [times, won * bool(wins), lost * bool(loses), better * bool(beaten), merging]
    text = " ".join(filter(None, [*parts, _state_measured_speeds(frames)]))
    return Answer(title, _draw_speed(network, speeds), text, "tradeoff")


def _list_range(speeds: Speeds, way: str, devices: int) -> str:
    """Return the lowest and the highest speed of a way over k, as "1.1 to 5.5"."""
    reached = [speeds[way, k, devices].speed for k in SPEED_K]
    return f"{min(reached):.1f} to {max(reached):.1f}"


def _state_measured_speeds(frames: Frames) -> str:
    """State speeds of two processes relative to one process with backpropagation, and peak memory, for every network.

    Each speed is the median over rounds of ratios within a round.
    """
    for record in (record for record in frames.results.benchmarks if record.name == "pipelining"):
        listed = []
        for group in dict.fromkeys(series.group for series in record.series):
            timed = {series.name for series in record.series if (series.group, series.quantity) == (group, THROUGHPUT)}
            if {OURS, PIPELINE} <= timed:
                ratios = [Comparison(group, THROUGHPUT, name, ONE_PROCESS) for name in SHOWN if name in timed]
                peaks = {s.name: s.values[0] for s in record.series if (s.group, s.quantity) == (group, PEAK_OF_ALL)}
                speeds = [
                    f"{r.first.replace(', ', ' with ')} {record.spread(r).median:.2f} with {peaks[r.first]:.0f} MB"
                    for r in ratios
                ]
                speeds.append(f"one process 1 with {peaks[ONE_PROCESS]:.0f} MB")
                network, _, width = group.partition(",")
                listed.append(f"{conjunction(speeds)} ({title_of_convolutional(network)},{width})")
        if listed:
            measured = {"where": record.environment["processor"], "k": record.setting["micro_batches"]}
            measured |= {"rounds": record.setting["rounds"], "speeds": "; ".join(listed)}
            return text_of("headline", "measured", **measured)
    return ""


# --- pictures


def _accuracy(frames: Frames, run_set: RunSet) -> tuple[Figure, str]:
    """Draw accuracy against the staleness of the first stage, and state it; mark what has not been run."""
    runs = _of_staleness(frames, run_set)
    named, reached = _numbers_of_devices(), means(runs, "final_accuracy", BY)
    absent = sorted(named.keys() - set(runs["staleness"]))
    setting = run_set.describe(runs, network=True, length=False)
    figure = facets.facet(
        runs,
        [_lengths(reached, named, absent)],
        key="headline-accuracy",
        caption=text_of("headline", "accuracy", k=VARIANT.k, setting=setting),
        title=f"{title_of(run_set.example)}: accuracy against staleness",
        x=facets.Axis("staleness", label="staleness, micro-batches; devices"),
        y=facets.Axis("final_accuracy", label="test accuracy, %"),
        panels=facets.Panels(height=HEIGHT, width=WIDTH),
        legend="mark",
    )
    return figure, _with_less_staleness(reached, named)


def _points() -> Iterator[TrainedCell]:
    """Yield the cells of the network at every staleness and length that are planned for the picture."""
    parts = (plan.curve, plan.longer, plan.longest, lambda: cells_of(PLANS[length.EXHIBIT.key], SCALE))
    for cell in (cell for part in parts for cell in part()):
        if isinstance(cell, TrainedCell) and (cell.model, cell.accumulation) == (NETWORK, VARIANT.k):
            yield cell


def _of_staleness(frames: Frames, run_set: RunSet) -> DataFrame:
    """Return the finished runs of the picture that have the arithmetic of `run_set`."""
    wanted = {settings_key(cell) for cell in _points()}
    run_sets_of_both = [*run_sets(frames, length.EXHIBIT.key), *run_sets(frames, "staleness")]
    runs = concat(
        [
            candidate.done
            for candidate in run_sets_of_both
            if candidate.key == run_set.key and candidate.dataset == run_set.dataset
        ]
    )
    runs = runs[runs["settings"].isin(wanted) & runs["method"].isin([BACKPROPAGATION, PETRA, DELAYED])]
    return runs.drop_duplicates("cell").astype({"staleness": int})


def _numbers_of_devices() -> dict[int, str]:
    """Return for each planned staleness the number of devices with one stage each, and a mark of the timing."""
    named = {0: "1"}
    for cell in _points():
        if vector := timing.vector(cell):
            named.setdefault(vector[0], number_of_devices(cell))
    return named


def _with_less_staleness(reached: SeedSamples, named: Mapping[int, str]) -> str:
    """State what PETRA loses at less than the largest staleness, by length of training; empty without runs."""
    parts = []
    for epochs in sorted({epochs for _, epochs, _ in reached}):
        gaps = {at: reached[PETRA, epochs, at] - reached[BACKPROPAGATION, epochs, 0] for at in sorted(named)[1:-1]}
        if listed := [f"{_with_counts(gap)} at a staleness of {at}" for at, gap in gaps.items() if _counts(gap)]:
            parts.append(f"{conjunction(listed)} after {int(epochs)} epochs")
    return text_of("headline", "sooner", parts="; ".join(parts), most=max(named)) if parts else ""


def _lengths(reached: SeedSamples, named: Mapping[int, str], absent: Sequence[int]) -> facets.Layer:
    """Draw the means of each method and length, joined where no staleness between them is missing."""

    def lengths(panel: facets.Panel) -> None:
        shift = {BACKPROPAGATION: 0.0, PETRA: -0.12, DELAYED: 0.12}
        for method, epochs in sorted({place[:2] for place in reached}):
            own = {at: sample.estimate for (*line, at), sample in reached.items() if line == [method, epochs]}
            look, start = panel.looks[method], reached[BACKPROPAGATION, epochs, 0].estimate
            points = [(at + shift[method], known) for at, known in sorted(own.items()) if known]
            for x, known in points:
                bar = [[known.half_width or 0.0]]
                panel.axes.errorbar([x], [known.mean], yerr=bar, fmt=look.marker, color=look.colour, markersize=4.5)
                if method == BACKPROPAGATION or (method == PETRA and round(x) == max(named)):
                    side, beside = ("left", 6) if method == BACKPROPAGATION else ("right", -6)
                    style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7.5, "ha": side}
                    panel.axes.annotate(f"{epochs:.0f} epochs", (x, known.mean), (beside, 3), **style)
            if method != BACKPROPAGATION and start:
                line = {0: (0.0, start.mean)} | {round(x): (x, known.mean) for x, known in points}
                for ends in pairwise(sorted(named)):
                    if line.keys() >= set(ends):  # no line across a staleness that has not been run
                        segment = [line[end] for end in ends]
                        panel.axes.plot(*zip(*segment, strict=True), color=look.colour, linewidth=0.8, dashes=(4, 2))
        low, _ = panel.axes.get_ylim()
        for place in absent:
            panel.axes.axvspan(place - 0.3, place + 0.3, color=plots.QUIET, alpha=0.07, linewidth=0)
            panel.axes.text(place, low, " not run", rotation=90, ha="center", va="bottom", fontsize=7.5)
        labels = [f"{staleness}\n{devices}" for staleness, devices in sorted(named.items())]
        panel.axes.set_xticks(sorted(named), labels, fontsize=7.5)
        panel.axes.set_xlim(-0.8, max(named) + 0.8)

    return lengths


FULLEST, OTHERS = "fullest device", "all other devices"


def _memory(network: TimedNetwork, held: Mapping[str, Modelled]) -> Figure:
    named = {short_title(methods.by_name(name)): amounts for name, amounts in held.items()} | {
        f"{title.replace(', ', ' with ')}, k = {SPEED_K[-1]}": _hold(network, title)
        for title in (PIPELINE, CHECKPOINTED)
    }
    bars = [
        {"way": way, "part": part, "MB": amount}
        for way, amounts in named.items()
        for part, amount in ((FULLEST, amounts.fullest), (OTHERS, amounts.total - amounts.fullest))
    ]
    return facets.facet(
        bars,
        [facets.stack(sums=".0f")],
        key="headline-memory",
        caption=text_of("headline", "memory", title=title_of(network.cell), network=network, k=VARIANT.k),
        title=f"{title_of(network.cell)}: bytes by method",
        x=facets.Axis("way", label="MB"),
        y=facets.Axis("MB", label=""),
        hue="part",
        looks={FULLEST: facets.Look(FULLEST, plots.INK), OTHERS: facets.Look(OTHERS, "#9a9a96")},
        panels=facets.Panels(height=HEIGHT, width=WIDTH),
        legend="area",
    )


def _draw_speed(network: TimedNetwork, speeds: Speeds) -> Figure:
    low, high = min(SPEED_K), max(SPEED_K)
    drawn = [
        {"line": f"{PIPELINE}, k = {k}" if way == PIPELINE else way, "devices": devices, "speed": cost.speed}
        for (way, k, devices), cost in speeds.items()
        if way in (OURS, KEEPING, PIPELINE)
    ]
    change = max(
        abs(speeds[MERGED, k, n].speed / cost.speed - 1) for (way, k, n), cost in speeds.items() if way == OURS
    )
    at_most = f"at most {100 * change:.0f} %" if change >= 0.005 else "less than 0.5 %"
    dashes: list[tuple[float, ...]] = [(1, 1), (3, 1.5), (6, 2), ()]
    looks = {way: facets.TITLE_LOOKS[way] for way in (OURS, KEEPING)} | {
        f"{PIPELINE}, k = {k}": facets.Look(f"{PIPELINE}, k = {k}", "#0072b2", dashes[place], "s")
        for place, k in enumerate(SPEED_K)
    }
    return facets.facet(
        drawn,
        [facets.line("range", marked=True)],
        key="headline-speed",
        caption=text_of("headline", "speed", network=network, low=low, high=high, at_most=at_most),
        title=f"{network.title}, width {network.cell.width}: speed against devices",
        x=facets.Axis("devices", label="devices"),
        y=facets.Axis("speed", label="speed, one device with backpropagation = 1"),
        hue="line",
        looks=looks,
        panels=facets.Panels(height=HEIGHT, width=WIDTH),
    )
