"""PaReprop: throughput and memory compared with (reversible) backpropagation and with its paper.

The published gains (arXiv 2306.09342) were measured with ImageNet networks on a server's GPU. Records may come from
narrow networks on a CPU. Each value is therefore listed with its machine, and a published gain only in the row of its
exact size.
"""

from collections.abc import Iterator

from pandas import DataFrame

from petra_core.methods import BACKPROPAGATION, PAREPROP, REVERSIBLE_BACKPROPAGATION
from reproduce import published
from reproduce.exhibits._exhibit import Folded, Sentence, Shown, declare, text_of
from reproduce.presentation import facets
from reproduce.presentation.content import MEGABYTE, Entry, Finding, Role, none, published_entry, short_title, with_sign
from reproduce.presentation.tables import amounts, difference, entry, number, table, words
from reproduce.published import Mark, Row, pareprop_row
from reproduce.records import benchmarks
from reproduce.records.benchmarks import ALLOCATED, LARGEST_FOUND, LARGEST_PREDICTED, THROUGHPUT, Benchmark
from reproduce.records.frames import Frames
from reproduce.text import count

TITLES = {m.title: short_title(m) for m in (BACKPROPAGATION, REVERSIBLE_BACKPROPAGATION, PAREPROP)}
QUANTITIES = (THROUGHPUT, ALLOCATED, LARGEST_PREDICTED, LARGEST_FOUND)
BATCH, GAIN = ", batch ", "gain of PaReprop, %"  # between network and batch in a group's name; a head


def whole(frames: Frames) -> Iterator[Shown]:
    """Yield the measurements, record by record, and the published values."""
    records = [record for record in frames.results.benchmarks if record.name.partition("-")[0] == "pareprop"]
    if not records:
        yield Finding("Its throughput has not been measured yet.", Role.MISSING)
    for record in records:
        series = frames.series[frames.series["benchmark"] == record.name]
        medians = series.pivot_table("value", "group", ["quantity", "contestant"], aggfunc="median", sort=False)
        yield from _show_record(
            record, medians.reindex(columns=[(quantity, name) for quantity in QUANTITIES for name in TITLES])
        )
    yield table(
        key="pareprop-published",
        caption="Published gain in throughput of PaReprop over reversible backpropagation, percent.",
        rows=published.read("pareprop"),
        fields=[
            words("family", lambda row: row["family"]),
            words("size", lambda row: row["size"] or none("no size was named")),
            entry("gain, %", _format_published),
        ],
        notes=["Quoted by others, without hardware, resolutions and batch sizes."],
    )


def _format_published(row: Row | None) -> Entry:
    if row is None:
        return none("no such size was published")
    gain = row["gain_percent"]
    text = "unknown" if row.mark is Mark.UNKNOWN else f"+{gain}" if gain else row["statement"]
    return published_entry(text, row.mark, value=row.number("gain_percent") if gain else None)


def gains_of(record: Benchmark) -> dict[str, benchmarks.Spread]:
    """Return the gain in throughput over reversible backpropagation in percent, by group (network and batch)."""
    pair = (PAREPROP.title, REVERSIBLE_BACKPROPAGATION.title, THROUGHPUT)
    return {
        comparison.group: benchmarks.spread([100 * (ratio - 1) for ratio in record.ratios(comparison)])
        for comparison in record.comparisons
        if (comparison.first, comparison.second, comparison.quantity) == pair
    }


def _show_record(record: Benchmark, medians: DataFrame) -> Iterator[Shown]:
    """Yield a figure and two tables of a record.

    Args:
        record: The record.
        medians: Rows are groups (network and batch), columns are quantity and contestant.

    """
    gains = gains_of(record)
    quartiles = {group: f"{with_sign(gain.lower, 1)} to {with_sign(gain.upper, 1)}" for group, gain in gains.items()}
    gained = {group: gain.median for group, gain in gains.items()}
    device, on_cpu = _device(record), record.environment.get("device") == "cpu"
    small = " On a CPU, at small sizes: not to be compared with the published gains."

    yield facets.facet(
        [{"group": group, "gain": gain, "method": PAREPROP.name} for group, gain in gained.items()],
        [facets.rows(list(gains))],
        key=f"{record.name}-gains",
        caption=f"Gain of PaReprop over reversible backpropagation (throughput on {device}, median over the rounds).",
        x=facets.Axis("gain", label="gain, %"),
        y="group",
        panels=facets.Panels(height=0.6 + 0.24 * len(gains)),
        legend="",
    )
    yield table(
        key=f"{record.name}-throughput",
        caption=text_of("pareprop", "throughput", device=device, record=record, remark=small * on_cpu),
        rows=[group for group in medians.index if BATCH in group],
        fields=[
            words("network", lambda group: group.partition(BATCH)[0], heading=True),
            number("batch", lambda group: int(group.partition(BATCH)[2])),
            *amounts(TITLES, lambda group: medians.loc[group, THROUGHPUT], 1, group="samples/s", without="not timed"),
            difference("measured", gained.get, 1, group=GAIN),
            words("quartiles", quartiles.get, group=GAIN),
            entry("published", lambda group: _format_published(pareprop_row(group.partition(BATCH)[0])), group=GAIN),
            *amounts(
                TITLES, lambda g: medians.loc[g, ALLOCATED] / MEGABYTE, 1, group="peak, MB", without="does not fit"
            ),
        ],
        notes=record.notes,
    )
    yield Folded(
        table(
            key=f"{record.name}-batches",
            caption=text_of("pareprop", "batches", record=record, device=device),
            rows=medians.index[medians[LARGEST_PREDICTED, PAREPROP.title].notna()],
            fields=[
                words("network", lambda group: group),
                *amounts(TITLES, lambda g: medians.loc[g, LARGEST_PREDICTED], 0, group="predicted", without="not run"),
                *amounts(TITLES, lambda group: medians.loc[group, LARGEST_FOUND], 0, group="found", without="not run"),
            ],
        )
    )
    if gained:
        faster = f"{sum(gain.lower > 0 for gain in gains.values())} of {count(len(gains), 'setting')}"
        ends = f"{with_sign(min(gained.values()), 1)} to {with_sign(max(gained.values()), 1)} %"
        made = " It was made for GPUs, where it has not been measured." * on_cpu
        yield Sentence(
            f"On {device} PaReprop is faster than reversible backpropagation in {faster}; its gain is {ends}.{made}"
        )


def _device(record: Benchmark) -> str:
    device = str(record.environment.get("device", "an unknown device"))
    if device != "cpu":
        return device
    return f"{record.setting['threads']} threads of {record.environment.get('processor', 'a CPU')}"


EXHIBIT = declare("pareprop", whole=whole)
