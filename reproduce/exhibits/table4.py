"""Table 4: the buffer ablation: which of inputs and weights may be approximated, k = 1.

The four configurations are four methods: what a backward does not find in a buffer, it approximates, an input by
reconstruction, the forward's weights by the current ones. The paper's values are not at hand, only what they are said
to show, so what is compared is ours: every configuration with the one that keeps both, and the two halves with each
other. In RevNet-18 only stage 1 ever works on a rebuilt input; the scale `small` therefore also has the chain of 8
blocks, in which all inner stages do.
"""

from collections.abc import Iterator, Mapping

from petra_core import methods
from petra_core.methods import Method
from reproduce.cells import catalogue
from reproduce.cells.kinds import TrainingCell
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
)
from reproduce.grids.plans.table4 import CONFIGURATIONS, GRIDS, cells, planned
from reproduce.published import Mark
from reproduce.records.results import Results
from reproduce.show import statements
from reproduce.show.content import Block, Column, Entry, Finding, Section, Table, missing, text
from reproduce.show.content import estimate as estimate_entry
from reproduce.show.content import published as published_entry
from reproduce.show.statements import Outcome, combine, is_below, outcome_entry, tone
from reproduce.show.statistics import Estimate, Judgement, judge, paired

FULL = methods.DELAYED_GRADIENTS
STATEMENT = statements.of("table4")
BEST, LAST = "best_test_accuracy", "test_accuracy"


def section(results: Results) -> Section:
    """For every scale and data set the ablation, and what it says to the paper's statement."""
    blocks: list[Block] = [_INTRODUCTION]
    findings: list[Finding] = []
    coverage = ["published values unknown"]
    for scale, (datasets, _) in GRIDS.items():
        found = sheets(results, scale, cells(scale))
        if not found:
            blocks.append(f"Nothing of this table has been run at the scale “{scale}” yet.")
        for sheet in found:
            coverage.append(f"{sheet.key}: {sheet.progress}")
            for dataset in datasets:
                if sheet.begun(cell for network in GRIDS[scale][1] for cell in _row(scale, dataset, network)):
                    blocks += [_table(sheet, dataset), _claims(sheet, dataset)]
                    findings += _findings(sheet, dataset)
                else:
                    title = catalogue.by_name(dataset).title
                    blocks.append(f"{title} has not been run at the scale “{scale}” in {sheet.arithmetic} yet.")
    return Section("table4", "Table 4: buffer ablation", blocks, findings, "; ".join(coverage))


_INTRODUCTION = (
    "Accuracy with k = 1 under the four combinations of buffered inputs and buffered weights, for stages that can be "
    "inverted; the others keep their inputs in every row. The published values (CIFAR-100, RevNet-18, 34 and 50) are "
    f"unknown; stated is: {STATEMENT.quoted}. What separates the halves is the reconstruction of inputs: in RevNet-18 "
    "only stage 1 ever evaluates its residual on a rebuilt input, in RevNet-34 and 50 and in a chain more stages do."
)


def _row(scale: str, dataset: str, network: str) -> list[TrainingCell]:
    return [planned(scale, dataset, network, method) for method in CONFIGURATIONS.values()]


def _difference(sheet: Sheet, dataset: str, network: str, method: Method, reference: Method) -> Estimate | None:
    """Accuracy of a method less that of another, after the last epoch, over their shared seeds, points."""
    ours, other = (sheet.group(planned(sheet.scale, dataset, network, m)).values(LAST) for m in (method, reference))
    return paired(ours, other)


def _title(sheet: Sheet, dataset: str, network: str) -> str:
    cell = planned(sheet.scale, dataset, network, FULL)
    return Network(cell.model, cell.stem, cell.width).title


def _recipe(sheet: Sheet, dataset: str) -> str:
    """Scale, data set and recipe in words; widths stand in the rows."""
    cell = planned(sheet.scale, dataset, GRIDS[sheet.scale][1][0], FULL)
    return f"{described(cell, width=False)}, k = 1, {sheet.arithmetic}"


def _table(sheet: Sheet, dataset: str) -> Table:
    networks = GRIDS[sheet.scale][1]
    judged = judge(
        {
            (network, method): _difference(sheet, dataset, network, method, FULL)
            for network in networks
            for method in CONFIGURATIONS.values()
            if method is not FULL
        }
    )
    at_papers_scale = sheet.scale == "paper" and dataset == "cifar100"
    columns = [Column(name, numeric=False) for name in ("network", "method", "inputs", "weights")]
    columns += [Column("published, %")] if at_papers_scale else []
    columns += [Column(name) for name in ("best epoch, %", "last epoch, %", "to both kept")]
    columns.append(Column("verdict", numeric=False))
    body = []
    for network in networks:
        for (inputs, weights), method in CONFIGURATIONS.items():
            group = sheet.group(planned(sheet.scale, dataset, network, method))
            line = [text(_title(sheet, dataset, network)), text(method.title)]
            line += [text("kept" if inputs else "rebuilt"), text("kept" if weights else "current")]
            line += [published_entry("unknown", Mark.UNKNOWN)] if at_papers_scale else []
            line += [accuracy_entry(group, BEST), accuracy_entry(group, LAST)]
            body.append([*line, *_compared(judged, network, method)])
    groups = [sheet.group(cell) for network in networks for cell in _row(sheet.scale, dataset, network)]
    return Table(
        grouped=True,
        key=f"table4-{sheet.key}-{dataset}",
        caption=f"Top-1 accuracy in percent by what is buffered ({_recipe(sheet, dataset)}).",
        columns=columns,
        rows=body,
        notes=(
            "Mean ± half the 95 % interval (number of seeds); best epoch: of those after the last drop. "
            f"{DIFFERENCES} To both kept: last epoch less that of delayed gradients, which buffer inputs and weights.",
            family_note(judged),
        ),
        data=list(data(groups)),
    )


def _compared(judged: Mapping[tuple[str, Method], Judgement], network: str, method: Method) -> list[Entry]:
    return [missing("reference"), missing("")] if method is FULL else judged_entries(judged[network, method])


def _claims(sheet: Sheet, dataset: str) -> Table:
    columns = [Column(name, numeric=False) for name in ("network", "stated")]
    columns += [Column("inputs rebuilt"), Column("weights current"), Column("the one less the other")]
    columns.append(Column("our data", numeric=False))
    body = []
    for network in GRIDS[sheet.scale][1]:
        halves = _halves(sheet, dataset, network)
        entries = [estimate_entry(half, 2, sign=True) if half else missing("no pair") for half in halves]
        outcome = _outcome(sheet, dataset, network)
        body.append([text(_title(sheet, dataset, network)), STATEMENT.entry, *entries, outcome_entry(outcome)])
    return Table(
        key=f"table4-{sheet.key}-{dataset}-statement",
        caption=f"The paper's statement, and what these runs say ({_recipe(sheet, dataset)}).",
        columns=columns,
        rows=body,
        notes=(
            "Points of accuracy to the configuration that keeps both, paired over seeds. Agree: rebuilding the inputs "
            "is shown to lose more than using current weights, the interval of the difference being below 0; disagree: "
            "it is above 0, or around 0 and within the margin.",
        ),
    )


def _halves(sheet: Sheet, dataset: str, network: str) -> list[Estimate | None]:
    """What either approximation alone costs, and how much more the first does; negative is a loss."""
    inputs, weights = methods.APPROXIMATE_INPUTS, methods.DSP
    return [
        _difference(sheet, dataset, network, method, reference)
        for method, reference in ((inputs, FULL), (weights, FULL), (inputs, weights))
    ]


def _outcome(sheet: Sheet, dataset: str, network: str) -> Outcome:
    return combine([is_below(_halves(sheet, dataset, network)[-1])])


def _findings(sheet: Sheet, dataset: str) -> Iterator[Finding]:
    said = {}
    for network in GRIDS[sheet.scale][1]:
        difference = _halves(sheet, dataset, network)[-1]
        if difference is not None:
            points = estimate_entry(difference, 2, sign=True).text
            outcome = _outcome(sheet, dataset, network)
            said[f"{_title(sheet, dataset, network)}: our data {outcome.verb} ({points} points)"] = outcome
    if said:
        yield Finding(
            f"Table 4: {_recipe(sheet, dataset)}. Stated is {STATEMENT.quoted}; {'; '.join(said)}.",
            tone(sheet.scale, said.values()),
        )
