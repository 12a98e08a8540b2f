"""Benchmarks of speed and memory: every ratio of interest with its spread, and what was hoped for it.

Whatever lies in the folder of benchmark records is shown, in one form; what is special about one is said by its script,
in its record (`reproduce.records.benchmarks`). A ratio is the median over rounds of ratios within a round, never a
ratio of medians.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from petra_core import methods
from petra_core.drawing.gantt import to_svg
from reproduce.exhibits._exhibit import Exhibit, Folded, Sentence, Shown
from reproduce.records.benchmarks import Benchmark, Comparison, Goal, Spread
from reproduce.records.frames import Frame, Frames
from reproduce.show import facets
from reproduce.show.content import (
    MEGABYTE,
    NARROW_SPACE,
    Entry,
    Figure,
    Finding,
    Listing,
    Table,
    Tone,
    code,
    method_name,
    missing,
    none,
    text,
)
from reproduce.show.content import number as number_entry
from reproduce.show.facets import METHOD_LOOKS, Look, facet
from reproduce.show.tables import Field, entry, number, table, words
from reproduce.words import conjunction, count, some

INTRODUCTION = (
    "Contestants are measured in turn, in rounds. A ratio is taken within a round; shown are the median over the "
    "rounds and the quartiles. An aim was written into the benchmark before it was run. "
    "Every value of every round is in series.csv of `python -m reproduce records export FOLDER`."
)
DRAWN = 2  # timelines of a benchmark; its record has all
#: By units, costs first: the unit in which values stand side by side, what one of it is, and the format.
UNITS = {"s": ("ms", 1e-3, ",.1f"), "B": ("MB", MEGABYTE, ",.2f"), "relative": ("relative", 1.0, ".1e")}
METHODS = {method.title: method for method in methods.KNOWN}
SERIES_KEY = ["group", "contestant", "quantity", "unit", "at"]


def whole(frames: Frames) -> Iterator[Shown]:
    """Every record; of several records of one benchmark the first is explained."""
    problems, records = frames.results.benchmark_problems, frames.results.benchmarks
    if problems:
        unreadable = f"{count(len(problems), 'file')} unreadable. {some([str(problem) for problem in problems])}"
        yield Finding(f"Benchmarks: {unreadable}", Tone.ALERT)
    if not records:
        yield "No benchmark has been recorded yet."
        return
    aimed = [aim for benchmark in records for aim in _aimed(benchmark)]
    if aimed:
        yield Sentence(
            f"{sum(holds for _, holds in aimed)} of {count(len(aimed), 'aim')} for speed and memory reached."
        )
    yield Folded(_machines(records))
    explained: dict[str, Benchmark] = {}  # by the paragraph
    for benchmark in records:
        first = explained.setdefault(benchmark.about, benchmark)
        again = f", recorded as {benchmark.name}: as explained above under “{first.title}”."
        yield benchmark.title + (f". {benchmark.about}" if first is benchmark else again)
        yield from benchmark.findings
        yield from _aims(benchmark)
        yield from (Finding(f"Benchmarks: {finding}") for finding in benchmark.findings)
        yield from _shown(benchmark, frames.series[frames.series["benchmark"] == benchmark.name])


def _shown(benchmark: Benchmark, own: Frame) -> Iterator[Shown]:
    """All that there is of a record, `own` its series, and how it was measured."""
    curves, plain = own[own["at"].notna()], own[own["at"].isna()]
    if not curves.empty:
        yield _curves(benchmark, curves)
    tables = [_judged(benchmark)] if benchmark.comparisons or benchmark.goals else []
    if not plain.empty and ("contestants" in benchmark.setting or not tables):
        tables.append(_side_by_side(benchmark, plain))
    chosen = "Setting: " + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in benchmark.setting.items())
    notes = (*benchmark.notes, f"Again: {benchmark.command}")
    for shown in tables[:1]:
        yield replace(shown, caption=f"{shown.caption} {chosen}.", notes=(*shown.notes, *notes))
    yield from tables[1:]
    if not tables:
        yield " ".join((f"{chosen}.", *notes))
    yield from list(_timelines(benchmark))[:DRAWN]
    if benchmark.patch:
        title = f"Difference to the commit: {benchmark.name}"
        yield Folded(Listing(f"benchmark-{benchmark.name}-patch", title, benchmark.patch))


# --- aims


def _aims(benchmark: Benchmark) -> Iterator[Finding]:
    aimed = _aimed(benchmark)
    missed = [sought for sought, holds in aimed if not holds]
    aims = count(len(aimed), "aim")
    if missed:
        words = some([_missed(benchmark, sought) for sought in missed])
        yield Finding(f"Benchmarks: {benchmark.title}: {len(missed)} of {aims} not reached. {words}.", Tone.ALERT)
    elif aimed:
        yield Finding(f"Benchmarks: {benchmark.title}: {aims} reached.", Tone.GOOD)


def _aimed(benchmark: Benchmark) -> list[tuple[Comparison | Goal, bool]]:
    """The ratios and values with an aim, and whether it is reached."""
    measured: tuple[Comparison | Goal, ...] = (*benchmark.comparisons, *benchmark.goals)
    judged = [(sought, sought.holds(benchmark.spread(sought).median)) for sought in measured]
    return [(sought, holds) for sought, holds in judged if holds is not None]


def _missed(benchmark: Benchmark, sought: Comparison | Goal) -> str:
    median = benchmark.spread(sought).median
    if isinstance(sought, Comparison):
        found, unit = f"{sought.first} over {sought.second}, {sought.quantity}, {median:.2f}", ""
    else:
        unit = f" {benchmark.series_of(sought).unit}".rstrip()
        found = f"{sought.name}, {sought.quantity}, {_digits(median)}{unit}"
    return f"{sought.group}: {found} instead of {sought.aim}{unit}"


def _judged(benchmark: Benchmark) -> Table:
    """Ratios of interest, and values that have an aim themselves."""
    measured: tuple[Comparison | Goal, ...] = (*benchmark.comparisons, *benchmark.goals)
    kinds = ["measured ratios"] * bool(benchmark.comparisons) + ["values with an aim"] * bool(benchmark.goals)

    def median(row: tuple[Comparison | Goal, Spread]) -> Entry:
        return number_entry(row[1].median, 3) if isinstance(row[0], Comparison) else _value(row[1].median)

    def quartiles(row: tuple[Comparison | Goal, Spread]) -> Entry:
        sought, found = row
        if found.n == 1:
            return missing("measured once")
        digits = ".3f" if isinstance(sought, Comparison) else ".3g"
        return text(f"{found.lower:{digits}} to {found.upper:{digits}}", tone=Tone.OURS, sort=found.lower)

    def aim(row: tuple[Comparison | Goal, Spread]) -> Entry:
        sought, holds = row[0], row[0].holds(row[1].median)
        if holds is None:
            return none("nothing was aimed at")
        return text(f"{sought.aim}: {'holds' if holds else 'does not hold'}", tone=Tone.GOOD if holds else Tone.ALERT)

    over = words("over", lambda row: row[0].second if isinstance(row[0], Comparison) else None)
    unit = words("unit", lambda row: benchmark.series_of(row[0]).unit if isinstance(row[0], Goal) else "ratio")
    return table(
        key=f"benchmark-{benchmark.name}",
        caption=f"{benchmark.title}: {conjunction(kinds)}.",
        rows=[(sought, benchmark.spread(sought)) for sought in measured],
        fields=[
            words("group", lambda row: row[0].group),
            words("of", lambda row: row[0].first if isinstance(row[0], Comparison) else row[0].name),
            *([over] if benchmark.comparisons else []),
            words("quantity", lambda row: row[0].quantity),
            entry("median", median),
            words("quartiles", quartiles),
            *([unit] if benchmark.goals else []),
            number("rounds", lambda row: row[1].n),
            words("aim", aim),
        ],
        grouped=True,
    )


# --- contestants


def _side_by_side(benchmark: Benchmark, own: Frame) -> Table:
    """A row a contestant, those that were not there or failed too, a column a quantity, costs first."""
    medians = own.groupby(["group", "contestant", "quantity"])["value"].median()
    units = dict(zip(own["quantity"], own["unit"], strict=True))
    order = [*UNITS, *units.values()]
    named = "contestants" in benchmark.setting
    names = str(benchmark.setting["contestants"]).split("; ") if named else own["contestant"].unique()
    there = set(zip(own["group"], own["contestant"], strict=True))

    def state(row: tuple[str, str]) -> Entry:
        said = str(benchmark.setting[row[1]])
        return text(said) if row in there else missing(said)

    def shown(quantity: str) -> Field:
        unit, one, form = UNITS.get(units[quantity], (units[quantity], 1.0, ",.0f"))

        def of(row: tuple[str, str]) -> Entry:
            value = medians.get((*row, quantity))
            if value is None:
                return missing("not measured") if row in there else none("not measured")
            return Entry(f"{value / one:{form}}" if value else "0", value, Tone.OURS)

        return entry(f"{quantity}, {unit}", of)

    return table(
        key=f"benchmark-{benchmark.name}-table",
        caption=f"{benchmark.title}: contestants side by side, medians over the rounds.",
        rows=[(group, name) for group in own["group"].unique() for name in names],
        fields=[
            words("group", lambda row: row[0]),
            words("contestant", lambda row: _contestant(row[1])),
            *([words("version", state)] if named else []),
            *(shown(quantity) for quantity in sorted(units, key=lambda quantity: order.index(units[quantity]))),
        ],
        grouped=True,
    )


def _contestant(name: str) -> Entry:
    return method_name(METHODS[name]) if name in METHODS else text(name)


# --- curves


def _curves(benchmark: Benchmark, curves: Frame) -> Figure:
    medians = curves.groupby(SERIES_KEY, sort=False)["value"].median().reset_index()
    costs = [UNITS.get(unit, (unit, 1.0)) for unit in medians["unit"]]
    medians["value"] /= [cost[1] for cost in costs]
    medians["quantity"] += [f", {cost[0]}" for cost in costs]
    names = list(medians["contestant"].unique())
    quantities, axes = list(medians["quantity"].unique()), list(medians["group"].unique())
    return facet(
        medians,
        [facets.line(), facets.dots(size=3.5)],
        key=f"benchmark-{benchmark.name}-curves",
        title=f"{benchmark.title}: curves",
        caption=f"{benchmark.title}: {conjunction(quantities)} against {conjunction(axes)}. Mark: median over the "
        "rounds. Both axes are logarithmic.",
        x="at",
        y="value",
        hue="contestant",
        looks={n: METHOD_LOOKS[METHODS[n].name] if n in METHODS else Look(n, f"C{i}") for i, n in enumerate(names)},
        row="quantity",
        col="group",
        titles=lambda quantity, axis: f"{quantity}, against {axis}",
        xlog=True,
        ylog=True,
        ticks=sorted(medians["at"].unique()),
        share=("col", "row"),
    )


# --- timelines


def _timelines(benchmark: Benchmark) -> Iterator[Figure]:
    """Those whose titles differ after the last comma only, as measured and modelled, on one axis."""
    ends: dict[str, float] = {}
    for title, timeline in benchmark.timelines.items():
        subject, last = title.rpartition(", ")[0], max((event.end for event in timeline.events), default=0.0)
        ends[subject] = max(last, ends.get(subject, 0.0))
    for place, (title, timeline) in enumerate(benchmark.timelines.items()):
        if timeline.events:
            devices = range(timeline.devices)
            busy = ", ".join(f"{_digits(1e3 * timeline.busy(device))} ms of process {device}" for device in devices)
            words = f"{len(timeline.events)} actions in {_digits(1e3 * timeline.seconds)} ms; at work: {busy}."
            span, labels = (0.0, ends[title.rpartition(", ")[0]]), {device: f"process {device}" for device in devices}
            yield Figure(
                f"benchmark-{benchmark.name}-timeline-{place}",
                title,
                words,
                to_svg(timeline, title=title, span=span, labels=labels),
                f"{benchmark.title}: {title}. {words}",
            )


# --- values


def _value(value: float) -> Entry:
    return Entry(_digits(value), value, Tone.OURS)


def _digits(value: float) -> str:
    """Three digits, or more if it is large."""
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _machines(records: Sequence[Benchmark]) -> Table:
    def environment(name: str) -> Field:
        return words(name, lambda benchmark: str(benchmark.environment.get(name, "")))

    def commit(benchmark: Benchmark) -> Entry:
        commit, state = str(benchmark.code.get("commit") or ""), f"{NARROW_SPACE}+ changes"
        shown = commit[:12] + ("" if benchmark.code.get("clean") else state)
        return Entry(shown, commit, code=True) if commit else missing("not known")

    return table(
        key="benchmark-machines",
        caption="Where the benchmarks ran. Load: processes that wanted to run in the last minute; the benchmark's own "
        "are in the second number. Threads: of each process.",
        rows=records,
        fields=[
            words("benchmark", lambda benchmark: benchmark.title),
            words("date", lambda benchmark: benchmark.date),
            *(environment(name) for name in ("device", "processor", "cores", "threads")),
            number("before", lambda benchmark: benchmark.load[0], 2, group="load"),
            number("after", lambda benchmark: benchmark.load[1], 2, group="load"),
            words("torch", lambda benchmark: str(benchmark.environment.get("packages", {}).get("torch", ""))),
            words("commit", commit),
            words("command", lambda benchmark: code(benchmark.command)),
        ],
    )


EXHIBIT = Exhibit("benchmarks", "Benchmarks", INTRODUCTION, whole=whole, folded="Where the benchmarks ran")
