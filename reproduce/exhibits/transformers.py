"""Beyond the paper: PETRA on transformers, of images and of text, beside backpropagation.

The paper trains residual networks alone. A reversible transformer (`petra_core.models`) is reversible between embedding
and head without any further change, so nothing is buffered inside, and the whole network is one unbroken run of
reversible stages: the hardest case for reconstruction with newer weights (`reproduce.exhibits.transformer_errors`). At
the small scale RevViT has the depth of the published Tiny, and so its delays, at a quarter of the width; RevRoBERTa
learns to find masked bytes of a text (`reproduce.data.text`).

Transformers are trained by AdamW. Its learning rate grows with the square root of the samples of an update (Malladi et
al. 2022), not in proportion to them as SGD's does.

The text is another one in every version of Python, so runs on different texts never stand in one table.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping

from petra_core import methods
from petra_core.methods import Method
from reproduce.cells import catalogue
from reproduce.exhibits import transformer_errors
from reproduce.exhibits.experiments import Network
from reproduce.exhibits.sheets import (
    DIFFERENCES,
    Sheet,
    accuracy_entry,
    data,
    family_note,
    judged_entries,
    sheets,
    told,
)
from reproduce.grids.plans.transformers import ACCUMULATIONS, STUDIES, Study, cells
from reproduce.records.results import Results
from reproduce.show.content import Block, Column, Entry, Finding, Section, Table, Tone, missing, number, text
from reproduce.show.statistics import Estimate, Judgement, judge, paired
from reproduce.words import count

__all__ = ["ACCUMULATIONS", "STUDIES", "Study", "cells", "section"]

LAST, BITS = "test_accuracy", "test_bits_per_byte"


def described(study: Study) -> str:
    """The settings that matter to a reader, in words."""
    cell = study.cell(methods.PETRA, 1)
    known = catalogue.by_name(cell.dataset)
    sized = known.sized(cell.image_size) if known.text else f"{cell.stem.removeprefix('patch')}-pixel patches"
    return (
        f"scale “{cell.scale}”: {known.title}, {Network(cell.model, cell.stem, cell.width).title}, {sized}, "
        f"micro-batches of {cell.batch_size}, {count(cell.epochs, 'epoch')}, AdamW, learning rate "
        f"{study.rate:g}·√(batch·k/{study.samples})"
    )


def section(results: Results) -> Section:
    """The accuracy of the methods by k, study by study, and the errors of rebuilt inputs by depth."""
    blocks: list[Block] = []
    findings: list[Finding] = []
    coverage = []
    for study in STUDIES:
        for own in _by_text(results) if study.of_text else [results]:
            for sheet in sheets(own, study.scale, study.cells):
                judged = judge(dict(_differences(study, sheet)))
                blocks.append(_table(study, sheet, judged))
                coverage.append(f"{study.key}: {sheet.progress}")
                words = told(judged)
                if words:
                    findings.append(
                        Finding(
                            f"Transformers: {described(study)}, {sheet.arithmetic}{_text_of(sheet)}. Against "
                            f"backpropagation, {words}."
                        )
                    )
    if not blocks:
        blocks.append("No transformer has been trained yet.")
    errors = transformer_errors.blocks(results)
    blocks = [_introduction(), *blocks, *errors.blocks]
    return Section(
        "transformers",
        "Transformers",
        blocks,
        [*findings, *errors.findings],
        "; ".join([*coverage, *errors.coverage]) or "not run",
    )


def _introduction() -> str:
    return (
        "Transformers of two streams, reversible between embedding and head, trained by PETRA and by backpropagation "
        "with the same seeds, data and learning rates: RevViT on images, RevRoBERTa on text, of which it has to find "
        "masked bytes. No inner stage buffers its input, so a reconstruction error can grow over the whole depth."
    )


# --- texts


def _by_text(results: Results) -> list[Results]:
    """The runs on each text by themselves; those that are not finished, whose text is not known, with every one."""
    texts = sorted({run.text for run in results.runs} - {""})
    return [
        dataclasses.replace(results, runs=tuple(run for run in results.runs if run.text in (name, "")))
        for name in texts or [""]
    ]


def _text_of(sheet: Sheet) -> str:
    """Which text it is, in words; empty for images, and while no run is finished."""
    known = [run for run in sheet.runs if run.text]
    if not known:
        return ""
    pythons = sorted({str(environment["python"]) for run in known for environment in run.environments})
    return f", the text of Python {', '.join(pythons)} (SHA-256 {known[0].text[:12]}…)"


# --- the tables


def _differences(study: Study, sheet: Sheet) -> Iterator[tuple[tuple[Method, int], Estimate | None]]:
    """Accuracy of each method less that of backpropagation, by method and k."""
    exact, *others = study.compared
    for method in others:
        for k in study.accumulations:
            ours, reference = (sheet.group(study.cell(m, k)).values(LAST) for m in (method, exact))
            yield (method, k), paired(ours, reference)


def _table(study: Study, sheet: Sheet, judged: Mapping[tuple[Method, int], Judgement]) -> Table:
    columns = [Column("method", numeric=False)]
    for k in study.accumulations:
        group = f"k = {k}"
        columns += [Column("last epoch, %", group=group), Column("difference", group=group)]
        columns.append(Column("verdict", numeric=False, group=group))
        columns += [Column("bits per byte", group=group)] if study.of_text else []
    rows = [_row(study, sheet, method, judged) for method in study.compared]
    what = "Masked bytes that are found" if study.of_text else "Test accuracy of a transformer"
    return Table(
        grouped=True,
        key=f"{study.key}{sheet.key.removeprefix(study.scale)}{_text_key(sheet) if study.of_text else ''}",
        caption=f"{what} ({described(study)}, {sheet.arithmetic}{_text_of(sheet)}).",
        columns=columns,
        rows=[*_known_predictors(study, sheet), *rows],
        notes=(
            f"Mean ± half the 95 % interval (number of seeds). {DIFFERENCES} Difference: the method less "
            "backpropagation, same k.",
            *_notes_on_text(study),
            family_note(judged),
        ),
        data=list(_data(study, sheet)),
    )


def _row(study: Study, sheet: Sheet, method: Method, judged: Mapping[tuple[Method, int], Judgement]) -> list[Entry]:
    row = [text(method.title)]
    for k in study.accumulations:
        group = sheet.group(study.cell(method, k))
        row.append(accuracy_entry(group))
        row += judged_entries(judged[method, k]) if (method, k) in judged else [missing("reference"), missing("")]
        row += [accuracy_entry(group, BITS)] if study.of_text else []
    return row


def _known_predictors(study: Study, sheet: Sheet) -> Iterator[list[Entry]]:
    """What is reached without looking at a byte's neighbours, computed when a run was made."""
    unigrams = [run.result["data"]["unigram"] for run in sheet.runs if "unigram" in run.result.get("data", {})]
    if not study.of_text or not unigrams:
        return
    values = catalogue.PYDOC.num_classes
    for title, accuracy, bits in (
        ("A guess", 100 / values, math.log2(values)),
        ("Frequencies of bytes", unigrams[0]["accuracy"], unigrams[0]["bits_per_byte"]),
    ):
        own = [number(accuracy, 2, tone=Tone.PLAIN), missing(""), missing(""), number(bits, 2, tone=Tone.PLAIN)]
        yield [text(title), *own * len(study.accumulations)]


def _notes_on_text(study: Study) -> Iterator[str]:
    if study.of_text:
        yield (
            "Percent of the masked bytes of the validation text, masked alike for all runs, and the bits that they "
            "would take: the mean of log₂ of 1 over the probability given to each. One masked byte in ten is shown as "
            "it is, which a network can learn to copy. Frequencies of bytes: the most frequent one of the training "
            "text always, and the bits of all of them, on the same masked bytes. The text comes with Python, and "
            "differs between its versions."
        )


def _text_key(sheet: Sheet) -> str:
    return "".join(f"-{name[:6]}" for name in dict.fromkeys(run.text for run in sheet.runs) if name)


def _data(study: Study, sheet: Sheet) -> Iterator[dict[str, object]]:
    groups = [sheet.group(study.cell(method, k)) for k in study.accumulations for method in study.compared]
    if not study.of_text:
        yield from data(groups)
        return
    bits = {run.cell.name: run.result.get(BITS, "") for group in groups for run in group.runs}
    hashes = {run.cell.name: run.text for group in groups for run in group.runs}
    for line in data(groups):
        yield line | {BITS: bits[str(line["cell"])], "text_sha256": hashes[str(line["cell"])]}
