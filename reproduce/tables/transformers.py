"""Beyond the paper: PETRA on a vision transformer, beside backpropagation.

The paper trains residual networks alone. RevViT (`petra_core.models.revvit`) is reversible between patch embedding and
head without any further change, so nothing is buffered inside, and the whole network is one unbroken run of reversible
stages: the hardest case for reconstruction with newer weights. Here it has the depth of the published Tiny, and so its
delays, at a quarter of the width.

Transformers are trained by AdamW. Its learning rate grows with the square root of the samples of an update (Malladi et
al. 2022), not in proportion to them as SGD's does.

This module exports ACCUMULATIONS, cells, section.
"""

import math
from collections.abc import Iterator, Mapping

from petra_core import methods
from petra_core.methods import Method
from reproduce.cells import Cell, TrainingCell
from reproduce.data import catalogue
from reproduce.scales import small
from reproduce.statistics import Estimate, Judgement, judge, paired
from reproduce.tables.content import Block, Column, Finding, Section, Table, count, missing, text
from reproduce.tables.experiments import Network
from reproduce.tables.results import Results
from reproduce.tables.sheets import (
    DIFFERENCES,
    Sheet,
    accuracy_entry,
    counted,
    data,
    family_note,
    judged_entries,
    sheets,
)

__all__ = ["ACCUMULATIONS", "cells", "section"]

ACCUMULATIONS = (1, 4, 16)
COMPARED = (methods.BACKPROPAGATION, methods.PETRA)
MODEL, STEM, WIDTH = "revvit_tiny", "patch4", 48
RATE, SAMPLES = 1e-3, 128  # the learning rate at so many samples of an update
WEIGHT_DECAY = 0.05
SCALE = "small"
LAST = "test_accuracy"


def cells(scale: str) -> list[Cell]:
    """Both methods at every k; at the small scale alone."""
    if scale != SCALE:
        return []
    return [_cell(method, k, seed) for k in ACCUMULATIONS for method in COMPARED for seed in small.SEEDS]


def _cell(method: Method, k: int, seed: int = 0) -> TrainingCell:
    samples = small.settings()["batch_size"] * k
    return small.cell(
        MODEL,
        method,
        k,
        seed,
        stem=STEM,
        width=WIDTH,
        optimizer="adamw",
        learning_rate=RATE * math.sqrt(samples / SAMPLES),
        weight_decay=WEIGHT_DECAY,
    )


def section(results: Results) -> Section:
    """The accuracy of both methods by k."""
    blocks: list[Block] = [_introduction()]
    findings: list[Finding] = []
    coverage = []
    found = sheets(results, SCALE, cells(SCALE))
    if not found:
        blocks.append("No transformer has been trained yet.")
    for sheet in found:
        judged = judge(dict(_differences(sheet)))
        blocks.append(_table(sheet, judged))
        coverage.append(f"{sheet.key}: {sheet.progress}")
        words = counted(judged)
        if words:
            findings.append(
                Finding(f"Transformers: {_described()}, {sheet.arithmetic}. PETRA against backpropagation, {words}.")
            )
    return Section("transformers", "Transformers", blocks, findings, "; ".join(coverage) or "not run")


def _introduction() -> str:
    return (
        "A vision transformer of two streams, reversible between patch embedding and head, trained by PETRA and by "
        "backpropagation with the same seeds, data and learning rates. No inner stage buffers its input, so a "
        "reconstruction error can grow over the whole depth."
    )


def _described() -> str:
    cell = _cell(methods.PETRA, 1)
    return (
        f"scale “{cell.scale}”: {catalogue.by_name(cell.dataset).title}, "
        f"{Network(cell.model, cell.stem, cell.width).title}, {cell.stem.removeprefix('patch')}-pixel patches, "
        f"micro-batches of {cell.batch_size}, {count(cell.epochs, 'epoch')}, AdamW, learning rate "
        f"{RATE:g}·√(batch·k/{SAMPLES})"
    )


def _differences(sheet: Sheet) -> Iterator[tuple[int, Estimate | None]]:
    """Accuracy of PETRA less that of backpropagation, by k."""
    for k in ACCUMULATIONS:
        exact, ours = (sheet.group(_cell(method, k)).values(LAST) for method in COMPARED)
        yield k, paired(ours, exact)


def _table(sheet: Sheet, judged: Mapping[int, Judgement]) -> Table:
    columns = [Column("method", numeric=False)]
    for k in ACCUMULATIONS:
        group = f"k = {k}"
        columns += [Column("last epoch, %", group=group), Column("difference", group=group)]
        columns.append(Column("verdict", numeric=False, group=group))
    rows = []
    for method in COMPARED:
        row = [text(method.title)]
        for k in ACCUMULATIONS:
            row.append(accuracy_entry(sheet.group(_cell(method, k))))
            row += judged_entries(judged[k]) if method is methods.PETRA else [missing("reference"), missing("")]
        rows.append(row)
    return Table(
        grouped=True,
        key=f"transformers-{sheet.key}",
        caption=f"Test accuracy of a transformer ({_described()}, {sheet.arithmetic}).",
        columns=columns,
        rows=rows,
        notes=(
            f"Mean ± half the 95 % interval (number of seeds). {DIFFERENCES} Difference: PETRA less backpropagation, "
            "same k.",
            family_note(judged),
        ),
        data=list(data(sheet.group(_cell(method, k)) for k in ACCUMULATIONS for method in COMPARED)),
    )
