"""Summarize the mean accuracies at the end of a run, by method and k.

A larger scale has several recipes for one network: batch sizes, lengths, warm-ups, learning rates. Their mean would be
meaningless, so each recipe has a separate table, under a line with the settings that distinguish it. Runs with a probe
train as those without (`reproduce.cells.kinds.ProbedCell`), so their accuracies are in the same table.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from petra_core import methods
from reproduce.cells import rates
from reproduce.cells.kinds import Cell, ForwardGradientCell, TrainedCell, TrainingCell
from reproduce.cells.setting import settings_of
from reproduce.records.run import State, Status

#: Settings that the rows and columns of a table contain, or that follow from them. The others are the recipe.
IN_TABLE = ("model", "stem", "width", "method", "accumulation", "seed", "learning_rate")
RECIPE = [name for name in settings_of(TrainingCell) if name not in IN_TABLE]


def table(states: Mapping[Cell, State]) -> str:
    """Return the mean test accuracies in percent after the last epoch: one table per recipe, networks and methods by k.

    An entry with missing runs shows how many are done, as in `95.3 (1 of 2)`, or the states of the runs if none is.
    Measured cells are only counted, as are those of forward gradients, which differ in more than method and k.
    """
    trained: dict[TrainingCell, State] = {}
    for cell, state in states.items():
        if _by_method(cell):
            plain = cell.converted(TrainingCell)
            if plain not in trained or type(cell) is TrainingCell:
                trained[plain] = state
    recipes: dict[tuple[str, ...], dict[tuple[str, str], dict[int, list[State]]]] = {}
    for plain, state in trained.items():
        row = f"{plain.model} w{plain.width}", methods.by_name(plain.method).title
        rows = recipes.setdefault(_recipe(plain), {})
        rows.setdefault(row, {}).setdefault(plain.accumulation, []).append(state)
    lines: list[str] = []
    for recipe, rows in sorted(recipes.items()):
        differing = [text for place, text in enumerate(recipe) if len({other[place] for other in recipes}) > 1]
        lines += [*([f"{', '.join(differing)}:"] if differing else []), *_lines(rows), ""]
    for kind, count in Counter(cell.kind for cell in states if not _by_method(cell)).items():
        done = sum(state.status is Status.DONE for cell, state in states.items() if cell.kind == kind)
        lines.append(f"{kind}: {done} of {count} measured")
    return "\n".join(lines).rstrip("\n")


def _by_method(cell: Cell) -> bool:
    return isinstance(cell, TrainedCell) and not isinstance(cell, ForwardGradientCell)


def _recipe(cell: TrainingCell) -> tuple[str, ...]:
    values = {name: getattr(cell, name) for name in RECIPE}
    values["drops"] = ", ".join(map(str, cell.drops)) or "none"
    values["stages"] = ", ".join(map(str, cell.stages)) or "one block each"
    values["learning_rate"] = rates.describe_rule(cell.optimizer, rates.reference_of(cell))
    return tuple(f"{name.replace('_', ' ')} {value}" for name, value in values.items())


def _lines(rows: Mapping[tuple[str, str], Mapping[int, Sequence[State]]]) -> list[str]:
    columns = sorted({k for by_k in rows.values() for k in by_k})
    lines = [["network", "method", *(f"k = {k}" for k in columns)]]
    lines += [[*row, *(_entry(rows[row].get(k, [])) for k in columns)] for row in sorted(rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _entry(runs: Sequence[State]) -> str:
    accuracies = [state.result["test_accuracy"] for state in runs if state.status is Status.DONE]
    if not accuracies:
        return "; ".join(dict.fromkeys(map(str, runs)))
    missing = "" if len(accuracies) == len(runs) else f" ({len(accuracies)} of {len(runs)})"
    return f"{sum(accuracies) / len(accuracies):.1f}{missing}"
