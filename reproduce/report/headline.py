"""Make the first screen: the answers in words, and three pictures of one network at one setting.

The pictures show RevNet-18 at the width of the scale `small`, the only network with runs of several lengths, measured
bytes and timed stages. Every sentence is computed from the records, the published values and the model of the
trade-off, so it changes with them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, takewhile
from typing import Any, NamedTuple

from pandas import DataFrame, concat

from petra_core import methods
from reproduce import published
from reproduce.cells import timing
from reproduce.cells.kinds import TrainedCell
from reproduce.cells.networks import title_of, title_of_convolutional
from reproduce.exhibits import length
from reproduce.exhibits._exhibit import run_sets
from reproduce.exhibits.gradients import count_reconstructing
from reproduce.exhibits.primary import Primary, primaries
from reproduce.exhibits.staleness import number_of_devices
from reproduce.exhibits.table2 import BEST
from reproduce.grids.grid import cells_of
from reproduce.grids.plans import PLANS
from reproduce.grids.plans import staleness as plan
from reproduce.grids.plans.length import NETWORK
from reproduce.grids.plans.length import PETRA as VARIANT
from reproduce.modelling.network import TimedNetwork, read_timed_networks
from reproduce.modelling.strategies import STRATEGIES, Sharing, Strategy, evaluate_best
from reproduce.presentation import facets, plots
from reproduce.presentation.compare import Difference, format_difference, means
from reproduce.presentation.content import MEGABYTE, Figure, in_prose, short_title
from reproduce.presentation.statistics import Verdict
from reproduce.records.frames import Frames, RunSet, settings_key
from reproduce.records.gradients import kinds_of
from reproduce.text import conjunction, count

#: Terms of the answers and pictures.
TERMS = (
    "k is the number of micro-batches per update. The staleness of a stage is the number of micro-batches that enter "
    "it between the forward and the backward of one; with J stages that of the first is 2(J \N{MINUS SIGN} 1) in "
    "lockstep, the paper's timing, J \N{MINUS SIGN} 1 under asynchronous 1F1B, and between the two under 1F1B with "
    "slack. Synchronous 1F1B is the pipeline without staleness: it empties at every update. Delayed gradients "
    "(PipeDream) keep activations and weights until the backward; DSP keeps the input of a stage and uses the current "
    "weights; PETRA reconstructs the input as well. ± gives the 95 % interval; a difference with ‡ compares different "
    "processors, devices or versions of torch."
)

SCALE = "small"
HEIGHT, WIDTH = 4.2, 5.2  # of a picture, in inches
WAYS = {way.title: way for way in STRATEGIES}
PAPER_WIDTH = 64  # channels of the first blocks of the paper's networks
BACKPROPAGATION, PETRA, DSP, DELAYED = (
    m.name for m in (methods.BACKPROPAGATION, methods.PETRA, methods.DSP, methods.DELAYED_GRADIENTS)
)


@dataclass(frozen=True)
class Answer:
    """An answer in one line, and the numbers that it is based on."""

    title: str
    text: str
    anchor: str  # key of the section with its numbers


@dataclass(frozen=True)
class Headline:
    """A picture with one sentence, and the key of the section that it links to."""

    sentence: str
    figure: Figure
    anchor: str


def first_screen(frames: Frames) -> tuple[list[Answer], list[Headline]]:
    """Return the answers and the pictures for which there are data.

    The answers: whether PETRA is as good as backpropagation, what it saves, and when it is worth using. The pictures:
    accuracy against staleness, bytes by method, speed against the number of devices.
    """
    answers: list[Answer] = []
    headlines: list[Headline] = []
    of_length = run_sets(frames, length.EXHIBIT.key)
    for run_set in [run_set for run_set in of_length if run_set.scale == SCALE and run_set.begun][:1]:
        answers += _as_good(frames, run_set)
        headlines += _accuracy(frames, run_set)
    if (network := _find_timed(frames)) is not None:
        held, speeds = _held(network), _speeds(network)
        answers += [_saves(network, held), _worth(frames, speeds)]
        headlines += [_memory(network, held), _write_speed(network, speeds)]
    return answers, headlines


def _certain(gaps: Mapping[int, Difference]) -> Mapping[int, Difference]:
    """Return the differences that have an interval, or all of them if none has one."""
    return {at: gap for at, gap in gaps.items() if gap.estimate and gap.estimate.half_width is not None} or gaps


# --- is it as good?


def _as_good(frames: Frames, run_set: RunSet) -> Iterator[Answer]:
    known = {
        epochs: gap
        for (variant, epochs), gap in length.gaps(run_set, "final_accuracy").items()
        if variant == VARIANT and gap.estimate
    }
    if not known:
        return
    listed = [f"{format_difference(gap, trailing=True)} after {epochs}" for epochs, gap in known.items()]
    cell = run_set.example
    width = f" at 1/{PAPER_WIDTH // cell.width} of the paper's width" * (cell.width < PAPER_WIDTH)
    text = (
        f"On CIFAR-10 with {title_of(cell).partition(',')[0]}{width}, PETRA (k = {VARIANT.k}, "
        f"{count(VARIANT.k, 'micro-batch')} per update) trails backpropagation by {conjunction(listed)} epochs, in "
        f"points of test accuracy over the last epochs. {_state_published_gaps()} {_reconstruction(frames, run_set)} "
        f"{_at_paper_scale(frames)}"
    )
    yield Answer(_title(_certain(known), max(known)), " ".join(text.split()), "length")


def _title(gaps: Mapping[int, Difference], longest: int) -> str:
    """Return the verdict of the longest training that has an interval.

    Args:
        gaps: Differences to backpropagation by number of epochs, those with an interval if there are any.
        longest: Number of epochs of the longest training.

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
    before = f", after {min(gaps)} epochs {-shortest.mean:.1f}" if shortest and min(gaps) < epochs else ""
    beyond = "; longer trainings have too few runs to tell" * (longest > epochs)
    return f"After {epochs} epochs PETRA is {-known.mean:.1f} points below backpropagation{before}{beyond}."


def _state_published_gaps() -> str:
    """State the paper's differences on CIFAR-10 between PETRA and backpropagation on the same network."""
    rows = {
        (row["model"], methods.by_name(row["method"]).name): row.number("top1_percent")
        for row in published.read("table2_accuracy")
        if row["dataset"] == "cifar10"
    }
    gaps = [
        rows[model, PETRA] - reached
        for (model, method), reached in rows.items()
        if method == BACKPROPAGATION and (model, PETRA) in rows
    ]
    listed = conjunction([f"{abs(gap):.1f}" for gap in gaps])
    return f"The paper reports gaps of {listed} points on CIFAR-10 for its three RevNets, after 300 epochs."


def _reconstruction(frames: Frames, run_set: RunSet) -> str:
    """State the cost of reconstruction according to the primary comparisons."""
    by_title = {comparison.title: comparison for comparison in primaries(frames)}
    of_delayed, of_chain = by_title["PETRA − delayed gradients"], by_title["PETRA − DSP"]
    text = ""
    if of_delayed.accuracy.estimate:
        kinds = next(iter(kinds_of(run_set).values()))
        text = (
            f"Delayed gradients keep inputs and weights; after {of_delayed.epochs} epochs PETRA − delayed gradients is "
            f"{format_difference(of_delayed.accuracy, unit='points')}{_after_short_training(frames, run_set)}: "
            f"{_seen(of_delayed)} on this network, where {count_reconstructing(kinds)}."
        )
    if of_chain.accuracy.estimate:
        cost = format_difference(of_chain.accuracy, unit="points")
        return f"{text} Where nearly all stages compute with reconstructed inputs (chain of 16), PETRA − DSP is {cost}."
    return (
        f"{text} The chain of 16, in which nearly all stages compute with reconstructed inputs, has not been run for "
        "that long."
    )


def _after_short_training(frames: Frames, run_set: RunSet) -> str:
    """State PETRA less delayed gradients in lockstep after the shortest training that has both; empty without one."""
    runs = _of_staleness(frames, run_set)
    reached = means(runs, "final_accuracy", ["method", "epochs", "staleness"])
    most = max(_numbers_of_devices())
    for epochs in sorted(set(runs["epochs"])):
        gap = reached[PETRA, epochs, most] - reached[DELAYED, epochs, most]
        if gap.estimate:
            return f" (after {int(epochs)} epochs {format_difference(gap)})"
    return ""


def _seen(comparison: Primary) -> str:
    verdict = comparison.accuracy.verdict
    if verdict is Verdict.LOWER and comparison.holds:
        return "reconstruction and current weights cost accuracy"
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
    method = methods.by_name(single["method"])
    compared = "".join(
        f" (published: {row['top1_percent']} %)"
        for row in published.read("table2_accuracy")
        if (row["dataset"], row["model"]) == (single["dataset"], single["model"])
        and methods.by_name(row["method"]) is method
    )
    return (
        f"1 of the {planned} runs of Table 2 at the paper's size is finished: {method.title} on "
        f"{single['network'].partition(',')[0]} reached {single[BEST]:.2f} %{compared} as its best epoch, a single run "
        "that decides nothing."
    )


# --- what does it save?


class Held(NamedTuple):
    """Megabytes that the devices hold, each at its peak."""

    fullest: float
    total: float


def _hold(network: TimedNetwork, title: str, slack: float = 1) -> Held:
    """Return what a strategy holds with one stage per device, or on one device if it has no pipeline.

    A synchronous pipeline has many micro-batches per update.
    """
    strategy = replace(WAYS[title], slack=slack)
    devices = len(network.costs) if strategy.method.pipelined else 1
    outcome = evaluate_best(network, strategy, devices, SPEED_K[-1] if strategy.schedule else VARIANT.k)
    return Held(outcome.peak / MEGABYTE, outcome.total / MEGABYTE)


def _held(network: TimedNetwork) -> dict[str, Held]:
    """Return bytes by method, as the model of the trade-off predicts them from shapes.

    The bytes that runs have counted are not used: a single process orders the actions of its stages differently than
    devices that work at the same time, and so did engines of different versions.
    """
    return {name: _hold(network, methods.by_name(name).title) for name in (BACKPROPAGATION, PETRA, DSP, DELAYED)}


def _saves(network: TimedNetwork, held: Mapping[str, Held]) -> Answer:
    ours, rival, exact, sooner = held[PETRA], held[DSP], held[BACKPROPAGATION], _hold(network, OURS, slack=0)
    saved = [
        f"{100 * (1 - ours.total / held[name].total):.0f} % less than {in_prose(methods.by_name(name))}"
        for name in (DELAYED, DSP)
    ]
    same = ours.fullest > 0.98 * rival.fullest
    title = "It saves memory in total, but not on the fullest device." if same else "It saves memory on every device."
    why = ", since a stage that cannot be inverted keeps its inputs under both" * same
    costs = ": pipelining itself costs memory" * (exact.total < ours.total)
    again = _hold(network, CHECKPOINTED)
    text = (
        f"Modelled from shapes with one stage on each of {len(network.costs)} devices, in lockstep: PETRA holds "
        f"{ours.total:.0f} MB on all devices, {conjunction(saved)}. The fullest device holds {ours.fullest:.0f} MB "
        f"under PETRA and {rival.fullest:.0f} MB under DSP{why}. At asynchronous 1F1B, with half the delays, PETRA "
        f"holds {sooner.total:.0f} MB, and {sooner.fullest:.0f} MB on the fullest device; synchronous 1F1B with "
        f"checkpointing, at k = {SPEED_K[-1]}, holds {again.total:.0f} and {again.fullest:.0f} MB. Backpropagation on "
        f"one device holds {exact.total:.0f} MB{costs}."
    )
    return Answer(title, text, "tradeoff")


# --- when is it worth it?


SPEED_K = (1, 4, 16, 32)
OURS, MERGED, PIPELINE, CHECKPOINTED = methods.PETRA.title, "PETRA, merged stages", "1F1B", "1F1B, checkpointing"
KEEPING = methods.DELAYED_GRADIENTS.title
FASTER = 1.05  # least ratio of two speeds that counts as a difference, since stage costs vary from run to run


def _find_timed(frames: Frames) -> TimedNetwork | None:
    """Return the network of the first screen with its timed stages; None if its stages are not timed."""
    networks = [
        n for run_set in run_sets(frames, "tradeoff") if run_set.scale == SCALE for n in read_timed_networks(run_set)
    ]
    return next((network for network in networks if network.cell.model == NETWORK), None)


class Pace(NamedTuple):
    """Modelled cost of a way of training."""

    speed: float  # relative to backpropagation on one device
    bytes: int  # peak of the fullest device


Speeds = dict[tuple[str, int, int], Pace]  # by way of training, k and number of devices


def _speeds(network: TimedNetwork) -> Speeds:
    """Model PETRA with separate and with merged stages, delayed gradients, and 1F1B.

    "Merged" means that all stages of a device form one stage. A synchronous pipeline computes the same either way.
    """
    ways = WAYS | {MERGED: Strategy(MERGED, methods.PETRA, sharing=Sharing.EVERYTHING)}
    most = len(network.costs)
    alone = evaluate_best(network, ways["Backpropagation"], 1, 1).seconds
    return {
        (title, k, devices): Pace(alone / cost.seconds, cost.peak)
        for title in (OURS, MERGED, KEEPING, PIPELINE, CHECKPOINTED)
        for k in (SPEED_K if title != CHECKPOINTED else SPEED_K[-1:])
        for devices in sorted({1, 2, 4, 7, most})
        for cost in [evaluate_best(network, ways[title], devices, k)]
    }


def _worth(frames: Frames, speeds: Speeds) -> Answer:
    several = sorted({devices for *_, devices in speeds} - {1})
    most = several[-1]

    def faster(k: int, devices: int) -> bool:
        return speeds[OURS, k, devices].speed >= FASTER * speeds[PIPELINE, k, devices].speed

    # By k, the least number of devices from which on PETRA is faster; 0 if it never is.
    ahead = {k: min(takewhile(partial(faster, k), reversed(several)), default=0) for k in SPEED_K}
    wins = [f"k = {k} from {count(least, 'device')} on" for k, least in ahead.items() if least]
    loses = [f"k = {k}" for k, least in ahead.items() if not least]
    won = (
        f"PETRA is at least {100 * (FASTER - 1):.0f} % faster than synchronous 1F1B, which empties at every update, at "
        f"{conjunction(wins)}."
    )
    lost = f"At {conjunction(loses)} it is not, on up to {most} devices."
    few = max(SPEED_K)
    plain, apart, merged, checkpointed = (
        {devices: speeds[way, few, devices] for devices in several} for way in (PIPELINE, OURS, MERGED, CHECKPOINTED)
    )
    beaten = [d for d in several if plain[d].speed >= apart[d].speed and plain[d].bytes < apart[d].bytes]
    better = (
        f"If PETRA keeps its stages apart, as in lockstep with the paper's stages, 1F1B is smaller, faster and exact "
        f"with {conjunction([str(devices) for devices in beaten])} devices at k = {few}."
    )
    merging = ""
    if beaten and all(merged[devices].bytes <= plain[devices].bytes for devices in beaten):
        sizes, theirs, again = (
            conjunction([f"{way[devices].bytes / MEGABYTE:.0f}" for devices in beaten])
            for way in (merged, plain, checkpointed)
        )
        merging = (
            f"With the stages of a device merged into one, which also shortens the delays, PETRA holds {sizes} MB on "
            f"the fullest device, 1F1B {theirs} MB, and 1F1B with checkpointing {again} MB."
        )
    title = (
        "In the model it is faster only where few micro-batches make an update."
        if wins and loses
        else "It is faster than a synchronous pipeline."
        if wins
        else "A synchronous pipeline is as fast, and exact."
    )
    parts = [won * bool(wins), lost * bool(loses), better * bool(beaten), merging, _state_measured_speeds(frames)]
    text = " ".join(["This is modelled from the measured costs of the stages.", *filter(None, parts)])
    return Answer(title, text, "tradeoff")


def _state_measured_speeds(frames: Frames) -> str:
    """State the speeds of two processes relative to one process with backpropagation, for every network.

    Each speed is the median over rounds of ratios within a round.
    """
    series = frames.series.query("benchmark == 'pipelining' and quantity == 'throughput'")
    listed = []
    for group, rows in series.groupby("group", sort=False):
        rounds = rows.pivot(index="round", columns="contestant", values="value")
        medians = rounds.div(rounds["autograd, one process"], axis=0).median()
        contestants = [name for name in (OURS, PIPELINE, CHECKPOINTED) if name in medians.index]
        if {OURS, PIPELINE} <= set(contestants):
            amounts = conjunction([f"{name.replace(', ', ' with ')} {medians[name]:.2f}" for name in contestants])
            network, _, width = str(group).partition(",")
            listed.append(f"{amounts} times one process ({title_of_convolutional(network)},{width})")
    if not listed:
        return ""
    setting = next(benchmark.setting for benchmark in frames.results.benchmarks if benchmark.name == "pipelining")
    return f"Measured with two processes and k = {setting['micro_batches']}: {'; '.join(listed)}."


# --- pictures


def _accuracy(frames: Frames, run_set: RunSet) -> Iterator[Headline]:
    """Draw accuracy against the staleness of the first stage, and mark what has not been run."""
    runs = _of_staleness(frames, run_set)
    if runs.empty:
        return
    named = _numbers_of_devices()
    absent = sorted(named.keys() - set(runs["staleness"]))
    yield Headline(
        _of_lengths(runs, named),
        facets.facet(
            runs,
            [_lengths(runs, named, absent)],
            key="headline-accuracy",
            caption=f"Test accuracy over the last epochs against the staleness of the first stage "
            f"(k = {VARIANT.k}; {run_set.describe(network=True, length=False)}). Mark: mean, or one run if it has "
            "no bar; bar: 95 % interval; lines join neighbouring marks of one length of training. Below the staleness "
            "the number of devices with one stage each: in lockstep, * under asynchronous 1F1B, + under 1F1B with "
            "slack.",
            title=f"{title_of(run_set.example)}: accuracy against staleness",
            x=facets.Axis("staleness", label="staleness, micro-batches; devices"),
            y=facets.Axis("final_accuracy", label="test accuracy, %"),
            panels=facets.Panels(height=HEIGHT, width=WIDTH),
            legend="mark",
        ),
        "staleness",
    )


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


def _of_lengths(runs: DataFrame, named: Mapping[int, str]) -> str:
    """State what PETRA loses at the largest staleness by length of training, and at smaller ones after the shortest."""
    reached = means(runs, "final_accuracy", ["method", "epochs", "staleness"])
    most = max(named)

    def gap(epochs: int, staleness: int) -> Difference:
        return reached[PETRA, epochs, staleness] - reached[BACKPROPAGATION, epochs, 0]

    lengths = sorted({int(epochs) for _, epochs, _ in reached})
    known = _certain({epochs: at_most for epochs in lengths if (at_most := gap(epochs, most)).estimate})
    if not known:
        return "PETRA and backpropagation have not both been trained yet."
    longest, shortest = max(known), min(known)
    smaller = {at: gap(shortest, at) for at in sorted(named, reverse=True) if 0 < at < most}
    first = {most: known[shortest]}
    first |= {at: gap_at for at, gap_at in smaller.items() if gap_at.estimate and gap_at.estimate.half_width}
    trails = conjunction([format_difference(gap_at, trailing=True) for gap_at in first.values()])
    sentence = (
        f"After {shortest} epochs PETRA trails backpropagation by {trails} points at a staleness of "
        f"{conjunction(list(map(str, first)))} micro-batches"
    )
    if longest == shortest:
        return f"{sentence}."
    return f"{sentence}, and after {longest} epochs by {format_difference(known[longest], trailing=True)} at {most}."


def _lengths(runs: DataFrame, named: Mapping[int, str], absent: Sequence[int]) -> facets.Layer:
    """Draw the means of each method and length, joined where no staleness between them is missing."""

    def lengths(panel: facets.Panel) -> None:
        reached = means(runs, "final_accuracy", ["method", "epochs", "staleness"])
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


def _memory(network: TimedNetwork, held: Mapping[str, Held]) -> Headline:
    named = {short_title(methods.by_name(name)): amounts for name, amounts in held.items()} | {
        f"{title.replace(', ', ' with ')}, k = {SPEED_K[-1]}": _hold(network, title)
        for title in (PIPELINE, CHECKPOINTED)
    }
    bars = [
        {"way": way, "part": part, "MB": amount}
        for way, amounts in named.items()
        for part, amount in ((FULLEST, amounts.fullest), (OTHERS, amounts.total - amounts.fullest))
    ]
    ours, rival = held[PETRA], held[DSP]
    title = f"{title_of(network.cell)}: bytes by method"
    return Headline(
        f"In total PETRA holds {ours.total:.0f} MB and DSP {rival.total:.0f} MB; on the fullest device "
        f"{ours.fullest:.0f} and {rival.fullest:.0f} MB.",
        facets.facet(
            bars,
            [facets.stack(sums=".0f")],
            key="headline-memory",
            caption=f"Bytes on the fullest device and on all others, each at its peak ({title_of(network.cell)}, "
            f"micro-batches of {network.cell.batch_size}, k = {VARIANT.k} if not named), modelled from shapes: one "
            "stage per device, in lockstep or under synchronous 1F1B. Backpropagation is on one device.",
            title=title,
            x=facets.Axis("way", label="MB"),
            y=facets.Axis("MB", label=""),
            hue="part",
            looks={FULLEST: facets.Look(FULLEST, plots.INK), OTHERS: facets.Look(OTHERS, "#9a9a96")},
            panels=facets.Panels(height=HEIGHT, width=WIDTH),
            legend="area",
        ),
        "tradeoff",
    )


def _write_speed(network: TimedNetwork, speeds: Speeds) -> Headline:
    most, low, high = max(devices for *_, devices in speeds), min(SPEED_K), max(SPEED_K)
    ours = [speeds[OURS, k, most].speed for k in SPEED_K]
    ends, keeping = ([speeds[way, k, most].speed for k in (low, high)] for way in (PIPELINE, KEEPING))
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
    return Headline(
        f"On {most} devices PETRA is {min(ours):.1f} to {max(ours):.1f} times as fast as one device at k = {low} to "
        f"{high}, delayed gradients {keeping[0]:.1f} to {keeping[1]:.1f} times, synchronous 1F1B {ends[0]:.1f} to "
        f"{ends[1]:.1f} times.",
        facets.facet(
            drawn,
            [facets.line("range", marked=True)],
            key="headline-speed",
            caption="Speed over one device that backpropagates, modelled from the stage costs of the trade-off "
            f"({network.title}, width {network.cell.width}, micro-batches of {network.cell.batch_size}; timed "
            f"on {network.machine}; links take no time). Bands of PETRA and delayed gradients: "
            f"k = {low} to {high}; merging the stages of a device changes PETRA's speed by {at_most}. Measured stage "
            "costs vary by about 15 %.",
            title=f"{network.title}, width {network.cell.width}: speed against devices",
            x=facets.Axis("devices", label="devices"),
            y=facets.Axis("speed", label="speed, one device with backpropagation = 1"),
            hue="line",
            looks=looks,
            panels=facets.Panels(height=HEIGHT, width=WIDTH),
        ),
        "tradeoff",
    )
