"""Beyond the paper: accuracy against the length of the training.

The paper trains for 300 epochs and reports a small gap; whoever tries PETRA for a few epochs finds a large one. Is it a
gap in what the method reaches, or in how soon, and is it the delay or the reconstruction that makes it?
"""

from collections.abc import Iterator

from petra_core import methods
from reproduce.exhibits._exhibit import Exhibit, Sentence, Shown
from reproduce.grids.plans.length import AGAINST, ARMS, FOR, PETRA, SEEDS, Arm
from reproduce.records.frames import Sheet
from reproduce.show import facets
from reproduce.show.compare import Sample, family_note, judge, means, points
from reproduce.show.content import Finding
from reproduce.show.content import estimate as estimate_entry
from reproduce.show.facets import facet
from reproduce.show.statistics import Estimate
from reproduce.show.tables import DIFFERENCES, judged, mean, number, table, words
from reproduce.words import count

INTRODUCTION = (
    "The same network is trained for several lengths, each with a whole schedule of its own: the same warm-up in "
    "epochs, drops of the learning rate at the same fractions. Delayed gradients have exact inputs, so what they lose "
    "is the delay's; with k = 4 gradients are fewer updates late. Fixed before the long runs were looked at: at "
    f"“small”, PETRA (k = 1) more than {AGAINST[1]:g} points below backpropagation after {AGAINST[0]} epochs speaks "
    f"against the paper's claim, within ± {FOR[1]:g} after {FOR[0]} for it, the whole interval each time."
)


def each(sheet: Sheet) -> Iterator[Shown]:
    """A figure, its numbers, and what they say."""
    if sheet.done.empty:
        return
    accuracy = means(sheet.runs, "test_accuracy", ["method", "k", "epochs"])
    places = [(arm, epochs) for arm in ARMS for epochs, arms in SEEDS[sheet.scale].items() if arm in arms]

    def exact(arm: Arm, epochs: int) -> Sample:
        return accuracy[methods.BACKPROPAGATION.name, arm.k, epochs]

    gap = {(arm, e): accuracy[arm.method.name, arm.k, e] - exact(arm, e) for arm, e in places}
    lengths = sorted({epochs for _, epochs in places})
    since = f"change since {count(lengths[0], 'epoch')}"
    change = {place: gap[place] - gap[place[0], lengths[0]] for place in places if place[1] > lengths[0]}
    less = judge({**gap, **{(since, *place): found for place, found in change.items()}})
    setting = sheet.described(network=True, length=False)
    of_petra = {epochs: found for (arm, epochs), found in gap.items() if arm == PETRA}
    measured = [f"{points(found)} after {count(e, 'epoch')}" for e, found in of_petra.items() if found.values]
    where = f"(k = {PETRA.k}, scale “{sheet.scale}”)"
    yield Sentence(f"PETRA less backpropagation, points of accuracy {where}: {', '.join(measured) or 'no pair yet'}.")
    by_arm: dict[str, dict[float, Estimate | None]] = {
        arm.title: {epochs: found.estimate for (other, epochs), found in gap.items() if other == arm}
        for arm in dict.fromkeys(arm for arm, _ in places)
    }
    yield facet(
        sheet.runs[sheet.runs["k"] == PETRA.k],
        [facets.line("interval"), facets.dots(apart=0.08), facets.cut_to(sheet.runs, "test_accuracy")],
        key=f"length-{sheet.key}",
        title="Accuracy against the length of the training",
        caption=f"Left: test accuracy after the last epoch, k = {PETRA.k} ({setting}); dot: a seed, line: mean, band: "
        "95 % interval. Right: less backpropagation at the same k, paired over seeds; shaded: the verdicts' margin.",
        x="epochs",
        y="test_accuracy",
        xlabel="epochs",
        ylabel="test accuracy, %",
        xlog=True,
        ticks=lengths,
        height=3.6,
        beside=[facets.differences(by_arm)],
        beside_label="less backpropagation, points",
    )
    yield table(
        key=f"length-{sheet.key}",
        caption=f"Accuracy after the last epoch, by the length of the training ({setting}).",
        rows=places,
        fields=[
            words("method", lambda place: place[0].title),
            number("epochs", lambda place: place[1]),
            mean("accuracy, %", lambda place: accuracy[place[0].method.name, place[0].k, place[1]]),
            mean("backpropagation, %", lambda place: exact(*place)),
            judged("points", lambda place: less[place], group="less backpropagation"),
            judged("points", lambda place: less.get((since, *place)), group=since),
            words("the paper's claim", lambda place: _decided(sheet.scale, place[0], place[1], gap[place])),
        ],
        notes=(
            f"Mean ± half the 95 % interval (number of seeds). {DIFFERENCES} {since[0].upper()}{since[1:]}: this gap "
            "less that of the shortest training, over the seeds that have both; above 0, the method catches up.",
            family_note(less.values()),
        ),
        grouped=True,
    )
    for arm in by_arm:
        gaps = [f"{_points(found)} with {e}" for (w, e), found in gap.items() if w.title == arm and found.values]
        if gaps:
            decided = [_decided(sheet.scale, w, e, found) for (w, e), found in gap.items() if w.title == arm]
            yield Finding(
                f"Training length: {setting}. {arm}, less backpropagation, points by epochs: {', '.join(gaps)}"
                f"{''.join(f'; {said}' for said in decided if said)}."
            )


def _decided(scale: str, arm: Arm, epochs: int, gap: Sample) -> str:
    """What the rule that was fixed beforehand says of a gap; empty of those that it does not speak of."""
    rules = {AGAINST[0]: AGAINST[1], FOR[0]: FOR[1]}
    if (scale, arm) != ("small", PETRA) or epochs not in rules:
        return ""
    found, limit = gap.estimate, rules[epochs]
    if found is None:
        return ""
    if found.low is None or found.high is None:
        return f"after {epochs}: cannot tell"
    if epochs == AGAINST[0]:
        outcome = "against" if found.high < -limit else "not against" if found.low > -limit else "cannot tell"
    else:
        inside, outside = max(-found.low, found.high) <= limit, found.high < -limit or found.low > limit
        outcome = "for" if inside else "not for" if outside else "cannot tell"
    return f"after {epochs}: {outcome}"


def _points(difference: Sample) -> str:
    found = difference.estimate
    return f"{estimate_entry(found, 2, sign=True).text} (n = {found.n})" if found else ""


EXHIBIT = Exhibit("length", "Training length: does the gap close?", INTRODUCTION, each)
