"""Show the benchmarks of speed and memory: every ratio of interest with its spread.

All records in the folder of benchmark records are shown in one form. Text that is specific to a benchmark comes from
its script and is in its record (`reproduce.records.benchmarks`). A ratio is the median over rounds of ratios within a
round, never a ratio of medians.
"""

from collections.abc import Iterator
from dataclasses import replace

from pandas import DataFrame

from reproduce.drawing.gantt import Panel, to_svg
from reproduce.exhibits._exhibit import Folded, Shown, declare
from reproduce.presentation import facets
from reproduce.presentation.content import MEGABYTE, Entry, Figure, Finding, Listing, Role, Table, missing
from reproduce.presentation.tables import Field, entry, number, table, words
from reproduce.records.benchmarks import Benchmark, Comparison
from reproduce.records.frames import Frames
from reproduce.text import conjunction, count, some

DRAWN = 2  # number of timelines shown for a benchmark (modelled and measured); its record contains all
LISTED = 3  # number of items of a finding; the tables contain all


def whole(frames: Frames) -> Iterator[Shown]:
    """Yield every record. Explain a benchmark only at its first record, and list a patch only once."""
    problems = frames.results.benchmark_problems
    records = [replace(record, title=_make_title(record)) for record in frames.results.benchmarks]
    if problems:
        unreadable = f"{count(len(problems), 'file')} unreadable. {some([str(problem) for problem in problems])}"
        yield Finding(unreadable, Role.ALERT)
    if not records:
        yield "No benchmark has been recorded yet."
        return
    values, units = frames.series["value"], frames.series["unit"]
    series = frames.series.assign(
        value=values / units.map({"s": 1e-3, "B": MEGABYTE}).fillna(1.0),
        quantity=frames.series["quantity"] + ", " + units.replace({"s": "ms", "B": "MB"}),
    )
    explained: dict[str, Benchmark] = {}  # first record by explanation
    patched: dict[str, list[str]] = {}  # names of records by patch
    for benchmark in records:
        first = explained.setdefault(benchmark.about, benchmark)
        again = f", recorded as {benchmark.name}: as explained above under “{first.title}”."
        yield benchmark.title + (f". {benchmark.about}" if first is benchmark else again)
        yield from (Finding(f"{benchmark.name}: {some(finding.split('; '), LISTED)}") for finding in benchmark.findings)
        yield from _contents(benchmark, series[series["benchmark"] == benchmark.name])
        if benchmark.patch:
            patched.setdefault(benchmark.patch, []).append(benchmark.name)
    for patch, names in patched.items():
        title = f"Difference to the commit: {conjunction(names)}"
        yield Folded(Listing(f"benchmark-{names[0]}-patch", title, patch))


def _make_title(benchmark: Benchmark) -> str:
    """Return the title with the name of a GPU: on a GPU the same script answers another question."""
    device = benchmark.environment.get("device", "cpu")
    return benchmark.title if device == "cpu" else f"{benchmark.title} ({device})"


def _contents(benchmark: Benchmark, series: DataFrame) -> Iterator[Shown]:
    """Yield all content of a record, with its `series`, and how it was measured."""
    curves, plain = series[series["at"].notna()], series[series["at"].isna()]
    if not curves.empty:
        yield _curves(benchmark, curves)
    tables = [_tabulate_ratios(benchmark)] if benchmark.comparisons else []
    if not plain.empty and ("contestants" in benchmark.setting or not tables):
        tables.append(_side_by_side(benchmark, plain))
    chosen = "Setting: " + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in benchmark.setting.items())
    notes = (*benchmark.notes, _where(benchmark), f"Again: {benchmark.command}")
    for first in tables[:1]:
        yield replace(first, caption=f"{first.caption} {chosen}.", notes=(*first.notes, *notes))
    yield from tables[1:]
    if not tables:
        yield " ".join((f"{chosen}.", *notes))
    yield from _timelines(benchmark)


def _where(benchmark: Benchmark) -> str:
    machine, (before, after) = benchmark.environment, benchmark.load
    known = [f"{name} {machine[name]}" for name in ("device", "processor", "cores", "threads") if name in machine]
    torch = machine.get("packages", {}).get("torch", "")
    commit = str(benchmark.code.get("commit") or "not known")[:12] + " + changes" * (not benchmark.code.get("clean"))
    return (
        f"Run on {benchmark.date}: {', '.join(known)}, torch {torch}; load {before:.2f} before, {after:.2f} after; "
        f"commit {commit}."
    )


def _tabulate_ratios(benchmark: Benchmark) -> Table:
    """Return a table of the ratios of interest."""

    def median(comparison: Comparison) -> Entry:
        spread = benchmark.spread(comparison)
        quartiles = f" ({_ratio(spread.lower)} to {_ratio(spread.upper)})" if spread.n > 1 else ""
        return Entry(f"{_ratio(spread.median)}{quartiles}", spread.median, Role.OURS)

    return table(
        key=f"benchmark-{benchmark.name}",
        caption=f"{benchmark.title}: measured ratios.",
        rows=benchmark.comparisons,
        fields=[
            words("group", lambda row: row.group, heading=True),
            words("of", lambda row: row.title),
            words("quantity", lambda row: row.quantity),
            entry("median (quartiles)", median),
            number("rounds", lambda row: benchmark.spread(row).n),
        ],
    )


def _ratio(value: float) -> str:
    return f"{value:.3f}" if value >= 0.01 else f"{value:.2g}"


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _side_by_side(benchmark: Benchmark, series: DataFrame) -> Table:
    """Return a table with a row for each contestant, also failed ones, and a column for each quantity, costs first."""
    medians = series.groupby(["group", "contestant", "quantity"])["value"].median()
    named = str(benchmark.setting.get("contestants", "")).split("; ")
    names = named if any(named) else series["contestant"].unique()

    def column(quantity: str) -> Field:
        def spread_entry(row: tuple[str, str]) -> Entry:
            value = medians.get((*row, quantity))
            return missing("not measured") if value is None else Entry(_digits(value), value, Role.OURS)

        return entry(quantity, spread_entry)

    return table(
        key=f"benchmark-{benchmark.name}-table",
        caption=f"{benchmark.title}: contestants side by side, medians over the rounds.",
        rows=[(group, name) for group in series["group"].unique() for name in names],
        fields=[
            words("group", lambda row: row[0], heading=True),
            words("contestant", lambda row: row[1]),
            *([words("version", lambda row: benchmark.setting[row[1]])] if any(named) else []),
            *map(column, sorted(series["quantity"].unique(), key=lambda name: not name.endswith((", ms", ", MB")))),
        ],
    )


def _curves(benchmark: Benchmark, curves: DataFrame) -> Figure:
    medians = curves.groupby(["group", "contestant", "quantity", "at"], sort=False)["value"].median().reset_index()
    quantities, axes, names = (list(medians[column].unique()) for column in ("quantity", "group", "contestant"))
    return facets.facet(
        medians,
        [facets.line(), facets.dots(size=3.5)],
        key=f"benchmark-{benchmark.name}-curves",
        caption=f"{benchmark.title}: {conjunction(quantities)} against {conjunction(axes)}. Mark: median over the "
        "rounds. Both axes are logarithmic.",
        x=facets.Axis("at", log=True, ticks=sorted(medians["at"].unique())),
        y=facets.Axis("value", log=True),
        hue="contestant",
        looks={name: facets.TITLE_LOOKS.get(name, facets.Look(name, f"C{place}")) for place, name in enumerate(names)},
        panels=facets.Panels(
            row="quantity",
            col="group",
            titles=lambda quantity, axis: f"{quantity}, against {axis}",
            share=("col", "row"),
        ),
    )


def _timelines(benchmark: Benchmark) -> Iterator[Figure]:
    drawn = [(title, timeline) for title, timeline in benchmark.timelines.items() if timeline.events][:DRAWN]
    span = 0.0, max((event.end for _, timeline in drawn for event in timeline.events), default=0.0)
    for place, (title, timeline) in enumerate(drawn):
        lanes = [f"process {device}" for device in range(timeline.devices)]
        busy = ", ".join(f"{_digits(1e3 * timeline.busy(device))} ms of {name}" for device, name in enumerate(lanes))
        text = f"{len(timeline.events)} actions in {_digits(1e3 * timeline.seconds)} ms; at work: {busy}."
        key = f"benchmark-{benchmark.name}-timeline-{place}"
        svg = to_svg([Panel(title, timeline, span, lanes)], key=f"figure-{key}", title=title)
        yield Figure(key, title, svg, f"{title}. {text}")


EXHIBIT = declare("benchmarks", whole=whole)
