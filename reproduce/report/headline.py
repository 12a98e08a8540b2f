"""Make the first screen: the answers, each with a picture of one network at one setting, and with its numbers.

The pictures show RevNet-18 at the width of the scale `small`, the only network with runs of several lengths and timed
stages. Every title, table and sentence is computed from the records, the published values and the model of the
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
from reproduce.exhibits._exhibit import run_sets, text_of
from reproduce.exhibits.figure5 import count_reconstructing
from reproduce.exhibits.primary import Primary, primaries
from reproduce.exhibits.staleness import Modelled, model, number_of_devices
from reproduce.exhibits.table2 import BEST
from reproduce.grids.grid import cells_of
from reproduce.grids.plans import PLANS
from reproduce.grids.plans import staleness as plan
from reproduce.grids.plans.length import NETWORK
from reproduce.grids.plans.length import PETRA as VARIANT
from reproduce.modelling.network import TimedNetwork, read_timed_networks
from reproduce.modelling.strategies import STRATEGIES, Sharing, Strategy, evaluate_best
from reproduce.presentation import facets, plots, tables
from reproduce.presentation.compare import NOT_RUN, Difference, SeedSamples, format_difference, means, with_intervals
from reproduce.presentation.content import Entry, Figure, Table, in_prose, missing, short_title
from reproduce.presentation.statistics import Verdict
from reproduce.records.benchmarks import PEAK_OF_ALL, THROUGHPUT, Benchmark, Comparison
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
BACKPROPAGATION, PETRA = methods.BACKPROPAGATION.name, methods.PETRA.name
#: By network of the first answer: the method that PETRA is compared with there, which has the same delay and keeps
#: inputs instead of reconstructing them. On RevNet-18 it keeps weights as well.
KEEPING_INPUTS = {NETWORK: methods.DELAYED_GRADIENTS.name, plan.CHAIN: methods.DSP.name}
SPEED_K = (1, 4, 16, 32)
OURS, MERGED, PIPELINE, CHECKPOINTED = methods.PETRA.title, "PETRA, merged stages", "1F1B", "1F1B, checkpointing"
KEEPING = methods.DELAYED_GRADIENTS.title
EXACT, RIVAL = methods.BACKPROPAGATION.title, short_title(methods.DSP)
RECOMPUTING = f"1F1B with checkpointing, k = {SPEED_K[-1]}"
#: By label in the second answer: a strategy and the slack of its timing.
HELD = {
    EXACT: (EXACT, 1),
    OURS: (OURS, 1),
    f"{OURS}, asynchronous 1F1B": (OURS, 0),
    RIVAL: (methods.DSP.title, 1),
    KEEPING: (KEEPING, 1),
    f"{PIPELINE}, k = {SPEED_K[-1]}": (PIPELINE, 1),
    RECOMPUTING: (CHECKPOINTED, 1),
}
FULLEST, OTHERS = "fullest device", "all other devices"
ONE_PROCESS = "autograd, one process"
#: Contestants of the benchmark “pipelining” that are shown, with their titles.
SHOWN = {
    ONE_PROCESS: "Backpropagation in one process",
    OURS: OURS,
    "PETRA, merged to J = 2": "PETRA with merged stages",
    PIPELINE: PIPELINE,
    CHECKPOINTED: "1F1B with checkpointing",
}
FASTER = 1.15  # least ratio of two modelled speeds that counts as a difference: stage costs vary


@dataclass(frozen=True)
class Answer:
    """An answer: one line, a picture, and the numbers.

    Attributes:
        title: The answer in one line.
        figure: The picture.
        tables: Its numbers.
        text: What follows from them, and what they do not show.
        anchor: Key of the section with all numbers.

    """

    title: str
    figure: Figure
    tables: Sequence[Table]
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


def _planned(network: str) -> Iterator[TrainedCell]:
    """Yield the cells of a network at every staleness and length that are planned for the first answer."""
    parts = (plan.curve, plan.networks, plan.longer, plan.longest, lambda: cells_of(PLANS[length.EXHIBIT.key], SCALE))
    for cell in (cell for part in parts for cell in part()):
        if isinstance(cell, TrainedCell) and (cell.model, cell.accumulation) == (network, VARIANT.k):
            yield cell


def _runs(frames: Frames, run_set: RunSet, network: str) -> DataFrame:
    """Return the finished runs of a network that have the arithmetic and the data of `run_set`."""
    wanted = {settings_key(cell) for cell in _planned(network)}
    runs = concat(
        [
            candidate.done
            for candidate in (*run_sets(frames, length.EXHIBIT.key), *run_sets(frames, "staleness"))
            if (candidate.key, candidate.dataset) == (run_set.key, run_set.dataset)
        ]
    )
    compared = runs["method"].isin([BACKPROPAGATION, PETRA, KEEPING_INPUTS[network]])
    return runs[runs["settings"].isin(wanted) & compared].drop_duplicates("cell").astype({"staleness": int})


class Gaps(NamedTuple):
    """Differences between two methods on one network at one staleness, after trainings of several lengths."""

    network: str
    sides: str
    staleness: int
    by_epochs: Mapping[int, Difference]
    stated: bool = False  # whether it is that to backpropagation in lockstep, which the title states

    @property
    def known(self) -> dict[int, Difference]:
        """Those of which both sides have a finished run."""
        return {epochs: gap for epochs, gap in self.by_epochs.items() if gap.estimate}

    @property
    def has_interval(self) -> bool:
        return any(gap.has_interval for gap in self.by_epochs.values())

    def halves(self, lockstep: "Gaps") -> bool:
        """Return whether these are the same differences at half of the staleness, that of asynchronous 1F1B."""
        return (self.sides, 2 * self.staleness) == (lockstep.sides, lockstep.staleness)


def _differences(network: str, reached: SeedSamples) -> list[Gaps]:
    """Return what PETRA loses to backpropagation and to a method with the same delay, the largest staleness first.

    If some differences have an interval, those without one are left out, except the one that the title states. The
    picture has all.
    """
    rival, title = KEEPING_INPUTS[network], title_of(next(_planned(network)))
    most = max(vector[0] for cell in _planned(network) if (vector := timing.vector(cell)))
    lengths = sorted({epochs for _, epochs, _ in reached})
    known = sorted({staleness for method, _, staleness in reached if method == PETRA}, reverse=True)
    found = [
        Gaps(
            title,
            f"PETRA − {in_prose(methods.by_name(other))}",
            staleness,
            {int(n): reached[PETRA, n, staleness] - reached[other, n, staleness * (other == rival)] for n in lengths},
            stated=(other, staleness) == (BACKPROPAGATION, most),
        )
        for other in (BACKPROPAGATION, rival)
        for staleness in known
    ]
    with_known = [gaps for gaps in found if gaps.known]
    single_runs = not any(gaps.has_interval for gaps in with_known)
    return [gaps for gaps in with_known if single_runs or gaps.has_interval or gaps.stated]


def _as_good(frames: Frames, run_set: RunSet) -> Iterator[Answer]:
    runs = {network: _runs(frames, run_set, network) for network in KEEPING_INPUTS}
    reached = {network: means(of_network, "final_accuracy", BY) for network, of_network in runs.items()}
    compared = {network: _differences(network, reached[network]) for network in KEEPING_INPUTS}
    in_lockstep, of_chain = (
        next((gaps for gaps in compared[network] if gaps.stated), None) for network in (NETWORK, plan.CHAIN)
    )
    if in_lockstep is None:
        return
    primary = {comparison.title: comparison for comparison in primaries(frames)}
    others = [gaps for gaps in compared[NETWORK] if not gaps.stated]
    rows = [
        in_lockstep,
        *_on_same_machines(primary["PETRA − backpropagation"], in_lockstep),
        *others,
        *compared[plan.CHAIN],
    ]
    epochs = sorted({n for gaps in rows for n in gaps.known})
    setting = run_set.describe(concat(runs.values()), width=False, length=False)
    table = tables.table(
        key="answer-accuracy",
        caption=text_of("headline", "gaps", k=VARIANT.k, setting=setting),
        rows=rows,
        fields=[
            tables.words("network", lambda gaps: gaps.network, heading=True),
            tables.words("difference", lambda gaps: gaps.sides),
            tables.number("staleness", lambda gaps: gaps.staleness),
            *map(_epochs_column, epochs),
        ],
        notes=length.list_lost(concat(runs.values())),
    )
    halved = [gaps for gaps in compared[plan.CHAIN] if of_chain and gaps.halves(of_chain)]
    parts = [
        _at_half_the_delay(primary["PETRA, asynchronous 1F1B − backpropagation, 27 epochs"], halved),
        _state_published_gaps(),
        _reconstruction(primary["PETRA − delayed gradients"], run_set),
        text_of("headline", "chain") if compared[plan.CHAIN] else "",
        _at_paper_scale(frames),
    ]
    title = _title(with_intervals(in_lockstep.known), _name_with_width(run_set.example), of_chain)
    figure = _draw_accuracy(run_set, runs[NETWORK], reached[NETWORK])
    yield Answer(title, figure, [table], " ".join(filter(None, parts)), "length")


def _epochs_column(epochs: int) -> tables.Field:
    return tables.entry(f"{epochs} epochs", lambda gaps: _entry(gaps.by_epochs.get(epochs)))


def _entry(gap: Difference | None) -> Entry:
    """Return an entry with a difference and the numbers of runs of its sides, as "−0.7 ± 0.3 (6 + 6)"."""
    if gap is None or gap.estimate is None:
        return missing("" if gap is None else NOT_RUN)
    runs = f" ({gap.estimate.n})" * gap.has_interval
    return replace(tables.difference_entries(gap, 1)[0], text=f"{format_difference(gap)}{runs}")


def _on_same_machines(primary: Primary, gaps: Gaps) -> Iterator[Gaps]:
    """Yield the primary difference between PETRA and backpropagation over the runs on the machines of both."""
    if primary.accuracy.mixed and primary.alike.estimate:
        yield gaps._replace(sides=f"{gaps.sides}, same machines", by_epochs={primary.epochs: primary.alike})


def _title(gaps: Mapping[int, Difference], network: str, chain: Gaps | None) -> str:
    """Return the verdict of the longest training that has an interval.

    Args:
        gaps: Differences to backpropagation by number of epochs, those with an interval if there are any.
        network: Their network in words.
        chain: Differences to backpropagation on the chain of 16, if there are any.

    """
    epochs, gap = max(gaps.items())
    known = gap.estimate
    assert known is not None  # `gaps` contains only differences with an estimate
    if known.low is None or known.high is None:
        return "It is not yet known whether PETRA is as good as backpropagation: no training has several runs."
    petra = "PETRA with the paper's timing is"
    if gap.verdict is Verdict.OPEN:
        return f"After {epochs} epochs on {network} it is still open whether {petra} as good as backpropagation."
    if gap.verdict is Verdict.EQUAL:
        return f"After {epochs} epochs on {network} {petra} as good as backpropagation, within half a point."
    if gap.verdict is Verdict.HIGHER:
        return f"After {epochs} epochs on {network} {petra} better than backpropagation."
    lost = partial(format_difference, trailing=True)
    before = f" ({lost(gaps[min(gaps)])} after {min(gaps)} epochs)" * (min(gaps) < epochs)
    deep = chain.known.get(epochs) if chain else None
    deeper = f", and {lost(deep)} on a chain of 16 blocks" if deep and deep.verdict is Verdict.LOWER else ""
    return f"After {epochs} epochs on {network} {petra} {lost(gap)} points below backpropagation{before}{deeper}."


def _name_with_width(cell: TrainedCell) -> str:
    narrow = f" at 1/{PAPER_WIDTH // cell.width} of the paper's width" * (cell.width < PAPER_WIDTH)
    return title_of(cell).partition(",")[0] + narrow


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


def _at_half_the_delay(comparison: Primary, of_chain: Sequence[Gaps]) -> str:
    """State what PETRA loses under asynchronous 1F1B; empty without runs.

    Args:
        comparison: The primary comparison with backpropagation.
        of_chain: The same differences on the chain of 16.

    """
    if not comparison.accuracy.estimate:
        return ""
    known = [gaps.known[comparison.epochs] for gaps in of_chain if comparison.epochs in gaps.known]
    deeper = "".join(f", and {format_difference(gap)} on a chain of 16 blocks" for gap in known)
    found, verdict = format_difference(comparison.accuracy, unit="points"), comparison.verdict.value
    return text_of("headline", "half", epochs=comparison.epochs, found=found, verdict=verdict, deeper=deeper)


def _reconstruction(comparison: Primary, run_set: RunSet) -> str:
    """State what the primary comparison of PETRA and delayed gradients shows; empty without runs."""
    if not comparison.accuracy.estimate:
        return ""
    where = count_reconstructing(next(iter(kinds_of(run_set).values())))
    return text_of("headline", "delayed", epochs=comparison.epochs, seen=_seen(comparison), where=where)


def _seen(comparison: Primary) -> str:
    if comparison.verdict is Verdict.LOWER:
        return "reconstruction and current weights cost accuracy"
    if comparison.verdict is Verdict.HIGHER:
        return "reconstruction and current weights cost no accuracy"
    if comparison.verdict is Verdict.EQUAL:
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
    setting = f"k = {single['k']}, {single['arithmetic']}"
    way = f"{methods.by_name(single['method']).title} ({setting}) on {single['network'].partition(',')[0]}"
    return text_of("headline", "single", planned=planned, way=way, reached=reached)


# --- what does it save?


def _hold(network: TimedNetwork, title: str, slack: float) -> Modelled:
    """Return the cost of a strategy with one stage per device, or on one device if it has no pipeline.

    A synchronous pipeline has many micro-batches per update.
    """
    strategy = replace(WAYS[title], slack=slack)
    devices = len(network.costs) if strategy.method.pipelined else 1
    k = SPEED_K[-1] if strategy.schedule else VARIANT.k
    return model(network, evaluate_best(network, strategy, devices, k))


def _held(network: TimedNetwork) -> dict[str, Modelled]:
    """Return bytes by way of training, as the model of the trade-off predicts them from shapes and stage costs.

    The bytes that runs have counted are not used: a single process orders the actions of its stages differently than
    devices that work at the same time, and so did engines of different versions.
    """
    return {label: _hold(network, *way) for label, way in HELD.items()}


def _saves(network: TimedNetwork) -> Answer:
    held = _held(network)
    exact, ours, rival, keeping, pipeline = (held[label] for label in (EXACT, OURS, RIVAL, KEEPING, RECOMPUTING))
    same, beaten = ours.fullest > 0.98 * rival.fullest, pipeline.total < ours.total and pipeline.fullest < ours.fullest
    where = "in total" if same else "on every device"
    title = f"In the model PETRA with the paper's timing holds less than delayed gradients and DSP {where}"
    title += ", but more than synchronous 1F1B with checkpointing." if beaten else "."
    parts = [
        text_of("headline", "saved", keeping=_saving(ours.total, keeping.total), dsp=_saving(ours.total, rival.total))
    ]
    parts += [text_of("headline", "same")] * same
    if beaten:
        total, fullest = _saving(pipeline.total, ours.total), _saving(pipeline.fullest, ours.fullest)
        speed = pipeline.speed / ours.speed
        parts.append(text_of("headline", "pipeline", k=SPEED_K[-1], total=total, fullest=fullest, speed=speed))
    parts += [text_of("headline", "costs")] * (exact.total < ours.fullest)
    table = tables.table(
        key="answer-memory",
        caption=text_of("headline", "bytes", devices=len(network.costs), title=title_of(network.cell), k=VARIANT.k),
        rows=held.items(),
        fields=[
            tables.words("training", lambda row: row[0]),
            tables.amount("all devices", lambda row: row[1].total, 0, group="MB"),
            tables.amount(FULLEST, lambda row: row[1].fullest, 0, group="MB"),
        ],
    )
    return Answer(title, _draw_memory(network, held), [table], " ".join(parts), "tradeoff")


def _saving(smaller: float, larger: float) -> str:
    """Return how many percent less the smaller amount is, rounded to ten: stage costs vary, and bytes with them."""
    return f"about {round(100 * (1 - smaller / larger), -1):.0f} %"


# --- when is it worth it?


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

    def faster(k: int, devices: int) -> bool:
        return speeds[OURS, k, devices].speed >= FASTER * speeds[PIPELINE, k, devices].speed

    # By k, the least number of devices from which on PETRA is faster; 0 if it never is.
    ahead = {k: min(takewhile(partial(faster, k), reversed(several)), default=0) for k in SPEED_K}
    wins = [f"k = {k} from {count(least, 'device')} on" for k, least in ahead.items() if least]
    loses = [f"k = {k}" for k, least in ahead.items() if not least]
    won = text_of("headline", "faster", percent=100 * (FASTER - 1), wins=conjunction(wins))
    lost = f"At {conjunction(loses)} it is not, on up to {several[-1]} devices."
    few = max(SPEED_K)
    plain, apart, merged = (
        {devices: speeds[way, few, devices] for devices in several} for way in (PIPELINE, OURS, MERGED)
    )
    beaten = [d for d in several if plain[d].speed >= apart[d].speed and plain[d].fullest < apart[d].fullest]
    better = text_of("headline", "beaten", devices=conjunction([str(devices) for devices in beaten]), k=few)
    smaller = beaten and all(merged[devices].fullest <= plain[devices].fullest for devices in beaten)
    title = (
        "In the model PETRA is faster than synchronous 1F1B only where few micro-batches make an update."
        if wins and loses
        else "In the model PETRA is faster than synchronous 1F1B."
        if wins
        else "In the model synchronous 1F1B is as fast as PETRA, and exact."
    )
    parts = [won * bool(wins), lost * bool(loses), better * bool(beaten), text_of("headline", "merged") * bool(smaller)]
    listed = [
        _list_speeds(network, speeds, several),
        *(_list_measured(record) for record in frames.results.benchmarks if record.name == "pipelining"),
    ]
    return Answer(title, _draw_speed(network, speeds), listed, " ".join(filter(None, parts)), "tradeoff")


def _list_speeds(network: TimedNetwork, speeds: Speeds, several: Sequence[int]) -> Table:
    """Return the modelled speeds and bytes by way of training, k and number of devices."""
    columns = {devices: count(devices, "device") for devices in several}
    listed = [(title, k) for title, k in dict.fromkeys((title, k) for title, k, _ in speeds) if _is_listed(title, k)]
    return tables.table(
        key="answer-speed",
        caption=text_of("headline", "modelled", title=title_of(network.cell)),
        rows=listed,
        fields=[
            tables.words("training", lambda row: row[0].replace(", ", " with ")),
            tables.number("k", lambda row: row[1]),
            *tables.amounts(columns, lambda row: {n: speeds[*row, n].speed for n in several}, 1, group="speed"),
            *tables.amounts(
                columns, lambda row: {n: speeds[*row, n].fullest for n in several}, 0, group=f"MB, {FULLEST}"
            ),
        ],
    )


def _is_listed(title: str, k: int) -> bool:
    """Return whether the table of speeds has the row: of ways whose speed does not depend on k only the ends."""
    return title == PIPELINE or k in (min(SPEED_K), max(SPEED_K))


def _list_measured(record: Benchmark) -> Table:
    """Return the speeds of two processes relative to one process with backpropagation, and peak memory, by network.

    Each speed is the median over rounds of ratios within a round.
    """
    timed = [(series.group, series.name) for series in record.series if series.quantity == THROUGHPUT]
    peaks = {(s.group, s.name): s.values[0] for s in record.series if s.quantity == PEAK_OF_ALL}

    def network(group: str) -> str:
        name, _, width = group.partition(",")
        return f"{title_of_convolutional(name)},{width}"

    def ratio(row: tuple[str, str]) -> float:
        return record.spread(Comparison(row[0], THROUGHPUT, row[1], ONE_PROCESS)).median

    return tables.table(
        key="answer-measured",
        caption=text_of("headline", "measured", where=record.environment["processor"], setting=record.setting),
        rows=[row for row in timed if row[1] in SHOWN],
        fields=[
            tables.words("network", lambda row: network(row[0]), heading=True),
            tables.words("training", lambda row: SHOWN[row[1]]),
            tables.amount("speed", ratio, 2),
            tables.amount("MB, all processes", peaks.get, 0),
        ],
    )


# --- pictures


def _draw_accuracy(run_set: RunSet, runs: DataFrame, reached: SeedSamples) -> Figure:
    """Draw accuracy against the staleness of the first stage, and mark what has not been run."""
    named = _numbers_of_devices()
    absent = sorted(named.keys() - set(runs["staleness"]))
    setting = run_set.describe(runs, network=True, length=False)
    return facets.facet(
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


def _numbers_of_devices() -> dict[int, str]:
    """Return for each planned staleness the number of devices with one stage each, and a mark of the timing."""
    named = {0: "1"}
    for cell in _planned(NETWORK):
        if vector := timing.vector(cell):
            named.setdefault(vector[0], number_of_devices(cell))
    return named


def _lengths(reached: SeedSamples, named: Mapping[int, str], absent: Sequence[int]) -> facets.Layer:
    """Draw the means of each method and length, joined where no staleness between them is missing."""

    def lengths(panel: facets.Panel) -> None:
        shift = {BACKPROPAGATION: 0.0, PETRA: -0.12, KEEPING_INPUTS[NETWORK]: 0.12}
        for method, epochs in sorted({place[:2] for place in reached}):
            own = {at: sample.estimate for (*line, at), sample in reached.items() if line == [method, epochs]}
            look, start = panel.looks[method], reached[BACKPROPAGATION, epochs, 0].estimate
            points = [(at + shift[method], known) for at, known in sorted(own.items()) if known]
            for x, known in points:
                bar = [[known.half_width or 0.0]]
                panel.axes.errorbar([x], [known.mean], yerr=bar, fmt=look.marker, color=look.colour, markersize=4.5)
                if method == BACKPROPAGATION or (method == PETRA and round(x) == max(named)):
                    side, offset = ("left", (6, 3)) if method == BACKPROPAGATION else ("right", (-6, -9))
                    style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7.5, "ha": side}
                    panel.axes.annotate(f"{epochs:.0f} epochs", (x, known.mean), offset, **style)
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


def _draw_memory(network: TimedNetwork, held: Mapping[str, Modelled]) -> Figure:
    bars = [
        {"way": way, "part": part, "MB": amount}
        for way, amounts in held.items()
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
        {"line": f"{way}, k = {k}" if way == PIPELINE else way, "devices": devices, "speed": cost.speed}
        for (way, k, devices), cost in speeds.items()
        if way in (OURS, KEEPING, PIPELINE)
    ]
    change = max(
        abs(speeds[MERGED, k, n].speed / cost.speed - 1) for (way, k, n), cost in speeds.items() if way == OURS
    )
    percent = 100 * (FASTER - 1)
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
        caption=text_of("headline", "speed", network=network, low=low, high=high, at_most=at_most, percent=percent),
        title=f"{network.title}, width {network.cell.width}: speed against devices",
        x=facets.Axis("devices", label="devices"),
        y=facets.Axis("speed", label="speed, one device with backpropagation = 1"),
        hue="line",
        looks=looks,
        panels=facets.Panels(height=HEIGHT, width=WIDTH),
    )
