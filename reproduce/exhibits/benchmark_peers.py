"""The benchmark "peers" in the report: other implementations side by side with ours, and where they are ahead.

First where another is ahead, then everything. A contestant that was not there or failed is a row that says so. In every
quantity less is better.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from reproduce.records.benchmarks import Benchmark, Comparison, spread
from reproduce.show.content import (
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
from reproduce.words import count

__all__ = ["blocks", "findings"]

OURS, PLAIN = "ours, ", "autograd"


@dataclass(frozen=True)
class Quantity:
    """A column: quantity of the benchmark, head of the column, what one of its unit is, decimals (None: 1.2e-07).

    Who is ahead is said of a `race`: a cost, not a rounding error.
    """

    name: str
    title: str
    unit: float
    digits: int | None
    race: bool = False

    def shown(self, value: float) -> str:
        """As in the table."""
        scaled = value / self.unit
        return f"{scaled:.1e}" if self.digits is None and value else f"{scaled:,.{self.digits or 0}f}"


QUANTITIES = (
    Quantity("time of a step", "time, ms", 1e-3, 1, race=True),
    Quantity("allocated peak", "allocated peak, MB", MEGABYTE, 2, race=True),
    Quantity("held at the loss", "held at the loss, MB", MEGABYTE, 2, race=True),
    Quantity("process peak", "process peak, MB", MEGABYTE, 1, race=True),
    Quantity("gradient error, float32", "error, float32", 1.0, None),
    Quantity("gradient error, float64", "error, float64", 1.0, None),
    Quantity("BatchNorm updates", "BatchNorm updates", 1.0, 0),
)


def blocks(benchmark: Benchmark) -> list[Block]:
    """A sentence for each of ours in which peers are ahead of it, and the table."""
    return [*(finding.text for finding in _ahead(benchmark)), _table(benchmark)]


def findings(benchmark: Benchmark) -> list[Finding]:
    """Who is ahead of ours, how many took part, and how often running statistics are updated."""
    updates = {s.name: spread(s.values).median for s in benchmark.series if s.quantity == "BatchNorm updates"}
    packages = [name for name in _measured(benchmark) if not name.startswith(OURS) and name != PLAIN]
    more = [f"{name} ({updates[name]:.0f})" for name in packages if updates.get(name, 1) > 1]
    words = f"Peers: {count(len(packages), 'other implementation')} of the same networks measured beside ours."
    if more:
        words += f" More than one BatchNorm update a step: {', '.join(more)}."
    return [*_ahead(benchmark), Finding(words)]


def _measured(benchmark: Benchmark) -> list[str]:
    """The contestants with a value, in the order of the benchmark."""
    there = {series.name for series in benchmark.series}
    return [name for name in str(benchmark.setting["contestants"]).split("; ") if name in there]


def _groups(benchmark: Benchmark) -> list[str]:
    return list(dict.fromkeys(series.group for series in benchmark.series))


def _table(benchmark: Benchmark) -> Table:
    medians = {(s.group, s.name, s.quantity): spread(s.values).median for s in benchmark.series}
    rows = []
    for group in _groups(benchmark):
        for name in str(benchmark.setting["contestants"]).split("; "):
            values = {q: value for (of, who, q), value in medians.items() if (of, who) == (group, name)}
            rows.append([text(group), *_row(name, str(benchmark.setting[name]), values)])
    sizes = ("depth", "width", "pixels", "size", "batch", "threads")
    chosen = ", ".join(f"{name} {benchmark.setting[name]}" for name in sizes if name in benchmark.setting)
    return Table(
        key=f"benchmark-{benchmark.name}-table",
        caption=f"{benchmark.title}: the same network, weights and micro-batch for all ({chosen}); median over rounds "
        "for times. In every column less is better.",
        columns=[
            Column("network", numeric=False),
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


def _row(name: str, version: str, values: Mapping[str, float]) -> list[Entry]:
    if not values:
        return [text(name), missing(version), *(none("not measured") for _ in QUANTITIES)]
    return [
        text(name),
        text(version),
        *(
            Entry(q.shown(values[q.name]), values[q.name], Tone.OURS) if q.name in values else missing("not measured")
            for q in QUANTITIES
        ),
    ]


def _ahead(benchmark: Benchmark) -> list[Finding]:
    """For each of ours, where peers need less, and by how much; autograd, which saves nothing, is no peer in time."""
    rounds = {(series.group, series.name, series.quantity) for series in benchmark.series}
    found = []
    for ours in (name for name in _measured(benchmark) if name.startswith(OURS)):
        parts = []
        for group in _groups(benchmark):
            for quantity in (q for q in QUANTITIES if q.race and (group, ours, q.name) in rounds):
                ratios = {
                    peer: benchmark.spread(Comparison(group, quantity.name, peer, ours)).median
                    for peer in _measured(benchmark)
                    if not peer.startswith(OURS) and peer != PLAIN and (group, peer, quantity.name) in rounds
                }
                better = [f"{peer} ({ratio:.2f})" for peer, ratio in ratios.items() if ratio < 1]
                if better:
                    parts.append(f"{group}, {quantity.title.partition(',')[0]}: {', '.join(better)}")
        words = "; ".join(parts) if parts else "nobody, on any network measured"
        found.append(
            Finding(f"Ahead of {ours}, of whose value they need: {words}." if parts else f"Ahead of {ours}: {words}.")
        )
    return found
