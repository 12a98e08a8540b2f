"""Beyond the paper: a RevNet whose down-sampling is invertible, so that no inner stage keeps its input.

Of Table 3's 20.3 GB, 19.2 are the inputs that the down-sampling stages keep. Pixel-unshuffle, as in i-RevNet, halves
the resolution without losing anything (`petra_core.models.invertible_revnet`). To say that the buffers vanish would be
half of the truth: a permutation does not shrink the streams either, so messages and graphs of the upper stages stay as
large as those of the lowest. Here stands what goes and what grows, at the paper's size as foretold by
`petra_core.prediction.memory` (checked against measurements in its tests) and in the runs as measured, and the accuracy
of both networks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from petra_core import methods
from petra_core.ledger import KINDS
from petra_core.methods import Method
from petra_core.recipe import learning_rate, sgd
from reproduce.exhibits.experiments import Network
from reproduce.exhibits.sheets import (
    DIFFERENCES,
    Sheet,
    accuracy_entry,
    data,
    described,
    family_note,
    judged_entries,
    sheets,
    told,
)
from reproduce.grids.plans.invertible import ACCUMULATIONS, COMPARED, NETWORKS, OURS, PAPERS, cells, planned
from reproduce.records.results import Results
from reproduce.show import memory_bars
from reproduce.show.content import (
    GIGABYTE,
    MEGABYTE,
    Block,
    Column,
    Entry,
    Figure,
    Finding,
    Section,
    Table,
    Tone,
    missing,
    number,
    signed,
    text,
)
from reproduce.show.statistics import Estimate, Judgement, judge, paired

DEPTHS = (18, 50)
BATCH, IMAGE_SIZE, CLASSES = 64, 224, 1000  # Table 3's
LAST = "test_accuracy"


def section(results: Results) -> Section:
    """Memory at the paper's size, then accuracy and memory of the runs, scale by scale."""
    blocks: list[Block] = [_introduction(), _figure(), _table()]
    findings = [_vanished(depth) for depth in DEPTHS]
    coverage = ["memory modelled at the paper's size"]
    for scale in reversed(ACCUMULATIONS):
        found = sheets(results, scale, cells(scale))
        if not found:
            blocks.append(f"The two networks have not been compared at the scale “{scale}” yet.")
        for sheet in found:
            judged = judge(dict(_differences(sheet)))
            blocks.append(_runs(sheet, judged))
            coverage.append(f"{sheet.key}: {sheet.progress}")
            findings += _compared(sheet, judged)
    return Section("invertible", "Invertible down-sampling", blocks, findings, "; ".join(coverage))


def _introduction() -> str:
    sizes = [[predicted(family, depth).held["parameters"] for family in (OURS, PAPERS)] for depth in DEPTHS]
    apart = 100 * max(abs(1 - ours / theirs) for ours, theirs in sizes)
    return (
        "In the paper's RevNets the down-sampling stages cannot be inverted and keep their inputs, one for every "
        "micro-batch of delay: most of PETRA's memory in Table 3. Here a network with as many stages and (within "
        f"{apart:.1f} %) as many parameters is down-sampled by pixel-unshuffle, which loses nothing, so that between "
        "stem and head nothing is kept. The price: the paper's streams shrink with the resolution, these do not, and "
        "what is sent, and the graph of a stage, stay as large in the upper stages as in the lowest."
    )


# --- memory at the paper's size, modelled


@dataclass(frozen=True)
class Prediction:
    """Bytes of a network, summed over its stages.

    Attributes:
        held: between ticks, by kind; without gradients and the graphs of a single backward.
        peak: within a tick, each kind at its largest.

    """

    held: Mapping[str, int]
    peak: Mapping[str, int]


@cache
def predicted(family: str, depth: int) -> Prediction:
    """Of PETRA with k = 1 on ImageNet at batch 64, on the meta device."""
    import torch  # with what is below: the plan of a grid does not wait for it

    from petra_core import models
    from petra_core.prediction.memory import predict

    make = {OURS: models.invertible_revnet, PAPERS: models.revnet}[family]
    with torch.device("meta"):
        stages = make(depth, num_classes=CLASSES, stem="imagenet")
        images, labels = torch.empty(BATCH, 3, IMAGE_SIZE, IMAGE_SIZE), torch.empty(BATCH, dtype=torch.int64)
    found = predict(stages, methods.PETRA, images, labels, optimizer=sgd(learning_rate(BATCH)))
    held, peak = (
        {kind: sum(getattr(stage, name).get(kind, 0) for stage in found) for kind in KINDS} for name in ("held", "peak")
    )
    return Prediction(held, peak)


def _setting() -> str:
    return f"PETRA, k = 1, ImageNet, batch {BATCH}, float32; modelled, all stages together"


def _figure() -> Figure:
    bars = {
        f"{title}-{depth}": {kind: amount / GIGABYTE for kind, amount in predicted(family, depth).peak.items()}
        for depth in DEPTHS
        for family, title in ((PAPERS, "RevNet"), (OURS, "Invertible RevNet"))
    }
    title = "Memory of the paper's networks and of the invertible ones"
    sums = "; ".join(f"{name} {sum(kinds.values()):.1f} GB" for name, kinds in bars.items())
    description = f"One stacked bar a network, one colour a kind of tensor, in GB. {sums}."
    svg = memory_bars.draw(key="figure-invertible", title=title, description=description, bars=bars, unit="GB")
    caption = f"{title} ({_setting()}, each kind at its largest). 1 GB = 10⁹ bytes."
    return Figure("invertible", title, description, svg, caption)


def _table() -> Table:
    columns = [Column("depth", numeric=False), Column("kind", numeric=False)]
    for group in ("between ticks", "at their largest"):
        columns += [Column(name, group=group) for name in ("paper's, GB", "invertible, GB", "difference")]
    body = []
    for depth in DEPTHS:
        pair = predicted(PAPERS, depth), predicted(OURS, depth)
        for kind in (*KINDS, "sum"):
            line = [text(f"RevNet-{depth} and invertible RevNet-{depth}"), text(kind.replace("_", " "))]
            for name in ("held", "peak"):
                theirs, ours = (_bytes(getattr(prediction, name), kind) for prediction in pair)
                line += _bytes_entries(theirs, ours)
            body.append(line)
    return Table(
        grouped=True,
        key="invertible",
        caption=f"Memory by kind ({_setting()}). 1 GB = 10⁹ bytes.",
        columns=columns,
        rows=body,
        notes=(
            "Modelled from the shapes of the networks. Between ticks: what lies there while no stage works, on one "
            "device for each stage. At their largest: within a tick, each kind at its own largest moment, so that the "
            "sum is an upper bound; with all stages in one process, which work one after the other, their graphs do "
            "not exist together. Inputs: of the stem (raw images) in both networks, of the down-sampling stages in the "
            "paper's only.",
        ),
    )


def _bytes(by_kind: Mapping[str, int], kind: str) -> int:
    return sum(by_kind.values()) if kind == "sum" else by_kind[kind]


def _bytes_entries(theirs: int, ours: int) -> list[Entry]:
    return [
        number(theirs / GIGABYTE, 2),
        number(ours / GIGABYTE, 2),
        signed((ours - theirs) / GIGABYTE, 2, hint="invertible less the paper's"),
    ]


def _vanished(depth: int) -> Finding:
    theirs, ours = predicted(PAPERS, depth), predicted(OURS, depth)
    changes = {kind: (ours.peak[kind] - theirs.peak[kind]) / GIGABYTE for kind in ("inputs", "messages", "graph")}
    words = ", ".join(f"{kind} {signed(change, 1).text}" for kind, change in changes.items())
    before, after = (sum(prediction.peak.values()) / GIGABYTE for prediction in (theirs, ours))
    return Finding(
        f"Invertible down-sampling: RevNet-{depth}, ImageNet, batch {BATCH}, k = 1 (modelled): {words} GB; in all "
        f"{before:.1f} GB become {after:.1f} GB.",
        Tone.GOOD if after < before else Tone.PLAIN,
    )


# --- runs


def _differences(sheet: Sheet) -> Iterator[tuple[tuple[Method, int], Estimate | None]]:
    """Accuracy of the invertible network less that of the paper's, same method, k and seeds."""
    for k in ACCUMULATIONS[sheet.scale]:
        for method in COMPARED:
            ours, theirs = (sheet.group(planned(sheet.scale, network, method, k)).values(LAST) for network in NETWORKS)
            yield (method, k), paired(ours, theirs)


def _runs(sheet: Sheet, judged: Mapping[tuple[Method, int], Judgement]) -> Table:
    ks = sorted(ACCUMULATIONS[sheet.scale])
    columns = [Column("method", numeric=False), Column("network", numeric=False)]
    for k in ks:
        group = f"k = {k}"
        columns += [Column("last epoch, %", group=group), Column("difference", group=group)]
        columns += [Column("verdict", numeric=False, group=group), Column("peak, MB", group=group)]
    body = []
    for method in COMPARED:
        for network in reversed(NETWORKS):
            example = planned(sheet.scale, network, method, ks[0])
            line = [text(method.title), text(Network(example.model, example.stem, example.width).title)]
            for k in ks:
                runs = sheet.group(planned(sheet.scale, network, method, k))
                line.append(accuracy_entry(runs))
                is_ours = network.startswith(OURS)
                line += judged_entries(judged[method, k]) if is_ours else [missing("reference"), missing("")]
                line.append(_peak(list(runs.values("peak_bytes").values())))
            body.append(line)
    laid_out = [planned(sheet.scale, network, method, k) for k in ks for network in NETWORKS for method in COMPARED]
    return Table(
        grouped=True,
        key=f"invertible-{sheet.key}",
        caption=f"Accuracy and measured memory of both networks ({described(laid_out[0])}, {sheet.arithmetic}).",
        columns=columns,
        rows=body,
        notes=(
            f"Mean ± half the 95 % interval (number of seeds). {DIFFERENCES} Difference: the invertible network less "
            "the paper's, same method and k. Peak: the most bytes that a stage held at one moment, counted by the "
            "engine, summed over the stages; 1 MB = 10⁶ bytes.",
            family_note(judged),
        ),
        data=list(data(sheet.group(cell) for cell in laid_out)),
    )


def _peak(peaks: Sequence[float]) -> Entry:
    return number(max(peaks) / MEGABYTE, 1) if peaks else missing("")


def _compared(sheet: Sheet, judged: Mapping[tuple[Method, int], Judgement]) -> Iterator[Finding]:
    words = told(judged)
    if words:
        example = planned(sheet.scale, NETWORKS[0], methods.PETRA, 1)
        yield Finding(
            f"Invertible down-sampling: {described(example)}, {sheet.arithmetic}. Accuracy against the paper's "
            f"network with the same method, k and seeds, {words}."
        )
