"""Table 2: top-1 accuracy of ResNets and RevNets under backpropagation and PETRA, as published and as run here.

Only runs of the scale `paper` stand beside the published values. Which k each published PETRA cell used is not known
(the paper says: the best of 1, 2, 4, 8, 16, 32), so k is stated for ours and compared with care.
"""

from collections.abc import Iterable

from petra_core import methods
from reproduce import published
from reproduce.cells import TrainingCell
from reproduce.published import Row
from reproduce.tables.content import Column, Entry, Finding, Section, Table, Tone, missing, none, text
from reproduce.tables.content import published as published_entry
from reproduce.tables.experiments import Group, experiments
from reproduce.tables.results import Results

SCALE = "paper"
TORCHVISION = "_torchvision"  # models whose accuracy the paper quotes from torchvision
DATASETS = {"cifar10": "CIFAR-10", "imagenet32": "ImageNet32", "imagenet": "ImageNet"}


def section(results: Results) -> Section:
    """Published accuracies, each with ours or with what there is instead."""
    rows = published.read("table2_accuracy")
    own = [row for row in rows if not row["model"].endswith(TORCHVISION)]
    groups = [
        group
        for experiment in experiments(run for run in results.training if run.cell.scale == SCALE)
        for group in experiment.groups.values()
    ]
    table = _table(rows, groups)
    covered = sum(
        any(_matches(group.cell, row) and group.values("best_test_accuracy") for group in groups) for row in own
    )
    coverage = f"published values; {covered} of {len(own)} cells run at the paper's scale"
    finding = Finding(
        f"Table 2: {covered} of {len(own)} cells have been run at the paper's scale.",
        Tone.PLAIN if covered else Tone.MISSING,
    )
    return Section("table2", "Table 2: top-1 accuracy", [_INTRODUCTION, table], [finding], coverage)


_INTRODUCTION = (
    "Published: best accuracy after the last drop of the learning rate, in percent, CIFAR-10 the mean of 3 runs; "
    "the k of each PETRA cell is unknown. Ours would be runs with the paper's settings (scale “paper”); smaller "
    "scales never stand in this table."
)


def _table(rows: list[Row], groups: Iterable[Group]) -> Table:
    groups = list(groups)
    columns = [Column("network", numeric=False), Column("method", numeric=False), Column("parameters, M")]
    for title in DATASETS.values():
        columns += [Column("published", group=title), Column("ours", group=title)]
    body = []
    for model, method in dict.fromkeys((row["model"], row["method"]) for row in rows):
        own = {row["dataset"]: row for row in rows if (row["model"], row["method"]) == (model, method)}
        parameters = next(iter(own.values()))
        line = [
            text(_title(model)),
            text(methods.by_name(method).title),
            published_entry(parameters["params_million"], parameters.mark, value=parameters.number("params_million")),
        ]
        for dataset in DATASETS:
            line += _entries(own.get(dataset), groups)
        body.append(line)
    return Table(
        key="table2",
        caption="Top-1 accuracy in percent: published values beside runs with the paper's settings.",
        columns=columns,
        rows=body,
        notes=("torchvision: the accuracy of torchvision's weights, as the paper quotes it.",),
    )


def _entries(row: Row | None, groups: Iterable[Group]) -> list[Entry]:
    if row is None:
        return [none("the paper has no such cell")] * 2
    published_value = published_entry(row["top1_percent"], row.mark, value=row.number("top1_percent"))
    if row["model"].endswith(TORCHVISION):
        return [published_value, none("not trained here: torchvision's own weights")]
    ours = [group for group in groups if _matches(group.cell, row)]
    if not ours:
        return [published_value, missing("not run")]
    return [published_value, Entry("; ".join(map(_shown, ours)), tone=Tone.OURS)]


def _shown(group: Group) -> str:
    best = group.estimate("best_test_accuracy")
    if best is None:
        return f"k = {group.cell.accumulation}: {group.unfinished}"
    half = "" if best.half_width is None else f" ± {best.half_width:.1f}"
    return f"{best.mean:.1f}{half} (k = {group.cell.accumulation}, n = {best.n})"


def _matches(cell: TrainingCell, row: Row) -> bool:
    same_method = cell.method == methods.by_name(row["method"]).name
    return (cell.dataset, cell.model) == (row["dataset"], row["model"]) and same_method


def _title(model: str) -> str:
    name, _, source = model.partition("_")
    family, depth = name[:6], name[6:]
    title = {"resnet": "ResNet", "revnet": "RevNet"}[family] + f"-{depth}"
    return f"{title} ({source})" if source else title
