"""The benchmark "peers" in the report: other implementations side by side with ours, and where they are ahead.

A contestant that was not there or failed is a row that says so. In every quantity less is better.

This module exports blocks, findings.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from reproduce.benchmark_records import Benchmark, spread
from reproduce.tables.content import (
    MEGABYTE,
    Block,
    Column,
    Entry,
    Finding,
    Table,
    Tone,
    missing,
    none,
    text,
)
from reproduce.wording import count

__all__ = ["blocks", "findings"]

OURS, PLAIN = "ours, ", "autograd"


@dataclass(frozen=True)
class Quantity:
    """A column: quantity of the benchmark, head of the column, what one of its unit is, decimals (None: 1.2e-07)."""

    name: str
    title: str
    unit: float
    digits: int | None

    def shown(self, value: float) -> str:
        """As in the table."""
        scaled = value / self.unit
        return f"{scaled:.1e}" if self.digits is None and value else f"{scaled:,.{self.digits or 0}f}"


QUANTITIES = (
    Quantity("time of a step", "time, ms", 1e-3, 1),
    Quantity("allocated peak", "allocated peak, MB", MEGABYTE, 2),
    Quantity("held at the loss", "held at the loss, MB", MEGABYTE, 2),
    Quantity("process peak", "process peak, MB", MEGABYTE, 1),
    Quantity("gradient error, float32", "error, float32", 1.0, None),
    Quantity("gradient error, float64", "error, float64", 1.0, None),
    Quantity("BatchNorm updates", "BatchNorm updates", 1.0, 0),
)


def blocks(benchmark: Benchmark) -> list[Block]:
    """The table, and a sentence for each quantity in which another is ahead of ours."""
    return [_table(benchmark), *_ahead(benchmark)]


def findings(benchmark: Benchmark) -> list[Finding]:
    """How many took part, and how often running statistics are updated."""
    measured = _medians(benchmark)
    updates = {name: values["BatchNorm updates"] for name, values in measured.items() if "BatchNorm updates" in values}
    packages = [name for name in measured if not name.startswith(OURS) and name != PLAIN]
    more = [f"{name} ({updates[name]:.0f})" for name in packages if updates.get(name, 1) > 1]
    words = f"Peers: {count(len(packages), 'other implementation')} of the same chain measured beside ours."
    if more:
        words += f" More than one BatchNorm update a step: {', '.join(more)}."
    return [Finding(words)]


def _medians(benchmark: Benchmark) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for series in benchmark.series:
        found.setdefault(series.name, {})[series.quantity] = spread(series.values).median
    return found


def _contestants(benchmark: Benchmark) -> list[str]:
    """In the order of the benchmark, with those that were not there or failed."""
    return str(benchmark.setting["contestants"]).split("; ")


def _table(benchmark: Benchmark) -> Table:
    measured = _medians(benchmark)
    rows = [_row(name, str(benchmark.setting[name]), measured.get(name)) for name in _contestants(benchmark)]
    chosen = ", ".join(f"{name} {benchmark.setting[name]}" for name in ("depth", "width", "pixels", "batch"))
    return Table(
        key=f"benchmark-{benchmark.name}-table",
        caption=f"{benchmark.title}: the same chain of reversible blocks, weights and micro-batch ({chosen}); median "
        "over rounds for times. In every column less is better.",
        columns=[
            Column("implementation", numeric=False),
            Column("version", numeric=False),
            *(Column(quantity.title) for quantity in QUANTITIES),
        ],
        rows=rows,
        notes=[
            "Under PETRA a step is a tick on one device, where its stages cannot work side by side, and messages and "
            "inputs of all micro-batches in flight are held there at once: it is made for several devices.",
            f"Again: {benchmark.command}",
        ],
    )


def _row(name: str, version: str, values: Mapping[str, float] | None) -> list[Entry]:
    if values is None:
        return [text(name), missing(version), *(none("not measured") for _ in QUANTITIES)]
    return [
        text(name),
        text(version),
        *(
            Entry(q.shown(values[q.name]), values[q.name], Tone.OURS) if q.name in values else missing("not measured")
            for q in QUANTITIES
        ),
    ]


def _ahead(benchmark: Benchmark) -> list[str]:
    """For each of ours, by which quantities others are ahead."""
    measured = _medians(benchmark)
    sentences = []
    for name in (name for name in measured if name.startswith(OURS)):
        parts = []
        for quantity in QUANTITIES:
            mine = measured[name].get(quantity.name)
            rivals = {n: v[quantity.name] for n, v in measured.items() if not n.startswith(OURS) and quantity.name in v}
            better = sorted((value, rival) for rival, value in rivals.items() if mine is not None and value < mine)
            if better and mine is not None:
                told = ", ".join(f"{rival} {quantity.shown(value)}" for value, rival in better)
                parts.append(f"{quantity.title}: {told} against {quantity.shown(mine)}")
        words = "; ".join(parts) if parts else "nobody, in any column"
        sentences.append(f"Ahead of {name}: {words}.")
    return sentences
