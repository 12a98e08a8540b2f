"""Beyond the paper: accuracy against the length of the training, PETRA and backpropagation.

The paper trains for 300 epochs and reports a small gap; whoever tries PETRA for a few epochs finds a large one. Is it a
gap in what the method reaches, or in how soon? The same network is trained for several lengths, each with a schedule of
its own (the warm-up stays, the drops come at the same fractions of the training), and the gap is shown against the
length, with its change since the shortest.
"""

from collections.abc import Iterator

from petra_core import methods
from reproduce.exhibits._exhibit import Exhibit, Sentence, Shown
from reproduce.grids.plans.length import ACCUMULATION, COMPARED, LENGTHS
from reproduce.records.frames import Sheet
from reproduce.show import facets
from reproduce.show.compare import Sample, family_note, judge, means, points
from reproduce.show.content import Finding
from reproduce.show.content import estimate as estimate_entry
from reproduce.show.facets import facet
from reproduce.show.tables import DIFFERENCES, judged, mean, number, table
from reproduce.words import count

INTRODUCTION = (
    "If delayed gradients and reconstructed inputs cost accuracy mainly while weights move fast, early in a training, "
    "then the gap to backpropagation closes with its length; if not, it stays. Here the same network is trained for "
    "several lengths, each with a whole schedule of its own: the same warm-up in epochs, drops of the learning rate at "
    f"the same fractions. All with k = {ACCUMULATION}, where gradients are the most updates late."
)
PETRA, EXACT = (method.name for method in COMPARED)


def each(sheet: Sheet) -> Iterator[Shown]:
    """A figure, its numbers, and what they say."""
    lengths = LENGTHS[sheet.scale]
    accuracy = means(sheet.runs, "test_accuracy", ["method", "epochs"])
    gap = {epochs: accuracy[PETRA, epochs] - accuracy[EXACT, epochs] for epochs in lengths}
    since = f"change since {count(lengths[0], 'epoch')}"
    change = {epochs: gap[epochs] - gap[lengths[0]] for epochs in lengths[1:]}
    less = judge({**gap, **{(since, epochs): found for epochs, found in change.items()}})
    setting = f"{sheet.described(network=True, length=False)}, k = {ACCUMULATION}"
    if sheet.done.empty:
        return
    measured = [f"{points(gap[e])} after {count(e, 'epoch')}" for e in lengths if gap[e].values]
    yield Sentence(f"PETRA less backpropagation, points of accuracy: {', '.join(measured) or 'no pair yet'}.")
    yield facet(
        sheet.runs,
        [facets.line("interval"), facets.dots(apart=0.08), facets.cut_to(sheet.runs, "test_accuracy")],
        key=f"length-{sheet.key}",
        title="Accuracy against the length of the training",
        caption=f"Accuracy against the length of the training ({setting}). Left: test accuracy after the last epoch; "
        "dot: a seed, line: mean, band: 95 % interval of the mean, cut where it leaves the panel. Right: PETRA less "
        "backpropagation, paired over seeds, with the 95 % interval; shaded: the margin of the verdicts.",
        x="epochs",
        y="test_accuracy",
        xlabel="epochs",
        ylabel="test accuracy, %",
        xlog=True,
        ticks=lengths,
        height=3.6,
        beside=[facets.differences({"trained as long": {epochs: found.estimate for epochs, found in gap.items()}})],
        beside_label="PETRA less backpropagation, points",
    )
    yield table(
        key=f"length-{sheet.key}",
        caption=f"Accuracy after the last epoch, by the length of the training ({setting}).",
        rows=lengths,
        fields=[
            number("epochs", lambda epochs: epochs),
            mean(f"{methods.PETRA.title}, %", lambda epochs: accuracy[PETRA, epochs]),
            mean(f"{methods.BACKPROPAGATION.title}, %", lambda epochs: accuracy[EXACT, epochs]),
            judged("points", lambda epochs: less[epochs], group="PETRA less backpropagation"),
            judged("points", lambda epochs: less.get((since, epochs)), group=since),
        ],
        notes=(
            f"Mean ± half the 95 % interval (number of seeds). {DIFFERENCES} {since[0].upper()}{since[1:]}: this gap "
            "less that of the shortest training, over the seeds that have both; above 0, PETRA catches up.",
            family_note(less.values()),
        ),
    )
    gaps = ", ".join(f"{_points(gap[e])} with {count(e, 'epoch')}" for e in lengths if gap[e].values)
    changes = [f"{_points(change[e])} with {e} ({less[since, e].verdict.value})" for e in change if change[e].values]
    changed = f"; {since}: {', '.join(changes)}" if changes else ""
    if gaps:
        yield Finding(f"Training length: {setting}. PETRA less backpropagation, points: {gaps}{changed}.")


def _points(difference: Sample) -> str:
    found = difference.estimate
    return f"{estimate_entry(found, 2, sign=True).text} (n = {found.n})" if found else ""


EXHIBIT = Exhibit("length", "Training length: does the gap close?", INTRODUCTION, each)
