"""PaReprop: throughput and memory beside backpropagation and reversible backpropagation, and what its paper reports.

The published gains (arXiv 2306.09342) are of networks for ImageNet on a server's GPU; what is measured here may be of
networks a few channels wide on a CPU. Both stand side by side, each with where it ran, and a published gain stands only
in the row of the very size that it was published for.

Rows come from the records of `benchmarks/pareprop.py`, whose names begin with pareprop; the words that the two share
are here.
"""

from collections.abc import Iterator

from petra_core.methods import BACKPROPAGATION, PAREPROP, REVERSIBLE_BACKPROPAGATION
from reproduce import published
from reproduce.published import Mark, Row
from reproduce.records.benchmarks import Benchmark, Comparison, spread
from reproduce.records.results import Results
from reproduce.show.content import (
    MEGABYTE,
    Block,
    Column,
    Entry,
    Finding,
    Section,
    Table,
    Tone,
    missing,
    none,
    number,
    short_title,
    signed,
    text,
)
from reproduce.show.content import published as published_entry
from reproduce.words import conjunction, count

__all__ = ["ALLOCATED", "FORETOLD", "FOUND", "PEAK_FORETOLD", "THROUGHPUT", "gain_of", "group_of", "section"]

THROUGHPUT = "throughput"
ALLOCATED, PEAK_FORETOLD = "allocated peak", "foretold peak"
FORETOLD, FOUND = "largest batch, foretold", "largest batch, found"

CONTESTANTS = (BACKPROPAGATION, REVERSIBLE_BACKPROPAGATION, PAREPROP)
FAMILIES = {"revvit": "RevViT", "revmvit": "RevMViT", "revswin": "RevSwin", "revroberta": "RevRoBERTa"}
SEPARATOR = ", batch "


def group_of(network: str, batch: int) -> str:
    """How records call a network that is trained on micro-batches of so many samples."""
    return f"{network}{SEPARATOR}{batch}"


def gain_of(network: str) -> float | None:
    """The published gain of PaReprop over reversible backpropagation in percent; None: none was for this network."""
    row = _row(network, exactly=True)
    return None if row is None else row.number("gain_percent")


def section(results: Results) -> Section:
    """A table of what was published, then two of every record."""
    records = [benchmark for benchmark in results.benchmarks if benchmark.name.partition("-")[0] == "pareprop"]
    blocks: list[Block] = [_INTRODUCTION, _published()]
    for benchmark in records:
        blocks += [_measured(benchmark), _batches(benchmark)]
    devices = dict.fromkeys(_device(benchmark) for benchmark in records)
    return Section(
        "pareprop",
        "PaReprop: reconstruction beside gradients",
        blocks,
        [*_findings(records)],
        coverage=f"published values; measured on {conjunction([*devices])}" if devices else "published values; not run",
    )


_INTRODUCTION = (
    "Under reversible backpropagation a device rebuilds a block, differentiates it, rebuilds the next. PaReprop "
    "(arXiv:2306.09342) rebuilds a block beside the gradient of the block above. The gradients are the same, bit for "
    "bit; at most two graphs are alive at once instead of one. The gain is over reversible backpropagation, measured "
    "in turn with it in the same process; it can be no larger than what the reconstruction costs."
)


def _published() -> Table:
    rows = []
    for row in published.read("pareprop"):
        gain = _published_entry(row)
        rows.append([text(row["family"]), text(row["size"]) if row["size"] else none("no size was named"), gain])
    return Table(
        key="pareprop-published",
        caption="Published gain in throughput of PaReprop over reversible backpropagation, percent of images/s or "
        "sequences/s.",
        columns=[Column("family", numeric=False), Column("size", numeric=False), Column("gain, %")],
        rows=rows,
        notes=(
            "Second-hand: quoted from the paper (arXiv:2306.09342) by others; its hardware, resolutions and batch "
            "sizes were not at hand. Unknown: the paper reports this family, its values were not at hand.",
        ),
    )


def _published_entry(row: Row) -> Entry:
    if row.mark is Mark.UNKNOWN:
        return published_entry("unknown", row.mark)
    if row["gain_percent"]:
        return published_entry(f"+{row['gain_percent']}", row.mark, value=row.number("gain_percent"))
    return published_entry(row["statement"], row.mark)


def _row(network: str, *, exactly: bool = False) -> Row | None:
    """What was published of a network, or of its family where sizes were not told apart; None: nothing."""
    family, _, size = network.partition("_")
    own = [row for row in published.read("pareprop") if row["family"] == FAMILIES.get(family)]
    sizes = ("",) if not exactly else ()
    return next((row for row in own if row["size"].lower() in (size, *sizes)), None)


def _measured(benchmark: Benchmark) -> Table:
    titles = [short_title(method) for method in CONTESTANTS]
    columns = [
        Column("network", numeric=False),
        Column("batch"),
        *(Column(title, group="samples/s") for title in titles),
        Column("measured", group="gain of PaReprop, %", hint="median over the rounds"),
        Column("quartiles", numeric=False, group="gain of PaReprop, %"),
        Column("published", group="gain of PaReprop, %"),
        *(Column(title, group="peak memory, MB", hint="allocator, temporaries included") for title in titles),
    ]
    rows = []
    for comparison in _gains(benchmark):
        network, _, batch = comparison.group.partition(SEPARATOR)
        found = spread([100 * (ratio - 1) for ratio in benchmark.ratios(comparison)])
        quartiles = f"{found.lower:+.1f} to {found.upper:+.1f}".replace("-", "\N{MINUS SIGN}")
        values = _medians(benchmark, comparison.group)
        row = _row(network)
        rows.append(
            [
                text(network),
                number(int(batch), 0, tone=Tone.PLAIN),
                *(number(values[m.title, THROUGHPUT], 1) for m in CONTESTANTS),
                signed(found.median, 1),
                text(quartiles, tone=Tone.OURS, sort=found.lower),
                none("no such size was published") if row is None else _published_entry(row),
                *(
                    number(
                        values[m.title, ALLOCATED] / MEGABYTE,
                        1,
                        hint=f"foretold from shapes: {values[m.title, PEAK_FORETOLD] / MEGABYTE:.1f}",
                    )
                    for m in CONTESTANTS
                ),
            ]
        )
    setting = benchmark.setting
    return Table(
        key=f"{benchmark.name}-throughput",
        caption=f"Throughput and memory on {_device(benchmark)}: images of {setting['size']} pixels, texts of "
        f"{setting['length']} tokens, float32.{_warning(benchmark)}",
        columns=columns,
        rows=rows,
        notes=(
            "Published gains are of other hardware and resolutions, second-hand.",
            f"Again: {benchmark.command}",
        ),
        grouped=True,
    )


def _batches(benchmark: Benchmark) -> Table:
    titles = [short_title(method) for method in CONTESTANTS]
    networks = dict.fromkeys(s.group for s in benchmark.series if s.quantity == FORETOLD)
    rows = []
    for network in networks:
        values = _medians(benchmark, network)
        rows.append(
            [
                text(network),
                *(number(values[m.title, FORETOLD], 0, tone=Tone.PLAIN) for m in CONTESTANTS),
                *(
                    number(values[m.title, FOUND], 0) if (m.title, FOUND) in values else missing("not run")
                    for m in CONTESTANTS
                ),
            ]
        )
    return Table(
        key=f"{benchmark.name}-batches",
        caption=f"Largest batch under {benchmark.setting['budget']:g} MB on {_device(benchmark)}.",
        columns=[
            Column("network", numeric=False),
            *(Column(title, group="foretold", hint="from shapes, without temporaries") for title in titles),
            *(Column(title, group="found", hint="by the allocator") for title in titles),
        ],
        rows=rows,
        notes=(f"Again: {benchmark.command}",),
    )


def _findings(records: list[Benchmark]) -> Iterator[Finding]:
    if not records:
        yield Finding("PaReprop: its throughput has not been measured yet.", Tone.MISSING)
    for benchmark in records:
        gains = [100 * (benchmark.spread(comparison).median - 1) for comparison in _gains(benchmark)]
        faster = sum(gain > 0 for gain in gains)
        low, high = (f"{gain:+.1f}".replace("-", "\N{MINUS SIGN}") for gain in (min(gains), max(gains)))
        yield Finding(
            f"PaReprop on {_device(benchmark)}: faster than reversible backpropagation in {faster} of "
            f"{count(len(gains), 'setting')}, {low} to {high} %."
        )


def _gains(benchmark: Benchmark) -> list[Comparison]:
    pair = (PAREPROP.title, REVERSIBLE_BACKPROPAGATION.title, THROUGHPUT)
    return [c for c in benchmark.comparisons if (c.first, c.second, c.quantity) == pair]


def _medians(benchmark: Benchmark, group: str) -> dict[tuple[str, str], float]:
    """By contestant and quantity."""
    return {(s.name, s.quantity): spread(s.values).median for s in benchmark.series if s.group == group}


def _device(benchmark: Benchmark) -> str:
    environment = benchmark.environment
    device = str(environment.get("device", "an unknown device"))
    if device != "cpu":
        return device
    return f"{benchmark.setting['threads']} threads of {environment.get('processor', 'a CPU')}"


def _warning(benchmark: Benchmark) -> str:
    if benchmark.environment.get("device") != "cpu":
        return ""
    return " On a CPU, at small sizes: not to be compared with the published gains."
