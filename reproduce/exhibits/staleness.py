"""Beyond the paper: the cost of staleness, and how much staleness a number of devices requires.

Results depend on the number of micro-batches that enter a stage between the forward and the backward of one. Lockstep,
the paper's counting, has twice the staleness of asynchronous 1F1B. One stage per device reduces it further.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from pandas import DataFrame, concat

from petra_core import methods
from petra_core.prediction.partition import Cost
from petra_core.shares import runs as parts_of
from petra_core.staleness import per_device
from reproduce.cells import rates, timing
from reproduce.cells.base import Cell
from reproduce.cells.kinds import TrainedCell
from reproduce.exhibits._exhibit import Folded, Sentence, Shown, declare, notes, result, text_of
from reproduce.exhibits.stability import stable_rate
from reproduce.grids.plans import staleness as plan
from reproduce.modelling.network import TimedNetwork, read_timed_networks
from reproduce.modelling.simulation import Link
from reproduce.modelling.strategies import PIPELINES, Outcome, Sharing, Strategy, evaluate, evaluate_best, run_full
from reproduce.presentation import compare, facets, plots
from reproduce.presentation.compare import DONE, Difference, SeedSample, SeedSamples, means
from reproduce.presentation.content import MEGABYTE, TIMES, Entry, Figure, Table, short_title
from reproduce.presentation.tables import Field, amount, difference_column, judged_columns, mean, number, table, words
from reproduce.records.frames import RunSet, settings_key
from reproduce.text import conjunction

EXACT, PETRA, DELAYED = plan.EXACT.name, plan.PETRA.name, plan.DELAYED.name
OUTCOME = "final_accuracy"
CURVE = ["network", "k", "epochs"]  # settings of a curve
POINT = [*CURVE, "staleness", "method"]
Point = Mapping[Any, Any]  # a run, of which only the settings matter
LATENCIES = (0.0, 0.05, 0.1)  # of a message, as fractions of the slowest device's time for a micro-batch
DOUBLE_BUFFERED = methods.PIPEDREAM_2BW.name
TITLES = {
    DELAYED: "delayed gradients (PipeDream)",
    plan.DSP.name: "DSP (PACI)",
    DOUBLE_BUFFERED: "PipeDream-2BW",
}
#: By the titles of the trade-off.
SYNCHRONOUS = {
    "GPipe": "GPipe",
    "1F1B": "synchronous 1F1B",
    "1F1B, checkpointing": "synchronous 1F1B, checkpointing",
}


def each(run_set: RunSet) -> Iterator[Shown]:
    """Yield the curve, results for numbers of devices, and on demand the rest of the study."""
    runs = run_set.runs
    if run_set.scale == "small":
        runs = _runs(run_set, plan.curve, plan.networks, plan.longer, plan.longest)
    trained = {key: cell for (key, _), cell in run_set.planned.items() if isinstance(cell, TrainedCell)}
    devices = {key: number_of_devices(cell) for key, cell in trained.items()}
    runs = runs.assign(devices=runs["settings"].map(devices)).astype({"k": int, "epochs": int, "staleness": int})
    accuracy, loss = (means(runs, value, POINT) for value in (OUTCOME, "train_loss"))
    points = _points(runs)
    yield from _sentences(run_set, points, accuracy)
    timed = [network for network in read_timed_networks(run_set) if network.cell.width == run_set.example.width]
    rows = _device_rows(run_set, timed)
    yield _curve(run_set, runs)
    if rows:
        yield _devices(run_set, rows, timed)
    yield _tabulate_points(run_set, points, accuracy, loss)
    if rows:
        swept = _of_rates(run_set, plan.swept, plan.curve)
        caption = text_of("staleness", "rates", setting=_describe_setting(run_set, swept))
        yield Folded(_rates(run_set, "rates", caption, swept))
        caption = text_of("staleness", "held_out", epochs=plan.LASTING, held_out=plan.HELD_OUT)
        yield Folded(_rates(run_set, "held-out", caption, _of_rates(run_set, plan.chosen)))
        yield from (Folded(part(run_set)) for part in (_mitigations, _deep, _stable))
        if networks := read_timed_networks(run_set):
            yield Folded(_latencies(run_set, networks))


# --- the curve


def _points(runs: DataFrame) -> list[Point]:
    """Return the points of pipelined methods, curve by curve, in the order of staleness."""
    points = runs[runs["method"] != EXACT].drop_duplicates([*CURVE, "timing", "stages"])
    networks = list(points["network"].unique())
    return sorted(
        points.to_dict("records"),
        key=lambda point: (networks.index(point["network"]), point["epochs"], point["k"], point["staleness"]),
    )


def _sample(samples: SeedSamples, point: Point, method: str) -> SeedSample:
    """Return the sample of a method at a point. Backpropagation is the point at 0."""
    return samples[*(point[name] for name in CURVE), 0 if method == EXACT else point["staleness"], method]


def _gap(samples: SeedSamples, point: Point, other: str) -> Difference:
    return _sample(samples, point, PETRA) - _sample(samples, point, other)


def _sentences(run_set: RunSet, points: Sequence[Point], accuracy: SeedSamples) -> Iterator[Sentence]:
    """State on the first curve, from its largest staleness down, what PETRA loses and how it compares to delay."""
    network, k, epochs = (points[0][name] for name in CURVE)
    first = [point for point in reversed(points) if [point[name] for name in CURVE] == [network, k, epochs]]
    setting = f"{network}, {epochs} epochs, k = {k}, scale “{run_set.scale}”"
    lost, reconstruction = (
        {f"at staleness {point['staleness']}": _gap(accuracy, point, other) for point in first}
        for other in (EXACT, DELAYED)
    )
    known = compare.list_differences(compare.with_intervals(lost), trailing=True)
    absent = [f"{point['staleness']}" for point, gap in zip(first, lost.values(), strict=True) if not gap.estimate]
    rest = f" A staleness of {conjunction(absent)} has not been run yet." * bool(absent)
    yield result(
        known,
        f"PETRA trails backpropagation by {conjunction(known)}, in points ({setting}).{rest}",
        f"What staleness costs PETRA has not been run yet ({setting}).",
        finding=True,
    )
    known = compare.list_differences(reconstruction)
    yield result(
        known,
        f"Reconstruction and current weights change the accuracy of delayed gradients by {conjunction(known)}, "
        f"in points ({setting}).",
        f"What reconstruction and current weights cost at equal staleness has not been run yet ({setting}).",
        finding=True,
    )


def _curve(run_set: RunSet, runs: DataFrame) -> Figure:
    """Draw accuracy against staleness, a line for each length and method, each starting at backpropagation at 0.

    A network and length with runs at a single staleness is only in the table.
    """
    delayed = runs[(runs["status"] == DONE) & (runs["method"] != EXACT)]
    several = delayed.groupby(CURVE)["staleness"].transform("nunique") > 1
    finished = delayed.loc[several, [*CURVE, "method"]].drop_duplicates()
    starts = runs[runs["method"] == EXACT].drop(columns="method").merge(finished, on=CURVE)
    drawn = concat([starts, runs.merge(finished)])
    titles = {m.name: short_title(m) for m in plan.COMPARED}
    dashes: list[tuple[float, ...]] = [(), (5, 1.5), (1, 1), (5, 1, 1, 1)]
    looks = [
        facets.Look(f"{titles[m.name]}, {epochs} epochs", plots.COLOURS[m], dashes[place])
        for m in plan.COMPARED
        for place, epochs in enumerate(sorted(set(drawn["epochs"])))
    ]
    return facets.facet(
        drawn.assign(
            line=drawn["method"].map(titles) + ", " + drawn["epochs"].astype(str) + " epochs",
            panel=drawn["network"] + ", k = " + drawn["k"].astype(str),
        ),
        [facets.line("interval", marked=True, gaps=True), facets.dots(), facets.label_places("devices")],
        key=f"staleness-{run_set.key}",
        caption=text_of("staleness", "curve", run_set=run_set),
        x=facets.Axis("staleness", label="staleness of stage 0, micro-batches; devices"),
        y=OUTCOME,
        hue="line",
        looks={look.label: look for look in looks},
        panels=facets.Panels(col="panel", wrap=2, share=(False, False), height=3.2),
    )


def number_of_devices(cell: TrainedCell) -> str:
    """Return the number of devices with one stage each, with * at asynchronous 1F1B and + with slack."""
    if cell.method == EXACT:
        return "1"
    slack = timing.slack(cell.timing)
    mark = "*" if slack == 0 else "" if slack == 1 else "+"
    return f"{len(cell.stages) or timing.blocks(cell)}{mark}"


def _tabulate_points(run_set: RunSet, points: Sequence[Point], accuracy: SeedSamples, loss: SeedSamples) -> Table:
    """Return a table of every point with its differences."""
    reached = {m: partial(_sample, accuracy, method=m.name) for m in (*plan.COMPARED, methods.BACKPROPAGATION)}
    exact, delayed = (partial(_gap, accuracy, other=other) for other in (EXACT, DELAYED))
    return table(
        key=f"staleness-{run_set.key}-points",
        caption=text_of("staleness", "points", run_set=run_set),
        rows=points,
        fields=[
            words("setting", lambda p: f"{p['network']}, k = {p['k']}, {p['epochs']} epochs", heading=True),
            number("d₀", itemgetter("staleness")),
            words("timing", lambda point: timing.title_of_row(point["timing"], point["stages"])),
            *(mean(f"{short_title(m)}, %", of_method) for m, of_method in reached.items()),
            judged_columns("points", exact, group="PETRA − backpropagation"),
            judged_columns("points", delayed, group="PETRA − delayed gradients"),
            difference_column("difference", partial(_gap, loss, other=EXACT), 4, group="training loss, last epoch"),
        ],
    )


# --- devices


class Modelled(NamedTuple):
    """Modelled cost of a way of training."""

    speed: float  # relative to backpropagation on one device
    fullest: float  # megabytes of the device that holds most
    total: float  # megabytes that the devices hold, each at its peak


def model(network: TimedNetwork, outcome: Outcome) -> Modelled:
    """Return the cost of a way of training whose time and bytes on a network are known."""
    alone = evaluate_best(network, Strategy(EXACT, methods.BACKPROPAGATION), 1, 1)
    return Modelled(alone.seconds / outcome.seconds, outcome.peak / MEGABYTE, outcome.total / MEGABYTE)


class Used(NamedTuple):
    """A way to use a number of devices, with its accuracy and its cost."""

    devices: int
    way: str
    k: int
    staleness: int
    accuracy: SeedSample
    exact: SeedSample  # accuracy of backpropagation with the same samples per update
    cost: Modelled | None  # None if stage costs are not recorded


def _device_rows(run_set: RunSet, timed: list[TimedNetwork]) -> list[Used]:
    """Return PETRA and other methods on each number of devices; empty if the plan has no such cells."""
    runs = _runs(run_set, plan.devices)
    if runs.empty:
        return []
    accuracy = means(runs, OUTCOME, ["k", "method", "timing", "stages"])
    network = next((candidate for candidate in timed if candidate.cell.model == plan.NETWORK), None)
    rows: list[Used] = []

    def add(devices: int, way: str, k: int, method: str, outcome: Outcome | None) -> None:
        stages = ",".join(map(str, plan.DEVICES[devices][0]))
        exact = accuracy[k, EXACT, timing.LOCKSTEP, ""]
        reached = exact if method == EXACT else accuracy[k, method, timing.ONE_F_ONE_B, stages]
        staleness = 0 if method == EXACT else devices - 1
        modelled = model(network, outcome) if network and outcome else None
        rows.append(Used(devices, way, k, staleness, reached, exact, modelled))

    for devices, k, method in plan.choices():
        way = Strategy(method.title, method, sharing=Sharing.STALENESS, slack=0)
        sizes = plan.DEVICES[devices][0] or (1,) * devices
        outcome = evaluate(network, way, sizes, k) if network else None
        add(devices, TITLES.get(method.name, method.title), k, method.name, outcome)
    for devices, (_, k) in plan.DEVICES.items():
        for way in (way for way in PIPELINES if way.title in SYNCHRONOUS):
            outcome = evaluate_best(network, way, devices, k) if network else None
            add(devices, SYNCHRONOUS[way.title], k, EXACT, outcome)
    return sorted(rows, key=lambda row: row.devices)


def _devices(run_set: RunSet, rows: list[Used], timed: list[TimedNetwork]) -> Table:
    machines = [f"Stages were timed on {network.machine}." for network in timed[:1]]
    modelled = partial(amount, group="modelled", without="not run")
    return table(
        key=f"staleness-{run_set.key}-devices",
        caption=text_of("staleness", "devices", setting=_describe_setting(run_set, _runs(run_set, plan.devices))),
        rows=rows,
        fields=[
            words("devices", lambda row: f"{row.devices} devices", heading=True),
            words("way", lambda row: row.way),
            number("k", lambda row: row.k),
            words("d₀", lambda row: "1 update" if row.way == TITLES[DOUBLE_BUFFERED] else f"{row.staleness}"),
            mean("accuracy, %", lambda row: row.accuracy),
            judged_columns(
                "points", lambda row: row.accuracy - row.exact if row.staleness else None, group="− backpropagation"
            ),
            modelled("fullest device, MB", lambda row: row.cost and row.cost.fullest, 1),
            modelled("speed, one device = 1", lambda row: row.cost and row.cost.speed, 2),
        ],
        notes=[*notes("staleness", "devices"), *machines],
    )


# --- the rest of the study


def _of_rates(run_set: RunSet, *parts: Callable[[], Iterable[Cell]]) -> DataFrame:
    """Return the runs of PETRA and backpropagation in these parts of the plan, k = 1."""
    runs = _runs(run_set, *parts)
    return runs[(runs["k"] == 1) & runs["method"].isin([PETRA, EXACT])]


def _rates(run_set: RunSet, key: str, caption: str, runs: DataFrame) -> Table:
    """Return a table of these runs by learning rate."""
    usual = rates.learning_rate(rates.REFERENCE_BATCH)
    runs = runs.assign(factor=(runs["reference_rate"].astype(float) / usual).round(6))
    columns = [number("micro-batch", itemgetter("batch_size"))]
    for factor in sorted(set(runs["factor"])):
        reached = _reader(runs[runs["factor"] == factor], OUTCOME, "batch_size")
        columns.append(mean(f"{TIMES} {factor:g}, %", reached))
    return _by_way(run_set, key, caption, runs, ["staleness", "batch_size"], columns)


def _mitigations(run_set: RunSet) -> Table:
    """Return a table of runs that combine less staleness with the best corrections for it."""
    runs = _runs(run_set, plan.plan_mitigations)
    caption = text_of("staleness", "mitigations", setting=_describe_setting(run_set, runs))
    titles = runs["optimizer"].map({"nadam": "NAdam"}).fillna("predicted weights")
    first = [
        words("mitigation", itemgetter("mitigation"), heading=True),
        amount("rate of 256 samples", itemgetter("reference_rate"), 4),
    ]
    reached = mean("accuracy, %", _reader(runs, OUTCOME, "optimizer", "reference_rate"))
    order = ["optimizer", "reference_rate", "staleness"]
    return _by_way(run_set, "mitigations", caption, runs.assign(mitigation=titles), order, [reached], first)


def _deep(run_set: RunSet) -> Table:
    """Return a table of the chain of 50 stages at each timing."""
    runs = _runs(run_set, plan.deep)
    caption = f"J = {plan.DEEP + 2}, k = 1: accuracy after the last epoch and its training loss by staleness."
    values = [mean("accuracy, %", _reader(runs, OUTCOME)), mean("training loss", _reader(runs, "train_loss"), 3)]
    return _by_way(run_set, "deep", caption, runs, ["staleness"], values)


def _stable(run_set: RunSet) -> Table:
    """Return a table of the largest stable rate, by k and timing."""
    runs = _runs(run_set, plan.plan_map)
    samples = means(runs, "test_accuracy", ["warmup_epochs", "k", "timing", "stages", "reference_rate"])
    tried = sorted(set(runs["reference_rate"]))
    points = [(point.timing, ",".join(map(str, point.stages))) for point in (plan.PAPER, *plan.MAP_POINTS)]

    def largest(point: tuple[str, str], row: tuple[float, int]) -> Entry:
        return stable_rate({rate: samples[*row, *point, rate] for rate in tried})

    return table(
        key=f"staleness-{run_set.key}-stable",
        caption="PETRA on the chain of 8: the largest rate, of 256 samples, up to which nothing breaks, by timing.",
        rows=sorted(set(zip(runs["warmup_epochs"], runs["k"], strict=True))),
        fields=[
            number("warm-up, epochs", lambda row: row[0], 1),
            number("k", lambda row: row[1]),
            *(words(timing.title_of_row(*point), partial(largest, point)) for point in points),
        ],
        notes=["One run at each point."],
    )


def _latencies(run_set: RunSet, networks: list[TimedNetwork]) -> Table:
    """Return a table of the time for a micro-batch over links with latency, relative to the slowest device's time."""
    rows: list[tuple[str, tuple[Cost, ...], tuple[int, ...], float]] = []
    for network in networks:
        title = f"{network.title}, width {network.cell.width}"
        alone = (1,) * len(network.costs)
        rows += [(title, network.costs, alone, slack) for slack in (1.0, 0.0)]
        rows.append((title, network.costs, network.best(4).sizes, 0.0))
    rows.append(("two equal stages", (Cost(1.0, 2.0),) * 2, (1, 1), 0.0))

    def in_ticks(latency: float, row: tuple[str, tuple[Cost, ...], tuple[int, ...], float]) -> float:
        _, costs, sizes, slack = row
        turns = [cost.forward + cost.backward + cost.update for cost in costs]
        tick = max(sum(turns[stage] for stage in part) for part in parts_of(sizes))
        link = Link(latency=latency * tick)
        return run_full(plan.PETRA, costs, sizes, 1, per_device(sizes, slack), link)[1] / tick

    return table(
        key=f"staleness-{run_set.key}-latency",
        caption=text_of("staleness", "latency"),
        rows=rows,
        fields=[
            words("network", lambda row: row[0], heading=True),
            number("devices", lambda row: len(row[2])),
            words("timing", lambda row: "lockstep" if row[3] else "asynchronous 1F1B"),
            number("d₀", lambda row: round((1 + row[3]) * (len(row[2]) - 1))),
            *(amount(f"latency {latency:g}", partial(in_ticks, latency), 3) for latency in LATENCIES),
        ],
    )


# --- common


def _reader(runs: DataFrame, value: str, *further: str) -> Callable[[Point], SeedSample]:
    """Return a function from a run to the sample of its method, timing, stages and `further` settings."""
    by = ["method", "timing", "stages", *further]
    samples = means(runs, value, by)
    return lambda row: samples[tuple(row[name] for name in by)]


def _by_way(
    run_set: RunSet,
    key: str,
    caption: str,
    runs: DataFrame,
    order: list[str],
    values: Sequence[Field],
    first: Sequence[Field] = (),
) -> Table:
    """Return a table of `values` by method and timing, and by the settings in `order`, with `first` columns."""
    return table(
        key=f"staleness-{run_set.key}-{key}",
        caption=caption,
        rows=runs.drop_duplicates(["method", "timing", "stages", *order]).sort_values(order).to_dict("records"),
        fields=[*first, number("d₀", itemgetter("staleness")), words("way", _way), *values],
    )


def _runs(run_set: RunSet, *parts: Callable[[], Iterable[Cell]]) -> DataFrame:
    """Return the runs of the trained cells of these parts of the plan, with any seed."""
    settings = {settings_key(cell) for part in parts for cell in part() if isinstance(cell, TrainedCell)}
    runs: DataFrame = run_set.runs[run_set.runs["settings"].isin(settings)]
    return runs


def _describe_setting(run_set: RunSet, runs: DataFrame) -> str:
    return run_set.describe(runs, network=True, rate=False)


def _way(row: Point) -> str:
    """Return method and timing of a run."""
    title = short_title(methods.by_name(row["method"]))
    return title if row["method"] == EXACT else f"{title}, {timing.title_of_row(row['timing'], row['stages'])}"


EXHIBIT = declare("staleness", each)
