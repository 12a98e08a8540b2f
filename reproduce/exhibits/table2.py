"""Table 2: top-1 accuracy of ResNets and RevNets under backpropagation and PETRA, as published and as run here.

The obvious table, the published number and ours side by side, hides a choice: which k each published PETRA cell used
is not known (the paper says: the best of 1, 2, 4, 8, 16, 32). So the published table stands first, beside it runs with
the paper's settings, PETRA at its best k as in the paper and that k stated; then follow, scale by scale and data set by
data set, tables with every k (`reproduce.exhibits.by_k`). Only the scale `paper` stands beside published values.
"""

from collections.abc import Sequence

from petra_core import methods
from reproduce import published
from reproduce.cells import catalogue
from reproduce.cells.kinds import TrainingCell
from reproduce.exhibits import by_k
from reproduce.exhibits.by_k import BEST
from reproduce.exhibits.experiments import Group
from reproduce.exhibits.sheets import Sheet, accuracy_entry, family_note, judged_entries, sheets, told
from reproduce.grids import paper
from reproduce.grids.plans.sweeps import ACCUMULATIONS, PAPER, SWEEPS
from reproduce.grids.plans.table2 import cells
from reproduce.published import Row
from reproduce.records.results import Results
from reproduce.show.content import Block, Column, Entry, Finding, Section, Table, Tone, missing, none, text
from reproduce.show.content import published as published_entry
from reproduce.show.statistics import Judgement, judge

TORCHVISION = "_torchvision"  # models whose accuracy the paper quotes from torchvision


def section(results: Results) -> Section:
    """The published table with ours beside it, then for every scale and data set all k."""
    found = {sweep.scale: sheets(results, sweep.scale, cells(sweep.scale)) for sweep in SWEEPS}
    rows = published.read("table2_accuracy")
    own = [row for row in rows if not row["model"].endswith(TORCHVISION)]
    papers = found["paper"] or [Sheet("paper", "float32", {})]
    covered = sum(any(_ours(sheet, row) for sheet in papers) for row in own)
    blocks: list[Block] = [_INTRODUCTION, *(_beside_published(rows, sheet) for sheet in papers)]
    here = f"{covered} of {len(own)} cells"
    findings = [
        Finding(f"Table 2: {here} have been run at the paper's scale.", Tone.PLAIN if covered else Tone.MISSING)
    ]
    findings += [
        Finding(f"Table 2: ours at the paper's scale ({sheet.arithmetic}) less the published values, {words}.")
        for sheet in papers
        if (words := told(_to_published(rows, sheet)))
    ]
    coverage = [f"published values; {here} run at the paper's scale"]
    for sweep in SWEEPS:
        if not found[sweep.scale]:
            blocks.append(f"Nothing of this table has been run at the scale “{sweep.scale}” yet.")
        for sheet in found[sweep.scale]:
            coverage.append(f"{sheet.key}: {sheet.progress}")
            for dataset in sweep.datasets:
                if by_k.begun(sweep, sheet, dataset):
                    blocks.append(by_k.table(sweep, sheet, dataset, rows))
                    findings += by_k.findings(sweep, sheet, dataset)
                else:
                    title = catalogue.by_name(dataset).title
                    blocks.append(f"{title} has not been run at the scale “{sheet.scale}” in {sheet.arithmetic} yet.")
    return Section("table2", "Table 2: top-1 accuracy", blocks, findings, "; ".join(coverage))


_INTRODUCTION = (
    "Published: best accuracy after the last drop of the learning rate, in percent, CIFAR-10 the mean of 3 runs; the k "
    "of each PETRA cell is unknown. The paper's baselines average over one batch of 128 (CIFAR-10, ImageNet32) or 256 "
    "images (ImageNet), PETRA over k micro-batches of 64; the tables by k therefore have backpropagation twice, at the "
    "paper's batch and at PETRA's effective batch. No stage of a ResNet can be inverted, so that PETRA would be DSP "
    "there; the paper has no such row. Every scale has tables of its own; only the paper's scale stands beside "
    "published values."
)


def _beside_published(rows: Sequence[Row], sheet: Sheet) -> Table:
    """The published table, each value with ours or with what there is instead."""
    judged = _to_published(rows, sheet)
    columns = [Column("network", numeric=False), Column("method", numeric=False), Column("parameters, M")]
    for dataset in paper.DATASETS:
        title = catalogue.by_name(dataset).title
        columns += [Column(name, group=title) for name in ("published", "ours", "difference")]
        columns.append(Column("verdict", numeric=False, group=title))
    body = []
    for model, method in dict.fromkeys((row["model"], row["method"]) for row in rows):
        line_of = {row["dataset"]: row for row in rows if (row["model"], row["method"]) == (model, method)}
        parameters = next(iter(line_of.values()))
        line = [
            text(_title(model)),
            text(methods.by_name(method).title),
            published_entry(parameters["params_million"], parameters.mark, value=parameters.number("params_million")),
        ]
        for dataset in paper.DATASETS:
            line += _entries(line_of.get(dataset), sheet, judged.get((model, method, dataset)))
        body.append(line)
    return Table(
        key="table2" if sheet.key == "paper" else f"table2-{sheet.key}",
        caption=(
            "Top-1 accuracy in percent: published, and runs with the paper's settings "
            f"(scale “{sheet.scale}”, {sheet.arithmetic})."
        ),
        columns=columns,
        rows=body,
        notes=(
            "Ours: best epoch after the last drop, mean ± half the 95 % interval (number of seeds), and k. "
            "Backpropagation at the paper's batch; PETRA at the best of the k that have been run, as the paper chose "
            "its own: a choice by test accuracy, which flatters both. "
            "Difference: ours less the published value. Its interval is that of our seeds: how far a published value "
            "may be from the mean of many runs is not known.",
            family_note(judged),
            "torchvision: the accuracy of torchvision's weights, as the paper quotes it.",
        ),
    )


def _to_published(rows: Sequence[Row], sheet: Sheet) -> dict[tuple[str, str, str], Judgement]:
    """Ours less the published values, of the cells that have been run, as one family."""
    found = ((row, _ours(sheet, row)) for row in rows)
    return judge({_key(row): by_k.to_published(ours, row) for row, ours in found if ours is not None})


def _key(row: Row) -> tuple[str, str, str]:
    return row["model"], row["method"], row["dataset"]


def _candidates(row: Row) -> list[TrainingCell]:
    """The cells that may stand beside a published value: the paper's baseline, or PETRA at every k."""
    if row["model"].endswith(TORCHVISION):
        return []
    if methods.by_name(row["method"]) is methods.PETRA:
        return [PAPER.cell(row["dataset"], row["model"], methods.PETRA, k) for k in ACCUMULATIONS]
    return [PAPER.baseline(row["dataset"], row["model"])]


def _ours(sheet: Sheet, row: Row) -> Group | None:
    """The best of the candidates; None if no run of any is finished."""
    reached = [
        (found.mean, index)
        for index, cell in enumerate(_candidates(row))
        if (found := sheet.group(cell).estimate(BEST)) is not None
    ]
    return sheet.group(_candidates(row)[max(reached)[1]]) if reached else None


def _entries(row: Row | None, sheet: Sheet, judgement: Judgement | None) -> list[Entry]:
    """Published, ours, difference, verdict."""
    if row is None:
        return [none("the paper has no such cell")] * 4
    shown = published_entry(row["top1_percent"], row.mark, value=row.number("top1_percent"))
    if row["model"].endswith(TORCHVISION):
        return [shown, none("not trained here: torchvision's own weights"), missing(""), missing("")]
    ours = _ours(sheet, row)
    if ours is None or judgement is None:
        return [shown, missing(_state(sheet, row)), missing(""), missing("")]
    entry = accuracy_entry(ours, BEST)
    stated = Entry(f"{entry.text}, k = {ours.cell.accumulation}", entry.value, entry.tone, entry.hint)
    return [shown, stated, *judged_entries(judgement)]


def _state(sheet: Sheet, row: Row) -> str:
    """How far the candidates are if none is finished, k by k."""
    begun = [(cell.accumulation, sheet.group(cell).summary) for cell in _candidates(row)]
    return "; ".join(f"k = {k}: {state}" for k, state in begun if state != "not run") or "not run"


def _title(model: str) -> str:
    name, _, source = model.partition("_")
    family, depth = name[:6], name[6:]
    title = {"resnet": "ResNet", "revnet": "RevNet"}[family] + f"-{depth}"
    return f"{title} ({source})" if source else title
