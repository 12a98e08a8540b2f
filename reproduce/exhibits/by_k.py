"""PETRA and backpropagation at every k: the cells of Table 2 and Figure 4, and a table of them with all k.

The paper compares PETRA, which averages over k micro-batches of 64, with backpropagation that averages over one batch
of 128 or 256 whatever k is. At k = 32 that is 2048 images against 128, and a difference may be that of the batch. So
each network is trained with backpropagation twice, at the paper's batch and at PETRA's effective batch, and PETRA is
compared with both.
"""

from collections.abc import Iterator, Mapping, Sequence

from petra_core.methods import Method
from reproduce.cells import catalogue
from reproduce.cells.kinds import TrainingCell
from reproduce.exhibits.experiments import Group, Network
from reproduce.exhibits.sheets import (
    DIFFERENCES,
    Sheet,
    accuracy_entry,
    counted,
    data,
    described,
    family_note,
    judged_entries,
    told,
)
from reproduce.grids.plans.sweeps import ACCUMULATIONS, BACKPROPAGATION, PETRA, Sweep
from reproduce.published import Row
from reproduce.show.content import Column, Entry, Finding, Table, missing, none, text
from reproduce.show.statistics import Estimate, Judgement, judge, paired

#: The paper reports the best epoch after the last drop. Our methods are compared with each other by the last epoch,
#: which nobody chose by the test set.
BEST, LAST = "best_test_accuracy", "test_accuracy"
MATCHED, BASELINE = "matched", "baseline"


Place = tuple[str, str, int]  # model, what PETRA is compared with, k


def differences(sweep: Sweep, sheet: Sheet, dataset: str) -> Iterator[tuple[Place, Estimate | None]]:
    """PETRA less backpropagation at every k: at the same effective batch, and at the paper's batch."""
    for depth in sweep.depths:
        model = f"revnet{depth}"
        baseline = sheet.group(sweep.baseline(dataset, model))
        for k in ACCUMULATIONS:
            ours = sheet.group(sweep.cell(dataset, model, PETRA, k)).values(LAST)
            matched = sheet.group(sweep.cell(dataset, model, BACKPROPAGATION, k))
            yield (model, MATCHED, k), paired(ours, matched.values(LAST))
            yield (model, BASELINE, k), paired(ours, baseline.values(LAST))


def begun(sweep: Sweep, sheet: Sheet, dataset: str) -> bool:
    """Whether anything of a data set has been run."""
    return sheet.begun(cell for depth in sweep.depths for cell in sweep.cells(dataset, depth))


def to_published(group: Group, row: Row) -> Estimate | None:
    """Our best epochs less the published value, with the interval of ours; None if no run is finished."""
    ours = group.values(BEST)
    return paired(ours, dict.fromkeys(ours, row.number("top1_percent")))


def table(sweep: Sweep, sheet: Sheet, dataset: str, rows: Sequence[Row]) -> Table:
    """Every network and method of a data set, a group of columns for each k.

    Args:
        sweep: what the scale has.
        sheet: its runs.
        dataset: its name.
        rows: the published values; only the scale `paper` is compared with them.

    """
    judged = judge(dict(differences(sweep, sheet, dataset)))
    published = {row["model"]: row for row in rows if (row["method"], row["dataset"]) == ("petra", dataset)}
    published = published if sheet.scale == "paper" else {}
    beside = _beside_published(sweep, sheet, dataset, published)
    example = sweep.cell(dataset, f"revnet{sweep.depths[0]}", PETRA, 1)
    batch = sweep.baseline(dataset, example.model).batch_size
    columns = [Column("network", numeric=False), Column("method", numeric=False)]
    columns += [Column(name, group=f"{batch} images an update") for name in ("best epoch, %", "last epoch, %")]
    columns += [column for k in ACCUMULATIONS for column in _columns(k, bool(published))]
    body = []
    for depth in sweep.depths:
        for model, method in sweep.rows(depth):
            line = [text(Network(model, example.stem, example.width).title), text(method.title)]
            line += _at_papers_batch(sheet, sweep.baseline(dataset, model), method)
            for k in ACCUMULATIONS:
                group = sheet.group(sweep.cell(dataset, model, method, k))
                line += [accuracy_entry(group, BEST), accuracy_entry(group, LAST)]
                line += _compared(model, method, k, judged)
                if published:
                    line += judged_entries(beside[model, k]) if (model, k) in beside and method is PETRA else BLANK
            body.append(line)
    cells = [cell for depth in sweep.depths for cell in sweep.cells(dataset, depth)]
    return Table(
        grouped=True,
        key=f"table2-{sheet.key}-{dataset}",
        caption=f"Top-1 accuracy in percent by k ({described(example)}, {sheet.arithmetic}).",
        columns=columns,
        rows=body,
        notes=tuple(_notes(example, batch, judged, beside if published else None)),
        data=list(data(sheet.group(cell) for cell in cells)),
    )


def findings(sweep: Sweep, sheet: Sheet, dataset: str) -> Iterator[Finding]:
    """How PETRA compares at the same effective batch."""
    judged = judge(dict(differences(sweep, sheet, dataset)))
    words = told({place: judgement for place, judgement in judged.items() if place[1] == MATCHED})
    if words:
        example = sweep.cell(dataset, f"revnet{sweep.depths[0]}", PETRA, 1)
        yield Finding(
            f"Table 2: {described(example)}, {sheet.arithmetic}. PETRA against backpropagation on the same RevNet at "
            f"the same effective batch, {words}."
        )


def fixed_batch(cell: TrainingCell, batch: int) -> str:
    """The batch of the paper's baselines, in words."""
    halved = "" if cell.scale == "paper" else ", halved as PETRA's micro-batch is"
    return f"one batch of {batch} images an update whatever PETRA's k, as in the paper{halved}"


def _columns(k: int, at_papers_scale: bool) -> Iterator[Column]:
    group = f"k = {k}"
    yield Column("best epoch, %", group=group)
    yield Column("last epoch, %", group=group)
    yield Column("to the same batch", group=group, hint="less backpropagation at the same effective batch")
    yield Column("verdict", numeric=False, group=group)
    yield Column("to the fixed batch", group=group, hint="less backpropagation at the paper's batch")
    yield Column("verdict", numeric=False, group=group)
    if at_papers_scale:
        yield Column("to published", group=group, hint="best epoch less the published value, whose k is not known")
        yield Column("verdict", numeric=False, group=group)


def _at_papers_batch(sheet: Sheet, cell: TrainingCell, method: Method) -> list[Entry]:
    if method is PETRA:
        return [none("PETRA's updates average over k micro-batches")] * 2
    group = sheet.group(cell)
    return [accuracy_entry(group, BEST), accuracy_entry(group, LAST)]


def _compared(model: str, method: Method, k: int, judged: Mapping[Place, Judgement]) -> list[Entry]:
    """Differences and verdicts: to the same effective batch, to the paper's batch."""
    if method is PETRA:
        return [entry for reference in (MATCHED, BASELINE) for entry in judged_entries(judged[model, reference, k])]
    return [missing("reference" if model.startswith("revnet") else ""), *[missing("")] * 3]


BLANK = [missing(""), missing("")]


def _beside_published(
    sweep: Sweep, sheet: Sheet, dataset: str, published: Mapping[str, Row]
) -> dict[tuple[str, int], Judgement]:
    """PETRA's differences to the published values, by network and k, as a family of their own; no other's is at a k."""
    found = {
        (model, k): to_published(sheet.group(sweep.cell(dataset, model, PETRA, k)), published[model])
        for depth in sweep.depths
        for model, method in sweep.rows(depth)
        if method is PETRA and published
        for k in ACCUMULATIONS
    }
    return judge({place: difference for place, difference in found.items() if difference})


def _notes(
    cell: TrainingCell,
    batch: int,
    judged: Mapping[Place, Judgement],
    beside: Mapping[tuple[str, int], Judgement] | None,
) -> Iterator[str]:
    after = cell.epochs - max(cell.drops, default=0)
    best = (
        f"of the {after} after the last drop, chosen by test accuracy as in the paper"
        if after > 1
        else "the only one after the last drop, so that it is the last epoch"
    )
    yield f"Mean ± half the 95 % interval (number of seeds). Best epoch: {best}."
    yield (
        f"{DIFFERENCES} Of the last epoch: PETRA less backpropagation on the same network, with the same k and "
        f"micro-batches of {cell.batch_size} (to the same batch), and with {fixed_batch(cell, batch)} (to the fixed "
        "batch)."
    )
    if beside is not None:
        title = catalogue.by_name(cell.dataset).title
        yield (
            f"To published: best epoch less the published value of {title}, whose k and spread are not known; these "
            f"{counted(beside) or 'comparisons'} are corrected among themselves."
        )
    yield family_note(judged)
