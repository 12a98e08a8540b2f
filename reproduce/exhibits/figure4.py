"""Figure 4: accuracy against the accumulation factor k, PETRA and backpropagation.

In the paper's figure backpropagation averages over one batch whatever PETRA's k is. Here it stands beside PETRA at its
effective batch too, every seed as a dot, and the differences, which is what the paper's statement is about.
"""

from collections.abc import Callable, Iterator, Mapping

from reproduce.exhibits._exhibit import Exhibit, Sentence, Shown
from reproduce.exhibits.table2 import by_cell, fixed_batch
from reproduce.grids.plans.figure4 import NETWORK
from reproduce.grids.plans.sweeps import ACCUMULATIONS, BACKPROPAGATION, PETRA, SWEEPS
from reproduce.records.frames import Sheet, averaged
from reproduce.show import facets, statements
from reproduce.show.compare import Difference, Samples, points
from reproduce.show.content import Entry, none
from reproduce.show.statements import UNKNOWN, claim_entries, combine, is_below, is_not_below
from reproduce.show.statistics import Estimate
from reproduce.show.tables import Field, entry, judged, mean, number, table

FIRST, LAST = ACCUMULATIONS[0], ACCUMULATIONS[-1]
STATEMENT = statements.of("figure4")
MATCHED, FIXED = "backpropagation at the same effective batch", "backpropagation at a fixed batch"
LEGEND = {MATCHED: "to the same effective batch", FIXED: "to a fixed batch"}
INTRODUCTION = (
    f"The published curve (ImageNet, RevNet-18) is unknown; stated is: {STATEMENT.quoted}. In the paper, "
    "backpropagation averages over one batch of 128 or 256 images whatever PETRA's k is; here PETRA is compared with "
    "that, and with backpropagation that averages over the same k micro-batches. The statement is taken to make three "
    f"claims: PETRA is below at k = {FIRST}; it lacks less at k = {LAST}; at k = {LAST} it is not below."
)

#: The paper's statement taken apart: what stands in the column k, the difference it is about, and what shows it.
CLAIMS: dict[str, tuple[Callable[[Mapping[int, Difference]], Difference], Callable[[Estimate | None], bool | None]]] = {
    f"{FIRST}: below": (lambda gap: gap[FIRST], is_below),
    f"{FIRST} less {LAST}: below": (lambda gap: gap[FIRST] - gap[LAST], is_below),
    f"{LAST}: not below": (lambda gap: gap[LAST], is_not_below),
}


def each(sheet: Sheet) -> Iterator[Shown]:
    """The figure of a data set, its numbers, and what they say to the paper's statement."""
    sweep, accuracy = SWEEPS[sheet.scale], by_cell(sheet, "final_accuracy")
    example, ks = sweep.cell(sheet.dataset, NETWORK, PETRA, 1), sorted(sweep.accumulations)
    fixed = sweep.baseline(sheet.dataset, NETWORK)
    petra, matched = (
        Samples({k: accuracy(sweep.cell(sheet.dataset, NETWORK, method, k)) for k in ks})
        for method in (PETRA, BACKPROPAGATION)
    )
    references = {MATCHED: matched, FIXED: Samples(dict.fromkeys(ks, accuracy(fixed)))}
    claimed = sorted({*ks, FIRST, LAST})
    gaps = {name: {k: petra[k] - by_k[k] for k in claimed} for name, by_k in references.items()}
    about = {(name, claim): of(gap).estimate for name, gap in gaps.items() for claim, (of, _) in CLAIMS.items()}
    shown = {(name, claim): CLAIMS[claim][1](difference) for (name, claim), difference in about.items()}
    outcomes = {name: combine([shown[name, claim] for claim in CLAIMS]) for name in gaps}
    setting, epochs = sheet.described(network=True), averaged(example)
    measure = f"averaged over the last {epochs} epochs" if epochs > 1 else "after the last epoch"
    key = f"figure4-{sheet.key}-{sheet.dataset}"
    ends = {name: ", ".join(f"{points(gap[k])} at k = {k}" for k in (FIRST, LAST)) for name, gap in gaps.items()}
    yield Sentence(
        f"PETRA less backpropagation at the same effective batch, points of accuracy: {ends[MATCHED]}.",
        known=any(gaps[MATCHED][k].estimate for k in (FIRST, LAST)),
    )
    yield facets.facet(
        sheet.done[sheet.done["batch_size"] == example.batch_size],
        [
            facets.level(accuracy(fixed).estimate, f"Backpropagation, {fixed.batch_size} images per update"),
            facets.line("interval"),
            facets.dots(apart=0.08),
            facets.cut_to(sheet.done, "final_accuracy"),
        ],
        key=key,
        caption=f"Accuracy against k ({setting}), {measure}. Dot: a seed, line: mean, band: 95 % interval, cut where "
        "it leaves the panel. Right: PETRA − backpropagation; shaded: the verdicts' margin.",
        x="k",
        y="final_accuracy",
        height=3.8,
        beside=[facets.differences({LEGEND[name]: {k: gap[k].estimate for k in ks} for name, gap in gaps.items()})],
        beside_label="PETRA − backpropagation, points",
    )

    first = next(iter(CLAIMS))

    def beside(name: str) -> list[Field]:
        def difference(k: int | str) -> Difference | list[Entry]:
            return claim_entries(about[name, k], combine([shown[name, k]])) if k in CLAIMS else gaps[name][int(k)]

        return [
            mean("accuracy, %", lambda k: references[name].get(k), group=name),
            judged("PETRA − it", difference, group=name),
        ]

    yield table(
        key=key,
        caption=f"Accuracy by k, {measure} ({setting}); last, the claims of the paper's statement.",
        rows=[*ks, *CLAIMS],
        fields=[
            number("k", lambda k: Entry(str(k), 1e3) if k in CLAIMS else k),
            number("images per update", lambda k: none("") if k in CLAIMS else k * example.batch_size),
            entry("published", lambda k: STATEMENT.entry if k == first else none("") if k in CLAIMS else UNKNOWN),
            mean("PETRA, %", petra.get),
            *beside(MATCHED),
            *beside(FIXED),
        ],
        notes=[
            f"At a fixed batch: {fixed_batch(example)}.",
            "A claim: agree if shown, disagree if refuted, by its own interval, uncorrected for their number. "
            "The statement: agree if all three are shown, disagree if one is refuted.",
        ],
    )
    said = [f"compared with {name}, our data {outcome.verb} ({ends[name]})" for name, outcome in outcomes.items()]
    said_of = f"{'; '.join(said)}; points of accuracy, intervals uncorrected for their number"
    yield from statements.answer(f"Figure 4: {setting}", sheet.scale, STATEMENT, said_of, outcomes.values())


EXHIBIT = Exhibit("figure4", "Figure 4: accuracy against k", INTRODUCTION, each)
