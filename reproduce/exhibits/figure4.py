"""Figure 4: accuracy against the accumulation factor k, PETRA and backpropagation.

The paper's figure has RevNet-18 on ImageNet, the validation accuracy averaged over the last 10 epochs, and
backpropagation at one batch whatever PETRA's k is. Here every data set and scale has a figure: backpropagation at
PETRA's effective batch as a second curve, the paper's fixed one as a horizontal band, every seed as a dot, and beside
it the paired differences, which is what the paper's statement is about.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from petra_core import methods
from reproduce.cells.kinds import TrainingCell
from reproduce.exhibits.by_k import BASELINE, MATCHED, fixed_batch
from reproduce.exhibits.experiments import Group
from reproduce.exhibits.sheets import (
    DIFFERENCES,
    Sheet,
    data,
    described,
    family_note,
    judged_entries,
    mean_entry,
    sheets,
)
from reproduce.grids.plans.figure4 import DEPTH, NETWORK, cells
from reproduce.grids.plans.sweeps import ACCUMULATIONS, SWEEPS, Sweep
from reproduce.records.results import Results, Run
from reproduce.show import statements, sweep_plots
from reproduce.show.content import Block, Column, Figure, Finding, Section, Table, Tone, missing, number, text
from reproduce.show.content import estimate as estimate_entry
from reproduce.show.statements import Outcome, combine, is_below, is_not_below, outcome_entry, tone
from reproduce.show.statistics import Estimate, estimate, judge, paired, verdict

FIRST, LAST = ACCUMULATIONS[0], ACCUMULATIONS[-1]
AVERAGED = 10  # epochs
STATEMENT = statements.of("figure4")
REFERENCES = {MATCHED: "backpropagation at the same effective batch", BASELINE: "backpropagation at a fixed batch"}


@dataclass(frozen=True)
class Curves:
    """What a figure shows: final accuracies by seed, percent.

    Attributes:
        sheet: their runs.
        example: one of their cells.
        petra: by k and seed.
        matched: backpropagation at the same effective batch, by k and seed.
        baseline: backpropagation at the paper's batch, by seed.
        batch: the paper's batch.

    """

    sheet: Sheet
    example: TrainingCell
    petra: Mapping[int, Mapping[int, float]]
    matched: Mapping[int, Mapping[int, float]]
    baseline: Mapping[int, float]
    batch: int

    @property
    def empty(self) -> bool:
        """Whether no run is finished."""
        return not any([self.baseline, *self.petra.values(), *self.matched.values()])

    @property
    def key(self) -> str:
        """For anchors."""
        return f"figure4-{self.sheet.key}-{self.example.dataset}"

    @property
    def described(self) -> str:
        """Scale, data set, network and recipe, in words."""
        return f"{described(self.example, network=True)}, {self.sheet.arithmetic}"

    @property
    def measure(self) -> str:
        """Which accuracy it is, in words."""
        amount = averaged(self.example)
        return f"averaged over the last {amount} epochs" if amount > 1 else "after the last epoch"

    def gap(self, reference: str, k: int) -> dict[int, float]:
        """PETRA less the reference at k, by shared seed."""
        other = self.matched[k] if reference == MATCHED else self.baseline
        return {seed: self.petra[k][seed] - other[seed] for seed in sorted(self.petra[k].keys() & other.keys())}

    def difference(self, reference: str, k: int) -> Estimate | None:
        """The same as an estimate."""
        gaps = self.gap(reference, k)
        return estimate(list(gaps.values())) if gaps else None

    def change(self, reference: str) -> Estimate | None:
        """The gap at k = 1 less that at k = 32, paired over seeds: negative if it closes."""
        return paired(self.gap(reference, FIRST), self.gap(reference, LAST))

    def outcome(self, reference: str) -> Outcome:
        """Whether there is a gap at k = 1, it closes, and it is gone at k = 32."""
        first, last = self.difference(reference, FIRST), self.difference(reference, LAST)
        return combine([is_below(first), is_below(self.change(reference)), is_not_below(last)])


def curves(sweep: Sweep, sheet: Sheet, dataset: str) -> Curves:
    """The final accuracies of a data set."""

    def values(group: Group) -> dict[int, float]:
        return group.measured(final_accuracy)

    petra, matched = (
        {k: values(sheet.group(sweep.cell(dataset, NETWORK, method, k))) for k in ACCUMULATIONS}
        for method in (methods.PETRA, methods.BACKPROPAGATION)
    )
    baseline = sweep.baseline(dataset, NETWORK)
    example = sweep.cell(dataset, NETWORK, methods.PETRA, 1)
    return Curves(sheet, example, petra, matched, values(sheet.group(baseline)), baseline.batch_size)


def averaged(cell: TrainingCell) -> int:
    """Epochs over which the accuracy is averaged: the last 10 as in the paper, if so many follow the last drop."""
    return AVERAGED if cell.epochs - max(cell.drops, default=0) >= AVERAGED else 1


def final_accuracy(run: Run[TrainingCell]) -> float:
    """Percent, averaged over the last epochs."""
    last = [float(line["test_accuracy"]) for line in run.metrics[-averaged(run.cell) :]]
    return sum(last) / len(last)


def section(results: Results) -> Section:
    """For every scale and data set a figure, its numbers, and what they say to the paper's statement."""
    blocks: list[Block] = [_INTRODUCTION]
    findings: list[Finding] = []
    coverage = ["published curve unknown"]
    for sweep in SWEEPS:
        found = sheets(results, sweep.scale, cells(sweep.scale))
        if not found:
            blocks.append(f"Nothing of this figure has been run at the scale “{sweep.scale}” yet.")
        coverage += [f"{sheet.key}: {sheet.progress}" for sheet in found]
        for drawn in (curves(sweep, sheet, dataset) for sheet in found for dataset in sweep.datasets):
            if drawn.empty:
                blocks.append(f"No run is finished yet at {drawn.described}.")
            else:
                blocks += [_figure(drawn), _table(sweep, drawn), _claims(drawn)]
                findings += _findings(drawn)
    return Section("figure4", "Figure 4: accuracy against k", blocks, findings, "; ".join(coverage))


_INTRODUCTION = (
    f"The published curve (ImageNet, RevNet-18) is unknown; stated is: {STATEMENT.quoted}. In the paper, "
    "backpropagation averages over one batch of 128 or 256 images whatever PETRA's k is, so that at k = 32 an update "
    "of 2048 images is compared with one of 128 or 256. Here PETRA is compared with that, and with backpropagation "
    "that averages over the same k micro-batches. The statement is taken to make three claims: PETRA is below at "
    "k = 1; it lacks less at k = 32; at k = 32 it is not below."
)


def _figure(drawn: Curves) -> Figure:
    title = "Accuracy against k"
    means = "; ".join(
        f"k = {k}: PETRA {_mean(drawn.petra[k])}, backpropagation {_mean(drawn.matched[k])}" for k in ACCUMULATIONS
    )
    description = (
        f"Two panels against k. Left, test accuracy {drawn.measure}, in percent: {means}; backpropagation with one "
        f"batch of {drawn.batch}: {_mean(drawn.baseline)}. Right, PETRA less backpropagation, points."
    )
    labels = {MATCHED: "same effective batch", BASELINE: f"{drawn.batch} images an update"}
    svg = sweep_plots.draw(
        key=f"figure-{drawn.key}",
        title=title,
        description=description,
        axis="k",
        accuracies={methods.PETRA: drawn.petra, methods.BACKPROPAGATION: drawn.matched},
        baseline=drawn.baseline,
        labels=labels,
        differences={r: {k: drawn.difference(r, k) for k in ACCUMULATIONS} for r in REFERENCES},
    )
    caption = (
        f"{title} ({drawn.described}). Left: test accuracy {drawn.measure}; dot: a seed, line: mean, band: 95 % "
        "interval of the mean, cut where it leaves the panel. Right: PETRA less backpropagation, paired over seeds, "
        "with the 95 % interval; shaded: the margin of the verdicts."
    )
    return Figure(drawn.key, title, description, svg, caption)


def _table(sweep: Sweep, drawn: Curves) -> Table:
    judged = judge({(r, k): drawn.difference(r, k) for r in REFERENCES for k in ACCUMULATIONS})
    columns = [Column("k"), Column("images an update"), Column("PETRA, %")]
    for title in REFERENCES.values():
        columns += [Column("accuracy, %", group=title), Column("PETRA less it", group=title)]
        columns.append(Column("verdict", numeric=False, group=title))
    body = []
    dataset, sheet = drawn.example.dataset, drawn.sheet
    baseline = mean_entry(sheet.group(sweep.baseline(dataset, NETWORK)), drawn.baseline)
    for k in ACCUMULATIONS:
        petra, matched = (
            sheet.group(sweep.cell(dataset, NETWORK, method, k)) for method in (methods.PETRA, methods.BACKPROPAGATION)
        )
        references = {MATCHED: mean_entry(matched, drawn.matched[k]), BASELINE: baseline}
        line = [number(amount, 0, tone=Tone.PLAIN) for amount in (k, k * drawn.example.batch_size)]
        line.append(mean_entry(petra, drawn.petra[k]))
        for reference, entry in references.items():
            line += [entry, *judged_entries(judged[reference, k])]
        body.append(line)
    groups = [sheet.group(cell) for cell in sweep.cells(dataset, DEPTH) if cell.model == NETWORK]
    runs = [run for group in groups for run in group.runs]
    return Table(
        key=drawn.key,
        caption=f"Accuracy by k, {drawn.measure} ({drawn.described}).",
        columns=columns,
        rows=body,
        notes=(
            f"Mean ± half the 95 % interval (number of seeds). {DIFFERENCES} At a fixed batch: "
            f"{fixed_batch(drawn.example, drawn.batch)}.",
            family_note(judged),
        ),
        data=[
            line | {"shown_accuracy": final_accuracy(run) if run.done else ""}
            for run, line in zip(runs, data(groups), strict=True)
        ],
    )


def _claims(drawn: Curves) -> Table:
    columns = [Column(name, numeric=False) for name in ("PETRA less", "stated")]
    columns += [Column(f"at k = {FIRST}"), Column(f"at k = {LAST}"), Column("change")]
    columns.append(Column("our data", numeric=False))
    body = []
    for reference, title in REFERENCES.items():
        gaps = (drawn.difference(reference, FIRST), drawn.difference(reference, LAST), drawn.change(reference))
        entries = [estimate_entry(gap, 2, sign=True) if gap else missing("not run") for gap in gaps]
        body.append([text(title), STATEMENT.entry, *entries, outcome_entry(drawn.outcome(reference))])
    return Table(
        key=f"{drawn.key}-statement",
        caption=f"The paper's statement, and what these runs say ({drawn.described}).",
        columns=columns,
        rows=body,
        notes=(
            "Points of accuracy, paired over seeds; change: the first less the second. Agree: all three claims are "
            "shown; disagree: one is refuted; else the data cannot tell.",
        ),
    )


def _findings(drawn: Curves) -> Iterator[Finding]:
    if all(drawn.difference(reference, LAST) is None for reference in REFERENCES):
        return
    said = "; ".join(
        f"compared with {title}, our data {drawn.outcome(reference).verb} "
        f"({_gap(drawn, reference, FIRST)}; {_gap(drawn, reference, LAST)})"
        for reference, title in REFERENCES.items()
    )
    outcomes = [drawn.outcome(reference) for reference in REFERENCES]
    yield Finding(
        f"Figure 4: {drawn.described}. Stated is {STATEMENT.quoted}; {said}.",
        tone(drawn.sheet.scale, outcomes),
    )


def _gap(drawn: Curves, reference: str, k: int) -> str:
    found = drawn.difference(reference, k)
    if found is None:
        return f"k = {k} not run"
    return f"k = {k}: {estimate_entry(found, 2, sign=True).text} points, {verdict(found).value}"


def _mean(values: Mapping[int, float]) -> str:
    return f"{sum(values.values()) / len(values):.2f}" if values else "not run"
