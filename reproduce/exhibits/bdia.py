"""Beyond the paper: BDIA, transformers that are inverted to the bit without another architecture (arXiv 2407.09093).

Its authors compare ViT, RevViT and BDIA-ViT; their numbers are known second-hand, without what they were run with. Two
things are behind BDIA's accuracy: random steps, which regularise, and the quantiser, so there is a run without it.
"""

from collections.abc import Iterator
from typing import Any

from reproduce import published as published_tables
from reproduce.cells import catalogue
from reproduce.exhibits._exhibit import Exhibit, Sentence, Shown, sheets
from reproduce.grids.plans.bdia import BDIA, FLOAT, LATE, PUBLISHED, REVVIT, VIT, cells, way_of
from reproduce.records.benchmarks import ALLOCATED
from reproduce.records.frames import Frames, Sheet, settings_key
from reproduce.show.compare import Samples, judge, means, points
from reproduce.show.content import MEGABYTE
from reproduce.show.tables import amount, judged, mean, published, published_value, table, words

#: What each is compared with: the plain network, and under PETRA the same network trained without delay.
AGAINST = {REVVIT.title: VIT.title, BDIA.title: VIT.title, FLOAT.title: VIT.title}
AGAINST |= {LATE[0].title: REVVIT.title, LATE[1].title: BDIA.title}
SIDE_BITS = "side bits"  # as the benchmark calls them
INTRODUCTION = (
    "In training a block x + h(x) of a plain transformer becomes a step that is averaged with one back, at random for "
    "each sample; what halving would lose is kept, one bit a value. In evaluation it is the plain network. RevViT has "
    "two streams instead. ViT is trained by backpropagation; where nothing else is said, the others reconstruct."
)


def whole(frames: Frames) -> Iterator[Shown]:
    """What was published beside ours: accuracy at the published size, and memory, as the benchmark measured it."""
    rows, ours = published_tables.read("bdia"), Samples()
    every = list(sheets(frames, "bdia"))
    if not any(sheet.begun for sheet in every):
        yield Sentence("Nothing has been trained yet; what was published stands below.")
    for sheet in every:
        if sheet.scale == "paper":
            ours.update({(sheet.dataset, title): sample for title, sample in _accuracy(sheet).items()})
    stated = {(row["dataset"], row["network"]): row for row in rows if row["quantity"] == "accuracy"}
    less = judge({key: ours[key].less(row.number("value")) for key, row in stated.items() if ours[key].values})
    yield table(
        key="bdia",
        caption="Accuracy in percent: published (6 blocks, three runs), and runs of that size (scale “paper”).",
        rows=stated,
        fields=[
            words("data set", lambda key: catalogue.by_name(key[0]).title),
            words("network", lambda key: key[1]),
            published("published", lambda key: published_value(stated[key], "value")),
            mean("ours", lambda key: ours[key]),
            judged("difference", lambda key: less.get(key, "")),
        ],
        notes=[
            "Published with SET-Adam and a cosine; ours with AdamW and two drops, without dropout. What steps of ± 1/4 "
            "and ± 0.6 reached, standard deviations and hardware are unknown."
        ],
        grouped=True,
    )
    series = frames.series[frames.series["benchmark"] == "bdia"]
    held = series.pivot_table("value", "contestant", "quantity", aggfunc="median") / MEGABYTE
    memory = [row for row in rows if row["quantity"] == "memory"]

    def measured(network: str, quantity: str) -> float | None:
        return held[quantity].get(network) if quantity in held else None

    yield table(
        key="bdia-memory",
        caption="Peak memory at the published size in MB (10⁶ bytes), batch 128: published (second-hand), and what the "
        "allocator gave out during a step of ours (benchmark “bdia”).",
        rows=memory,
        fields=[
            words("network", lambda row: row["network"]),
            published("published", lambda row: published_value(row, "value")),
            amount("ours", lambda row: measured(row["network"], ALLOCATED), 1, without="not run"),
            amount("side bits", lambda row: measured(row["network"], SIDE_BITS), 2, without="not run"),
        ],
    )


def each(sheet: Sheet) -> Iterator[Shown]:
    """All networks and methods of a data set."""
    accuracy = _accuracy(sheet)
    less = judge({title: accuracy[title] - accuracy[AGAINST[title]] for title in accuracy if title in AGAINST})
    gains = [f"{title} {points(accuracy[title] - accuracy[VIT.title])}" for title in (REVVIT.title, BDIA.title)]
    yield Sentence(f"Points of accuracy above a plain ViT (scale “{sheet.scale}”): {', '.join(gains)}.")
    yield table(
        key=f"bdia-{sheet.key}-{sheet.dataset}",
        caption=f"Accuracy after the last epoch ({sheet.described(network=False)}).",
        rows=list(accuracy),
        fields=[
            words("network", lambda title: title),
            words("trained by", lambda title: METHODS[title]),
            mean("accuracy, %", lambda title: accuracy[title]),
            words("compared with", lambda title: AGAINST.get(title, "")),
            judged("points", lambda title: less.get(title, "")),
        ],
    )


METHODS: dict[str, Any] = {way.title: way.method.title for way in (*PUBLISHED, FLOAT, *LATE)}


def _accuracy(sheet: Sheet) -> Samples:
    """The samples of a sheet by what they are of."""
    of = {settings_key(cell): way_of(cell).title for cell in cells(sheet.scale)}
    return means(sheet.runs.assign(way=sheet.runs["settings"].map(of)), "test_accuracy", ["way"])


EXHIBIT = Exhibit("bdia", "BDIA: exactly reversible transformers", INTRODUCTION, each, whole)
