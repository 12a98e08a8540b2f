"""The benchmark "memory" in the report: peaks by three counts as curves, and the largest batch under a budget."""

from petra_core import methods
from reproduce.exhibits.benchmark_curves import Quantity, figure, method_of
from reproduce.records.benchmarks import Benchmark
from reproduce.show.content import (
    MEGABYTE,
    Block,
    Column,
    Entry,
    Finding,
    Table,
    Tone,
    method_name,
    missing,
    number,
    text,
)

__all__ = ["blocks", "findings"]

AXES = {"batch": "images of a micro-batch", "depth": "stages J of a chain", "k": "k"}
QUANTITIES = tuple(
    Quantity(f"{count} peak", f"{count} peak, MB", MEGABYTE) for count in ("accounted", "allocated", "process")
)
FORETOLD, FOUND, THERE = "largest batch, foretold", "largest batch, found", "allocated peak there"


def blocks(benchmark: Benchmark) -> list[Block]:
    """Curves, and a table of largest batches; what was not measured is left out."""
    remark = (
        "Accounted: every stage as if alone on its device, summed. Allocated: all tensors of one process. "
        "Process: growth of a fresh process."
    )
    drawn = figure(benchmark, AXES, QUANTITIES, "Peak memory", remark)
    found: list[Block] = [] if drawn is None else [drawn]
    return [*found, _batches(benchmark)] if _batch(benchmark) else found


def findings(benchmark: Benchmark) -> list[Finding]:
    """Which method fits the largest batch, and where PETRA stands."""
    found = {name: values[FOUND] for name, values in _batch(benchmark).items() if FOUND in values}
    ours = found.get(methods.PETRA.title)
    if ours is None:
        return []
    best = max(found, key=found.__getitem__)
    return [
        Finding(
            f"Memory: under {_limit(benchmark)} on one device the largest batch is {best}'s, {found[best]:.0f} images; "
            f"PETRA's is {ours:.0f}."
        )
    ]


def _batch(benchmark: Benchmark) -> dict[str, dict[str, float]]:
    """By contestant and quantity."""
    found: dict[str, dict[str, float]] = {}
    for series in benchmark.series:
        if series.group == "budget":
            found.setdefault(series.name, {})[series.quantity] = series.values[0]
    return found


def _limit(benchmark: Benchmark) -> str:
    return f"{benchmark.setting['budget']:g} MB"


def _batches(benchmark: Benchmark) -> Table:
    columns = [
        Column("method", numeric=False),
        Column("foretold", group="largest batch", hint="from shapes alone"),
        Column("found", group="largest batch", hint="by running"),
        Column("allocated there, MB"),
    ]
    rows: list[list[Entry]] = []
    for name, values in _batch(benchmark).items():
        method = method_of(name)
        rows.append(
            [
                text(name) if method is None else method_name(method),
                number(values[FORETOLD], 0, tone=Tone.PLAIN),
                number(values[FOUND], 0),
                number(values[THERE] / MEGABYTE, 2) if THERE in values else missing("no batch fits"),
            ]
        )
    return Table(
        key=f"benchmark-{benchmark.name}-batches",
        caption=f"{benchmark.title}: largest batch of which the allocated peak is at most {_limit(benchmark)}, all "
        f"stages on one device ({benchmark.setting['network']}, width {benchmark.setting['width']}, "
        f"{benchmark.setting['size']} pixels).",
        columns=columns,
        rows=rows,
        notes=[
            "Foretold are tensors that are kept, not temporaries of operations: a smaller batch is found where these "
            "count, a larger one where stages do not hold all that they may at the same moment.",
            f"Again: {benchmark.command}",
        ],
    )
