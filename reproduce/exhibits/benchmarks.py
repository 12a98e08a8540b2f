"""Benchmarks of speed and memory: every ratio of interest with its spread, and what was hoped for it.

Whatever lies in the folder of benchmark records is shown, in one form (`reproduce.records.benchmarks`); those of
`VIEWS` have a table or curves of their own beside it. A ratio is the median over rounds of ratios within a round, never
a ratio of medians.
"""

from collections.abc import Sequence
from typing import Protocol

from petra_core.drawing.gantt import to_svg
from reproduce.exhibits import benchmark_growth, benchmark_memory, benchmark_peers, benchmark_tick
from reproduce.records.benchmarks import Benchmark, Comparison, Goal, Spread, spread
from reproduce.records.results import Results
from reproduce.show.content import (
    NARROW_SPACE,
    Block,
    Column,
    Entry,
    Figure,
    Finding,
    Listing,
    Section,
    Table,
    Tone,
    code,
    missing,
    none,
    number,
    some,
    text,
)
from reproduce.words import count

TITLE = "Benchmarks"


class View(Protocol):
    """A module that shows one benchmark."""

    def blocks(self, benchmark: Benchmark) -> list[Block]:
        """Tables and figures."""

    def findings(self, benchmark: Benchmark) -> list[Finding]:
        """Lines of the summary, without the section's title."""


#: By the first word of a benchmark's name: what else there is to show.
VIEWS: dict[str, View] = {
    "growth": benchmark_growth,
    "memory": benchmark_memory,
    "peers": benchmark_peers,
    "tick": benchmark_tick,
}
DRAWN = 2  # timelines of a benchmark that are drawn at once, the others on demand


def section(results: Results) -> Section:
    """A table of ratios for each benchmark; every value measured, and where it was, folded."""
    findings = [_unreadable(results)] if results.benchmark_problems else []
    if not results.benchmarks:
        return Section("benchmarks", TITLE, ["No benchmark has been recorded yet."], findings)
    blocks: list[Block] = [_INTRODUCTION]
    folded: list[Block] = [_machines(results.benchmarks)]
    explained: dict[str, str] = {}  # a paragraph, and the title of the first benchmark that it is about
    for benchmark in results.benchmarks:
        view = VIEWS.get(benchmark.name.partition("-")[0])
        findings += _findings(benchmark)
        blocks.append(_explanation(benchmark, explained.get(benchmark.about)))
        explained.setdefault(benchmark.about, benchmark.title)
        if benchmark.comparisons:
            blocks.append(_ratios(benchmark))
        if benchmark.goals:
            blocks.append(_goals(benchmark))
        if view is not None:
            findings += [Finding(f"{TITLE}: {found.text}", found.tone) for found in view.findings(benchmark)]
            blocks += view.blocks(benchmark)
        drawings = _drawings(benchmark)
        blocks += drawings[:DRAWN]
        folded += [_values(benchmark), *drawings[DRAWN:]]
        if benchmark.patch:
            title = f"Difference to the commit: {benchmark.name}"
            folded.append(Listing(f"benchmark-{benchmark.name}-patch", title, benchmark.patch))
    return Section(
        "benchmarks",
        TITLE,
        blocks,
        findings,
        folded=folded,
        folded_title="Every value, where it ran, and more drawings",
    )


_INTRODUCTION = (
    "Contestants are measured in turn, in rounds. A ratio is taken within a round; shown are the median over the "
    "rounds and the quartiles. An aim was written into the benchmark before it was run."
)


def _explanation(benchmark: Benchmark, earlier: str | None) -> str:
    """What was measured and why; of several records of one benchmark the first says it."""
    if earlier is None:
        return f"{benchmark.title}. {benchmark.about}"
    return f"{benchmark.title}, recorded as {benchmark.name}: as explained above under “{earlier}”."


def _unreadable(results: Results) -> Finding:
    problems = results.benchmark_problems
    return Finding(
        f"{TITLE}: {count(len(problems), 'file')} unreadable. {some([str(p) for p in problems])}", Tone.ALERT
    )


def _findings(benchmark: Benchmark) -> list[Finding]:
    measured: tuple[Comparison | Goal, ...] = (*benchmark.comparisons, *benchmark.goals)
    aimed = [sought for sought in measured if sought.aim]
    failed = [sought for sought in aimed if not sought.holds(benchmark.spread(sought).median)]
    if not aimed:
        return []
    if not failed:
        return [Finding(f"{TITLE}: {benchmark.title}: {_aims(len(aimed))} reached.", Tone.GOOD)]
    words = some([_told(benchmark, sought) for sought in failed])
    missed = f"{len(failed)} of {_aims(len(aimed))} not reached"
    return [Finding(f"{TITLE}: {benchmark.title}: {missed}. {words}.", Tone.ALERT)]


def _aims(amount: int) -> str:
    return count(amount, "aim")


def _told(benchmark: Benchmark, sought: Comparison | Goal) -> str:
    median = benchmark.spread(sought).median
    if isinstance(sought, Goal):
        unit = benchmark.series_of(sought).unit
        return (
            f"{sought.group}: {sought.name}, {sought.quantity}, {_value(median).text} {unit} instead of {sought.aim} "
            f"{unit}"
        )
    return (
        f"{sought.group}: {sought.first} over {sought.second}, {sought.quantity}, {median:.2f} instead of {sought.aim}"
    )


def _ratios(benchmark: Benchmark) -> Table:
    columns = [
        Column("group", numeric=False),
        Column("of", numeric=False),
        Column("over", numeric=False),
        Column("quantity", numeric=False),
        Column("median", group="ratio"),
        Column("quartiles", group="ratio", numeric=False),
        Column("pairs", group="ratio"),
        Column("aim", numeric=False),
    ]
    return Table(
        key=f"benchmark-{benchmark.name}",
        caption=f"{benchmark.title}: measured ratios. {_setting(benchmark)}",
        columns=columns,
        rows=[_ratio(benchmark, comparison) for comparison in benchmark.comparisons],
        notes=(*benchmark.notes, f"Again: {benchmark.command}"),
        grouped=True,
    )


def _ratio(benchmark: Benchmark, comparison: Comparison) -> list[Entry]:
    found = benchmark.spread(comparison)
    return [
        text(comparison.group),
        text(comparison.first),
        text(comparison.second),
        text(comparison.quantity),
        number(found.median, 3),
        _quartiles(found),
        number(found.n, 0, tone=Tone.PLAIN),
        _aim(comparison, found.median),
    ]


def _goals(benchmark: Benchmark) -> Table:
    columns = [
        Column("group", numeric=False),
        Column("of", numeric=False),
        Column("quantity", numeric=False),
        Column("median"),
        Column("quartiles", numeric=False),
        Column("unit", numeric=False),
        Column("rounds"),
        Column("aim", numeric=False),
    ]
    rows = []
    for goal in benchmark.goals:
        found = benchmark.spread(goal)
        rows.append(
            [
                text(goal.group),
                text(goal.name),
                text(goal.quantity),
                _value(found.median),
                _quartiles(found, digits=".3g"),
                text(benchmark.series_of(goal).unit),
                number(found.n, 0, tone=Tone.PLAIN),
                _aim(goal, found.median),
            ]
        )
    return Table(
        key=f"benchmark-{benchmark.name}-goals",
        caption=f"{benchmark.title}: values with an aim, which depend on the machine. {_setting(benchmark)}",
        columns=columns,
        rows=rows,
        notes=() if benchmark.comparisons else (*benchmark.notes, f"Again: {benchmark.command}"),
        grouped=True,
    )


def _setting(benchmark: Benchmark) -> str:
    chosen = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in benchmark.setting.items())
    return f"Setting: {chosen}."


def _quartiles(found: Spread, digits: str = ".3f") -> Entry:
    if found.n == 1:
        return missing("measured once")
    return text(f"{found.lower:{digits}} to {found.upper:{digits}}", tone=Tone.OURS, sort=found.lower)


def _aim(sought: Comparison | Goal, median: float) -> Entry:
    holds = sought.holds(median)
    if holds is None:
        return none("nothing was aimed at")
    return text(f"{sought.aim}: {'holds' if holds else 'does not hold'}", tone=Tone.GOOD if holds else Tone.ALERT)


def _values(benchmark: Benchmark) -> Table:
    columns = [
        Column("group", numeric=False),
        Column("contestant", numeric=False),
        Column("quantity", numeric=False),
        Column("at", hint="place on a curve's axis"),
        Column("median"),
        Column("lowest"),
        Column("highest"),
        Column("unit", numeric=False),
        Column("rounds"),
    ]
    rows = [
        [
            text(series.group),
            text(series.name),
            text(series.quantity),
            none("no curve") if series.at is None else number(series.at, 0, tone=Tone.PLAIN),
            *(_value(value) for value in (spread(series.values).median, min(series.values), max(series.values))),
            text(series.unit),
            number(len(series.values), 0, tone=Tone.PLAIN),
        ]
        for series in benchmark.series
    ]
    data = [
        {
            "group": series.group,
            "contestant": series.name,
            "quantity": series.quantity,
            "at": "" if series.at is None else series.at,
            "unit": series.unit,
            "round": place,
            "value": value,
        }
        for series in benchmark.series
        for place, value in enumerate(series.values, start=1)
    ]
    return Table(
        key=f"benchmark-{benchmark.name}-values",
        caption=f"{benchmark.title}: what was measured; the download has every value of every round.",
        columns=columns,
        rows=rows,
        data=data,
        grouped=True,
    )


def _value(value: float) -> Entry:
    return Entry(_in_digits(value), value, Tone.OURS)


def _in_digits(value: float) -> str:
    """Three digits, or more if it is large."""
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _drawings(benchmark: Benchmark) -> list[Figure]:
    """Its timelines; those whose titles differ after the last comma only, as measured and modelled, on one axis."""
    ends: dict[str, float] = {}
    for title, timeline in benchmark.timelines.items():
        last = max((event.end for event in timeline.events), default=0.0)
        ends[_subject(title)] = max(last, ends.get(_subject(title), 0.0))
    figures = []
    for place, (title, timeline) in enumerate(benchmark.timelines.items()):
        if not timeline.events:
            continue
        svg = to_svg(
            timeline,
            title=title,
            span=(0.0, ends[_subject(title)]),
            labels={device: f"process {device}" for device in range(timeline.devices)},
        )
        busy = ", ".join(
            f"{_in_digits(1e3 * timeline.busy(device))} ms of process {device}" for device in range(timeline.devices)
        )
        description = f"{len(timeline.events)} actions in {_in_digits(1e3 * timeline.seconds)} ms; at work: {busy}."
        figures.append(
            Figure(
                f"benchmark-{benchmark.name}-timeline-{place}",
                title,
                description,
                svg,
                f"{benchmark.title}: {title}. {description}",
            )
        )
    return figures


def _subject(title: str) -> str:
    return title.rpartition(", ")[0]


def _machines(benchmarks: Sequence[Benchmark]) -> Table:
    columns = [
        Column("benchmark", numeric=False),
        Column("date", numeric=False),
        Column("device", numeric=False),
        Column("processor", numeric=False),
        Column("cores"),
        Column("threads", hint="of each process"),
        Column("before", group="load"),
        Column("after", group="load"),
        Column("torch", numeric=False),
        Column("commit", numeric=False),
        Column("command", numeric=False),
    ]
    rows = []
    for benchmark in benchmarks:
        environment, commit = benchmark.environment, str(benchmark.code.get("commit") or "")
        state = "" if benchmark.code.get("clean") else f"{NARROW_SPACE}+ changes"
        rows.append(
            [
                text(benchmark.title),
                text(benchmark.date),
                text(str(environment.get("device", ""))),
                text(str(environment.get("processor", ""))),
                text(str(environment.get("cores", ""))),
                text(str(environment.get("threads", ""))),
                *(number(load, 2, tone=Tone.PLAIN) for load in benchmark.load),
                text(str(environment.get("packages", {}).get("torch", ""))),
                Entry(commit[:12] + state, commit, code=True) if commit else missing("not known"),
                code(benchmark.command),
            ]
        )
    return Table(
        key="benchmark-machines",
        caption="Where the benchmarks ran. Load: processes that wanted to run in the last minute; the benchmark's own "
        "are in the second number.",
        columns=columns,
        rows=rows,
    )
