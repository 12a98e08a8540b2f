"""PaReprop: throughput and memory beside backpropagation and reversible backpropagation, and what its paper reports.

The published gains (arXiv 2306.09342) are of networks for ImageNet on a server's GPU; what is measured here may be of
networks a few channels wide on a CPU. Both stand side by side, each with where it ran, and a published gain stands only
in the row of the very size that it was published for. Measured is what `benchmarks/pareprop.py` recorded.
"""

from collections.abc import Callable, Iterator
from typing import Any

from petra_core.methods import BACKPROPAGATION, PAREPROP, REVERSIBLE_BACKPROPAGATION
from reproduce import published
from reproduce.exhibits._exhibit import Coverage, Exhibit, Sentence, Shown
from reproduce.published import Mark, Row, pareprop_row
from reproduce.records.benchmarks import (
    ALLOCATED,
    LARGEST_FORETOLD,
    LARGEST_FOUND,
    PEAK_FORETOLD,
    THROUGHPUT,
    Benchmark,
    Spread,
    spread,
)
from reproduce.records.frames import Frames
from reproduce.show.content import MEGABYTE, Entry, Finding, Tone, missing, none, short_title, text, with_sign
from reproduce.show.content import number as number_entry
from reproduce.show.content import published as published_entry
from reproduce.show.tables import Field, amount, difference, entry, number, table, words
from reproduce.words import conjunction, count

COMPARED = (BACKPROPAGATION, REVERSIBLE_BACKPROPAGATION, PAREPROP)
BATCH, GAIN = ", batch ", "gain of PaReprop, %"  # between network and batch in the name of a group; a head
INTRODUCTION = (
    "Under reversible backpropagation a device reconstructs a block, differentiates it, reconstructs the next. "
    "PaReprop (arXiv:2306.09342) reconstructs a block beside the gradient of the block above. The gradients are the "
    "same, bit for bit; at most two graphs are alive at once instead of one. The gain is over reversible "
    "backpropagation, measured in turn with it in the same process; it can be no larger than what the reconstruction "
    "costs."
)


def whole(frames: Frames) -> Iterator[Shown]:
    """A table of what was published, then two of every record."""
    yield table(
        key="pareprop-published",
        caption="Published gain in throughput of PaReprop over reversible backpropagation, percent of images/s or "
        "sequences/s.",
        rows=published.read("pareprop"),
        fields=[
            words("family", lambda row: row["family"]),
            words("size", lambda row: row["size"] or none("no size was named")),
            entry("gain, %", _published),
        ],
        notes=(
            "Second-hand: quoted from the paper (arXiv:2306.09342) by others; its hardware, resolutions and batch "
            "sizes were not at hand. Unknown: the paper reports this family, its values were not at hand.",
        ),
    )
    records = [record for record in frames.results.benchmarks if record.name.partition("-")[0] == "pareprop"]
    devices = conjunction(list(dict.fromkeys(map(_device, records))))
    yield Coverage(f"published values; measured on {devices}" if records else "published values; not run")
    if not records:
        yield Finding("PaReprop: its throughput has not been measured yet.", Tone.MISSING)
    for record in records:
        own = frames.series[frames.series["benchmark"] == record.name]
        yield from _measured(record, own.groupby(["group", "contestant", "quantity"], sort=False)["value"].median())


def _published(row: Row) -> Entry:
    if row.mark is Mark.UNKNOWN:
        return published_entry("unknown", row.mark)
    if row["gain_percent"]:
        return published_entry(f"+{row['gain_percent']}", row.mark, value=row.number("gain_percent"))
    return published_entry(row["statement"], row.mark)


def _measured(record: Benchmark, medians: Any) -> Iterator[Shown]:
    """Two tables and what they come to; `medians` by group (network and batch), contestant and quantity."""
    pair = (PAREPROP.title, REVERSIBLE_BACKPROPAGATION.title, THROUGHPUT)
    gains = {  # percent
        c.group: spread([100 * (ratio - 1) for ratio in record.ratios(c)])
        for c in record.comparisons
        if (c.first, c.second, c.quantity) == pair
    }
    device, again = _device(record), f"Again: {record.command}"
    small = " On a CPU, at small sizes: not to be compared with the published gains."

    def megabytes(group: str, method: str) -> Entry:
        foretold = f"predicted from shapes: {medians[group, method, PEAK_FORETOLD] / MEGABYTE:.1f}"
        if (group, method, ALLOCATED) not in medians:
            return missing("does not fit", foretold)
        return number_entry(medians[group, method, ALLOCATED] / MEGABYTE, 1, hint=foretold)

    def each(of: Callable[[str, str], Any], digits: int, group: str, hint: str = "", form: Any = amount) -> list[Field]:
        """A column a method; `of` group and method."""
        return [
            form(short_title(m), lambda row, m=m: of(row, m.title), digits, group=group, hint=hint) for m in COMPARED
        ]

    yield table(
        key=f"{record.name}-throughput",
        caption=f"Throughput and memory on {device}: images of {record.setting['size']} pixels, texts of "
        f"{record.setting['length']} tokens, {record.setting.get('precision', 'float32')}."
        f"{small if record.environment.get('device') == 'cpu' else ''}",
        rows=gains,
        fields=[
            words("network", lambda group: group.partition(BATCH)[0]),
            number("batch", lambda group: int(group.partition(BATCH)[2])),
            *each(lambda group, method: medians[group, method, THROUGHPUT], 1, "samples/s"),
            difference("measured", lambda group: gains[group].median, 1, group=GAIN, hint="median over the rounds"),
            words("quartiles", lambda group: _quartiles(gains[group]), group=GAIN),
            entry("published", lambda group: _of_size(group.partition(BATCH)[0]), group=GAIN),
            *each(megabytes, 1, "peak memory, MB", "allocator, temporaries included"),
        ],
        notes=("Published gains are of other hardware and resolutions, second-hand.", again),
        grouped=True,
    )
    yield table(
        key=f"{record.name}-batches",
        caption=f"Largest batch under {record.setting['budget']:g} MB on {device}.",
        rows=list(dict.fromkeys(group for group, _, quantity in medians.index if quantity == LARGEST_FORETOLD)),
        fields=[
            words("network", lambda group: group),
            *each(
                lambda group, method: medians[group, method, LARGEST_FORETOLD],
                0,
                "predicted",
                "from shapes, without temporaries",
                number,
            ),
            *each(
                lambda group, method: medians.get((group, method, LARGEST_FOUND), missing("not run")),
                0,
                "found",
                "by the allocator",
            ),
        ],
        notes=(again,),
    )
    if not gains:  # none of the batches fits
        return
    sizes = [gain.median for gain in gains.values()]
    outcome = (
        f"on {device}: faster than reversible backpropagation in {sum(gain > 0 for gain in sizes)} of "
        f"{count(len(sizes), 'setting')}, {with_sign(min(sizes), 1)} to {with_sign(max(sizes), 1)} %."
    )
    yield Finding(f"PaReprop {outcome}")
    yield Sentence(outcome[0].upper() + outcome[1:])


def _of_size(network: str) -> Entry:
    row = pareprop_row(network)
    return none("no such size was published") if row is None else _published(row)


def _quartiles(found: Spread) -> Entry:
    words = f"{with_sign(found.lower, 1)} to {with_sign(found.upper, 1)}"
    return text(words, tone=Tone.OURS, sort=found.lower)


def _device(record: Benchmark) -> str:
    device = str(record.environment.get("device", "an unknown device"))
    if device != "cpu":
        return device
    return f"{record.setting['threads']} threads of {record.environment.get('processor', 'a CPU')}"


EXHIBIT = Exhibit("pareprop", "PaReprop: reconstruction beside gradients", INTRODUCTION, whole=whole)
