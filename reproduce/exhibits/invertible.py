"""Beyond the paper: a RevNet whose down-sampling is invertible, so that no inner stage keeps its input.

Of Table 3's 20.3 GB, 19.2 are the inputs that the down-sampling stages keep. Pixel-unshuffle, as in i-RevNet, halves
the resolution without losing anything (`petra_core.models.invertible_revnet`). To say that the buffers vanish would be
half of the truth: a permutation does not shrink the streams either, so messages and graphs of the upper stages stay as
large as those of the lowest. Here stands what goes and what grows, at the paper's size as predicted
(`reproduce.modelling.invertible`) and in the runs as measured, and the accuracy of both networks.
"""

from collections.abc import Iterator

from petra_core import methods
from petra_core.ledger import KINDS
from reproduce.exhibits._exhibit import Coverage, Exhibit, Sentence, Shown
from reproduce.grids.plans.invertible import ACCUMULATIONS, COMPARED, NETWORKS, OURS, PAPERS
from reproduce.modelling.invertible import BATCH, DEPTHS, predicted
from reproduce.records.frames import Frames, Sheet
from reproduce.show import facets
from reproduce.show.compare import family_note, judge, means, reported
from reproduce.show.content import GIGABYTE, MEGABYTE, Finding, Tone, with_sign
from reproduce.show.facets import facet
from reproduce.show.tables import DIFFERENCES, Field, amount, difference, judged, mean, table, words

SETTING = f"PETRA, k = 1, ImageNet, batch {BATCH}, float32; modelled, all stages together"


def whole(_: Frames) -> Iterator[Shown]:
    """Memory at the paper's size."""
    yield Coverage("memory modelled at the paper's size")
    sizes = [[predicted(family, depth)["held"]["parameters"] for family in (OURS, PAPERS)] for depth in DEPTHS]
    apart = 100 * max(abs(1 - ours / theirs) for ours, theirs in sizes)
    yield (
        "In the paper's RevNets the down-sampling stages cannot be inverted and keep their inputs, one for every "
        "micro-batch of delay: most of PETRA's memory in Table 3. Here a network with as many stages and (within "
        f"{apart:.1f} %) as many parameters is down-sampled by pixel-unshuffle, which loses nothing, so that between "
        "stem and head nothing is kept. The price: the paper's streams shrink with the resolution, these do not, and "
        "what is sent, and the graph of a stage, stay as large in the upper stages as in the lowest."
    )
    bars = {
        f"{title}-{depth}": predicted(family, depth)["peak"]
        for depth in DEPTHS
        for family, title in ((PAPERS, "RevNet"), (OURS, "Invertible RevNet"))
    }
    title = "Memory of the paper's networks and of the invertible ones"
    yield facet(
        (
            {"network": network, "kind": kind, "GB": kinds[kind] / GIGABYTE}
            for network, kinds in bars.items()
            for kind in KINDS
            if kinds[kind]
        ),
        [facets.stack(sums=".1f")],
        key="invertible",
        title=title,
        caption=f"{title} ({SETTING}, each kind at its largest). 1 GB = 10⁹ bytes.",
        x="network",
        y="GB",
        hue="kind",
        looks=facets.KIND_LOOKS,
        xlabel="GB",
        height=2.0,
        legend="area",
    )
    yield table(
        key="invertible",
        caption=f"Memory by kind ({SETTING}). 1 GB = 10⁹ bytes.",
        rows=[(depth, kind) for depth in DEPTHS for kind in (*KINDS, "sum")],
        fields=[
            words("depth", lambda row: f"RevNet-{row[0]} and invertible RevNet-{row[0]}"),
            words("kind", lambda row: row[1].replace("_", " ")),
            *_gigabytes("between ticks", "held"),
            *_gigabytes("at their largest", "peak"),
        ],
        notes=(
            "Modelled from the shapes of the networks. Between ticks: what lies there while no stage works, on one "
            "device for each stage. At their largest: within a tick, each kind at its own largest moment, so that the "
            "sum is an upper bound; with all stages in one process, which work one after the other, their graphs do "
            "not exist together. Inputs: of the stem (raw images) in both networks, of the down-sampling stages in the "
            "paper's only.",
        ),
        grouped=True,
    )
    for depth in DEPTHS:
        before, after = (predicted(family, depth)["peak"] for family in (PAPERS, OURS))
        changes = {kind: (after[kind] - before[kind]) / GIGABYTE for kind in ("inputs", "messages", "graph")}
        before_gb, after_gb = (amounts["sum"] / GIGABYTE for amounts in (before, after))
        if depth == max(DEPTHS):
            yield Sentence(
                f"RevNet-{depth} with invertible down-sampling, ImageNet, batch {BATCH}, modelled: {before_gb:.1f} GB "
                f"become {after_gb:.1f} GB."
            )
        yield Finding(
            f"Invertible down-sampling: RevNet-{depth}, ImageNet, batch {BATCH}, k = 1 (modelled): "
            f"{', '.join(f'{kind} {with_sign(change, 1)}' for kind, change in changes.items())} GB; in all "
            f"{before_gb:.1f} GB become {after_gb:.1f} GB.",
            Tone.GOOD if after["sum"] < before["sum"] else Tone.PLAIN,
        )


def _gigabytes(group: str, when: str) -> list[Field]:
    """Columns of both networks and their difference, of rows of a depth and a kind."""

    def theirs(row: tuple[int, str]) -> int:
        return predicted(PAPERS, row[0])[when][row[1]]

    def ours(row: tuple[int, str]) -> int:
        return predicted(OURS, row[0])[when][row[1]]

    less = "invertible less the paper's"
    return [
        amount("paper's, GB", lambda row: theirs(row) / GIGABYTE, 2, group=group),
        amount("invertible, GB", lambda row: ours(row) / GIGABYTE, 2, group=group),
        difference("difference", lambda row: (ours(row) - theirs(row)) / GIGABYTE, 2, group=group, hint=less),
    ]


def each(sheet: Sheet) -> Iterator[Shown]:
    """Accuracy and memory of the runs."""
    by = ["model", "method", "k"]
    accuracy = means(sheet.runs, "test_accuracy", by)
    peak = sheet.done.groupby(by)["peak_bytes"].max() / MEGABYTE
    titles = dict(zip(sheet.runs["model"], sheet.runs["network"], strict=True))
    ks = sorted(ACCUMULATIONS[sheet.scale])
    ours, theirs = NETWORKS
    less = judge(
        {
            (ours, method.name, k): accuracy[ours, method.name, k] - accuracy[theirs, method.name, k]
            for method in COMPARED
            for k in ks
        }
    )

    def at(k: int) -> list[Field]:
        group = f"k = {k}"
        return [
            mean("last epoch, %", lambda row: accuracy[*row, k], group=group),
            judged("difference", lambda row: less.get((*row, k)), group=group),
            amount("peak, MB", lambda row: peak.get((*row, k)), 1, group=group),
        ]

    yield table(
        key=f"invertible-{sheet.key}",
        caption=f"Accuracy and measured memory of both networks ({sheet.described()}).",
        rows=[(network, method.name) for method in COMPARED for network in (theirs, ours)],
        fields=[
            words("method", lambda row: methods.by_name(row[1]).title),
            words("network", lambda row: titles[row[0]]),
            *(field for k in ks for field in at(k)),
        ],
        notes=(
            f"Mean ± half the 95 % interval (number of seeds). {DIFFERENCES} Difference: the invertible network less "
            "the paper's, same method and k. Peak: the most bytes that a stage held at one moment, counted by the "
            "engine, summed over the stages; 1 MB = 10⁶ bytes.",
            family_note(less.values()),
        ),
        grouped=True,
    )
    if said := reported(less.values()):
        yield Finding(
            f"Invertible down-sampling: {sheet.described()}. Accuracy against the paper's network with the same "
            f"method, k and seeds, {said}."
        )


EXHIBIT = Exhibit("invertible", "Invertible down-sampling", each=each, whole=whole)
