"""Figure 4: accuracy against the accumulation factor k, PETRA and backpropagation.

The paper's figure has RevNet-18 on ImageNet, the validation accuracy averaged over the last 10 epochs, and
backpropagation at one batch whatever PETRA's k is. Here every data set and scale has a figure: backpropagation at
PETRA's effective batch as a second curve, the paper's fixed one as a horizontal band, every seed as a dot, and beside
it the paired differences, which is what the paper's statement is about.
"""

from collections.abc import Iterator

from reproduce.exhibits._exhibit import Claim, Exhibit, Sentence, Shown, claims, claims_finding
from reproduce.exhibits.table2 import by_place, fixed_batch, place_of, sweep_of
from reproduce.grids.plans.figure4 import NETWORK
from reproduce.grids.plans.sweeps import ACCUMULATIONS, BACKPROPAGATION, PETRA
from reproduce.records.frames import Sheet, averaged
from reproduce.show import facets, statements
from reproduce.show.compare import Sample, family_note, judge, points
from reproduce.show.content import estimate as estimate_entry
from reproduce.show.facets import facet
from reproduce.show.statements import combine, is_below, is_not_below
from reproduce.show.statistics import verdict
from reproduce.show.tables import DIFFERENCES, judged, mean, number, table

FIRST, LAST = ACCUMULATIONS[0], ACCUMULATIONS[-1]
STATEMENT = statements.of("figure4")
MATCHED, FIXED = "backpropagation at the same effective batch", "backpropagation at a fixed batch"
INTRODUCTION = (
    f"The published curve (ImageNet, RevNet-18) is unknown; stated is: {STATEMENT.quoted}. In the paper, "
    "backpropagation averages over one batch of 128 or 256 images whatever PETRA's k is, so that at k = 32 an update "
    "of 2048 images is compared with one of 128 or 256. Here PETRA is compared with that, and with backpropagation "
    "that averages over the same k micro-batches. The statement is taken to make three claims: PETRA is below at "
    "k = 1; it lacks less at k = 32; at k = 32 it is not below."
)


def each(sheet: Sheet) -> Iterator[Shown]:
    """The figure of a data set, its numbers, and what they say to the paper's statement."""
    sweep = sweep_of(sheet.scale)
    accuracy = by_place(sheet, "final_accuracy")
    fixed = place_of(sweep.baseline(sheet.dataset, NETWORK))
    of_method = {
        method.name: {k: accuracy[place_of(sweep.cell(sheet.dataset, NETWORK, method, k))] for k in ACCUMULATIONS}
        for method in (PETRA, BACKPROPAGATION)
    }
    petra, matched = of_method.values()
    gaps = {
        MATCHED: {k: petra[k] - matched[k] for k in ACCUMULATIONS},
        FIXED: {k: petra[k] - accuracy[fixed] for k in ACCUMULATIONS},
    }
    less = judge({(reference, k): gap for reference, by_k in gaps.items() for k, gap in by_k.items()})
    example = sweep.cell(sheet.dataset, NETWORK, PETRA, 1)
    setting, epochs = sheet.described(network=True), averaged(example)
    measure = f"averaged over the last {epochs} epochs" if epochs > 1 else "after the last epoch"
    key = f"figure4-{sheet.key}-{sheet.dataset}"
    if sheet.done.empty:
        return
    yield Sentence(
        "PETRA less backpropagation at the same effective batch, points of accuracy: "
        + ", ".join(f"{points(gaps[MATCHED][k])} at k = {k}" for k in (FIRST, LAST))
        + "."
    )
    by_k = sheet.runs[sheet.runs["batch_size"] == example.batch_size]
    yield facet(
        by_k,
        [
            facets.level(accuracy[fixed].values, f"Backpropagation, {fixed.batch_size} images an update"),
            facets.line("interval"),
            facets.dots(apart=0.08),
            facets.cut_to(sheet.runs, "final_accuracy"),
        ],
        key=key,
        title="Accuracy against k",
        caption=f"Accuracy against k ({setting}). Left: test accuracy {measure}; backpropagation at the same effective "
        "batch; dot: a seed, line: mean, band: 95 % interval of the mean, cut where it leaves the panel. Right: PETRA "
        "less backpropagation, paired over seeds, with the 95 % interval; shaded: the margin of the verdicts.",
        x="k",
        y="final_accuracy",
        xlabel="k",
        ylabel="test accuracy, %",
        xlog=True,
        ticks=ACCUMULATIONS,
        height=3.8,
        beside=[
            facets.differences(
                {
                    "to the same effective batch": {k: gap.estimate for k, gap in gaps[MATCHED].items()},
                    f"to {fixed.batch_size} images an update": {k: gap.estimate for k, gap in gaps[FIXED].items()},
                }
            )
        ],
        beside_label="PETRA less backpropagation, points",
    )
    yield table(
        key=key,
        caption=f"Accuracy by k, {measure} ({setting}).",
        rows=ACCUMULATIONS,
        fields=[
            number("k", lambda k: k),
            number("images an update", lambda k: k * example.batch_size),
            mean("PETRA, %", lambda k: petra[k]),
            mean("accuracy, %", lambda k: matched[k], group=MATCHED),
            judged("PETRA less it", lambda k: less[MATCHED, k], group=MATCHED),
            mean("accuracy, %", lambda _: accuracy[fixed], group=FIXED),
            judged("PETRA less it", lambda k: less[FIXED, k], group=FIXED),
        ],
        notes=(
            f"Mean ± half the 95 % interval (number of seeds). {DIFFERENCES} At a fixed batch: {fixed_batch(example)}.",
            family_note(less.values()),
        ),
    )
    found = [_claim(reference, by_k) for reference, by_k in gaps.items()]
    yield from claims(
        STATEMENT,
        found,
        key=key,
        subject="PETRA less",
        caption=setting,
        note="Points of accuracy, paired over seeds; change: the first less the second. Agree: all three claims are "
        "shown; disagree: one is refuted; else the data cannot tell.",
    )
    if any(gap[LAST].values for gap in gaps.values()):
        said = [
            (
                f"compared with {claim.subject}, our data {claim.outcome.verb} "
                f"({'; '.join(_gap(gaps[claim.subject][k], k) for k in (FIRST, LAST))})",
                claim,
            )
            for claim in found
        ]
        yield from claims_finding(f"Figure 4: {setting}", sheet.scale, STATEMENT, said)


def _claim(reference: str, gaps: dict[int, Sample]) -> Claim:
    """Whether there is a gap at k = 1, it closes, and it is gone at k = 32."""
    first, last, change = gaps[FIRST].estimate, gaps[LAST].estimate, (gaps[FIRST] - gaps[LAST]).estimate
    estimates = {f"at k = {FIRST}": first, f"at k = {LAST}": last, "change": change}
    return Claim(reference, estimates, combine([is_below(first), is_below(change), is_not_below(last)]))


def _gap(gap: Sample, k: int) -> str:
    found = gap.estimate
    if found is None:
        return f"k = {k} not run"
    return f"k = {k}: {estimate_entry(found, 2, sign=True).text} points, {verdict(found).value}"


EXHIBIT = Exhibit("figure4", "Figure 4: accuracy against k", INTRODUCTION, each)
