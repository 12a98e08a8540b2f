"""Beyond the paper: how far the inputs that a reversible transformer rebuilds are from the true ones, by depth.

A transformer has two residual functions a block and LayerNorm in front of both, where a RevNet has one and BatchNorm
inside, so what holds for chains of convolutions (`reproduce.exhibits.depth`) need not hold here. RevViT is trained by
PETRA with 4 to 48 blocks, and some micro-batches are followed (`reproduce.measures.reconstruction`), in two
arithmetics: float32, and bfloat16 by autocast, where the functions are computed in bfloat16 and the streams between
them stay float32. What it would mean to hold the streams, too, in bfloat16 is evaluated aside.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from reproduce.cells.kinds import Cell, ReconstructionCell
from reproduce.exhibits.depth import BOTTOM
from reproduce.exhibits.gradients import Profile, mean_of, over_seeds
from reproduce.grids import small
from reproduce.grids.plans.transformer_errors import MODELS, PRECISIONS, SCALE, K, cells, planned
from reproduce.records.results import Results, Run
from reproduce.show.content import Block, Column, Entry, Finding, Table, Tone, missing, number, relative_error
from reproduce.show.statistics import Estimate
from reproduce.words import count

__all__ = ["Errors", "blocks", "cells"]

#: A column: its title, its group, the precision of the run, the measure.
COLUMNS = (
    ("rounding", "float32", "float32", "rounding/input"),
    ("training", "float32", "float32", "training/input"),
    ("rounding", "bfloat16 by autocast", "bf16", "rounding/input"),
    ("training", "bfloat16 by autocast", "bf16", "training/input"),
    ("rounding", "bfloat16 streams", "float32", "rounding_bfloat16/input"),
)


class Errors(NamedTuple):
    """What is to be said of them in the section of transformers."""

    blocks: Sequence[Block]
    findings: Sequence[Finding]
    coverage: Sequence[str]


def blocks(results: Results) -> Errors:
    """The table with its finding; without runs, that there are none."""
    found = {(model, precision): _profiles(results, model, precision) for model in MODELS for precision in PRECISIONS}
    if not any(found.values()):
        return Errors(["The reconstruction error of transformers has not been measured yet."], [], [])
    done = sum(len(own) for own in found.values())
    coverage = f"reconstruction with depth: {done} of {count(len(cells(SCALE)), 'run')} measured"
    return Errors([_table(results, found)], list(_findings(found)), [coverage])


Found = Mapping[tuple[str, str], Mapping[int, Profile]]


def _runs(results: Results, model: str, precision: str) -> Iterator[Run[Cell]]:
    cells = {planned(model, precision, seed) for seed in small.SEEDS}
    return (run for run in results.runs if run.cell in cells)


def _profiles(results: Results, model: str, precision: str) -> dict[int, Profile]:
    """By seed the mean errors of the micro-batches that were followed, of finished runs."""
    finished = {run.cell: mean_of(run.metrics) for run in _runs(results, model, precision) if run.done}
    return {cell.seed: own for cell, own in finished.items() if isinstance(cell, ReconstructionCell) and own}


def _bottom(found: Found, model: str, precision: str, key: str) -> Estimate | None:
    """The error of the lowest stage that rebuilds its input."""
    return over_seeds({seed: own[key][BOTTOM] for seed, own in found[model, precision].items() if key in own})


def _findings(found: Found) -> Iterator[Finding]:
    words = []
    for title, group, precision, key in COLUMNS:
        known = [(m, e) for m in MODELS if (e := _bottom(found, m, precision, key)) is not None]
        if known:
            errors = ", ".join(f"{relative_error(e).text} at {MODELS[m]}" for m, e in known)
            words.append(f"{title}, {group}: {errors}")
    by_depth = "; ".join(words)
    yield Finding(f"Transformers: relative error of the input that the lowest block rebuilds, by blocks. {by_depth}.")


def _table(results: Results, found: Found) -> Table:
    cell = planned(next(iter(MODELS)), PRECISIONS[0])
    return Table(
        key="transformers-errors",
        caption=(
            "Relative error of the input that the lowest block rebuilds, by depth "
            f"(scale “{SCALE}”: RevViT-Micro, width {cell.width}, digits, micro-batches of {cell.batch_size}, "
            f"{count(cell.epochs, 'epoch')}, PETRA with "
            f"k = {K}, AdamW): mean over the micro-batches that were followed, then over the seeds ± half the 95 % "
            "interval (number of seeds)."
        ),
        columns=[Column("blocks"), Column("J"), *(Column(title, group=group) for title, group, _, _ in COLUMNS)],
        rows=[_row(found, model) for model in MODELS],
        notes=(
            "Norm of rebuilt less true over that of the true, of a whole micro-batch. Rounding: the forward inverted "
            "with its own weights. Training: the engine's own inversion, with the weights of 2(J-2) ticks later. "
            "Autocast: the functions in bfloat16, the streams between them in float32. Bfloat16 streams: functions in "
            "float32, and streams rounded to bfloat16 between blocks, which the engine does not have. The download has "
            "every stage.",
        ),
        data=list(_data(results)),
    )


def _row(found: Found, model: str) -> list[Entry]:
    row = [number(MODELS[model], 0, tone=Tone.PLAIN), number(MODELS[model] + 2, 0, tone=Tone.PLAIN)]
    for _, _, precision, key in COLUMNS:
        error = _bottom(found, model, precision, key)
        if error is None:
            row.append(missing("not run"))
        else:
            shown = relative_error(error)
            row.append(Entry(f"{shown.text} ({error.n})", shown.value, shown.tone, shown.hint))
    return row


def _data(results: Results) -> Iterator[dict[str, object]]:
    """One line a finished run and stage that rebuilds its input."""
    for model in MODELS:
        for precision in PRECISIONS:
            for run in _runs(results, model, precision):
                profile = mean_of(run.metrics) if run.done else {}
                for stage in range(BOTTOM, MODELS[model] + 1) if profile else ():
                    yield {
                        "blocks": MODELS[model],
                        "precision": precision,
                        "seed": run.cell.to_dict()["seed"],
                        "stage": stage,
                        **{key: of_stages[stage] for key, of_stages in profile.items()},
                        "test_accuracy": run.result["test_accuracy"],
                        "cell": run.cell.name,
                    }
