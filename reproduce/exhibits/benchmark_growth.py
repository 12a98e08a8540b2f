"""The benchmark "growth" in the report: curves, exponents, and two claims that they can refute.

a tick of PETRA grows linearly in depth: a straight line explains at least 99 % of the variance of its time over J,
    and the upper end of the exponent's interval is at most 1.1
what an inner stage holds under PETRA does not grow with the delay: the interval of the exponent of its bytes
    against J lies within ±0.02
"""

from collections.abc import Sequence

from petra_core import methods
from reproduce.exhibits.benchmark_curves import Quantity, figure, method_of
from reproduce.modelling.slopes import line, power_law
from reproduce.records.benchmarks import Benchmark, Series, spread
from reproduce.show.content import (
    KILOBYTE,
    Block,
    Column,
    Entry,
    Finding,
    Table,
    Tone,
    method_name,
    none,
    number,
    signless,
    text,
)

__all__ = ["blocks", "findings"]

TIME, BYTES = "time of a micro-batch", "bytes of an inner stage"
QUANTITIES = (
    Quantity(TIME, "time of a micro-batch, ms", 1e-3),
    Quantity(BYTES, "held by an inner stage, kB", KILOBYTE),
)
AXES = {"J": "stages J", "k": "k", "width": "channels of a stream", "batch": "images of a micro-batch"}
STRAIGHT, AT_MOST_LINEAR, FLAT = 0.99, 1.1, 0.02


def blocks(benchmark: Benchmark) -> list[Block]:
    """Curves, and a line of fits for each method, axis and quantity."""
    remark = "Mark: median over the rounds."
    drawn = figure(benchmark, AXES, QUANTITIES, "Growth of time and bytes", remark)
    found: list[Block] = [] if drawn is None else [drawn]
    return [*found, _table(benchmark)]


def findings(benchmark: Benchmark) -> list[Finding]:
    """The claims about PETRA, where its J was varied."""
    name = methods.PETRA.title
    found = []
    time, held = (benchmark.curve("J", name, quantity) for quantity in (TIME, BYTES))
    if _places(time) > 2:
        law, straight = power_law(time), line(time).explained
        holds = straight >= STRAIGHT and law.high is not None and law.high <= AT_MOST_LINEAR
        words = f"a straight line explains {100 * straight:.1f} % of its time over J, {law}"
        found.append(_finding("A tick of PETRA grows linearly in depth", words, holds))
    if _places(held) > 2:
        law = power_law(held)
        holds = law.half_width is not None and abs(law.exponent) + law.half_width <= FLAT
        found.append(_finding("What an inner stage holds under PETRA does not grow with the delay", str(law), holds))
    return found


def _places(curve: Sequence[tuple[float, float]]) -> int:
    return len({place for place, _ in curve})


def _finding(claim: str, words: str, holds: bool) -> Finding:
    return Finding(
        f"Growth: {claim}: {'holds' if holds else 'does not hold'} ({words}).", Tone.GOOD if holds else Tone.ALERT
    )


def _table(benchmark: Benchmark) -> Table:
    curves: dict[tuple[str, str, str], list[Series]] = {}
    for series in benchmark.series:
        if series.at is not None:
            curves.setdefault((series.quantity, series.group, series.name), []).append(series)
    columns = [
        Column("quantity, along", numeric=False),
        Column("method", numeric=False),
        Column("from"),
        Column("to"),
        Column("at first"),
        Column("at last"),
        Column("unit", numeric=False),
        Column("exponent", hint="of a power law, with its 95 % interval"),
        Column("straight line, %", hint="share of the variance that a straight line explains"),
    ]
    rows = []
    for (quantity, group, name), own in curves.items():
        first, *_, last = sorted(own, key=lambda series: series.at or 0) * (2 if len(own) == 1 else 1)
        curve = benchmark.curve(group, name, quantity)
        method = method_of(name)
        rows.append(
            [
                text(f"{quantity}, along {AXES.get(group, group)}"),
                text(name) if method is None else method_name(method),
                *(number(series.at or 0, 0, tone=Tone.PLAIN) for series in (first, last)),
                *(_value(series) for series in (first, last)),
                text(first.unit),
                *_fits(curve),
            ]
        )
    return Table(
        key=f"benchmark-{benchmark.name}-fits",
        caption=f"{benchmark.title}: what was measured at both ends of a curve, and how it grows between them.",
        columns=columns,
        rows=rows,
        notes=[
            "Exponent 0: does not grow; 1: grows in proportion. Least squares over the logarithms of all rounds, "
            "interval by Student's t. With a fixed cost beside it, a straight line has an exponent below 1.",
            f"Again: {benchmark.command}",
        ],
        grouped=True,
    )


def _value(series: Series) -> Entry:
    value = spread(series.values).median
    return Entry(f"{value:,.0f}" if value >= 100 else f"{value:.3g}", value, Tone.OURS)


def _fits(curve: Sequence[tuple[float, float]]) -> list[Entry]:
    if _places(curve) < 2 or any(value <= 0 for _, value in curve):
        return [none("one place only, or nothing held"), none("one place only, or nothing held")]
    law = power_law(curve)
    interval = "" if law.half_width is None else f" ± {signless(f'{law.half_width:.2f}')}"
    exponent = Entry(signless(f"{law.exponent:.2f}") + interval, law.exponent, Tone.OURS)
    return [exponent, number(100 * line(curve).explained, 1)]
