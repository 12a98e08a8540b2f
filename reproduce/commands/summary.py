"""The end of a run in a few lines: accuracies by method and k, and loudly whatever is not as it should be.

A larger scale has several recipes on one network: other batch sizes, lengths, warm-ups, learning rates. Their means
would be meaningless, so there is a table for each recipe, under a line that says what is its own. Runs with a probe
train as those without (`reproduce.cells.kinds.ProbedCell`), so their accuracy stands with theirs.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from petra_core import methods
from reproduce.cells import rates
from reproduce.cells.kinds import TrainedCell, TrainingCell
from reproduce.grids.scales import Scale
from reproduce.records.record import State, Status
from reproduce.running.runner import Outcome

#: What a heading says of a recipe, where there are several that differ in it.
IN_WORDS = {
    "dataset": "{}",
    "image_size": "size {}",
    "batch_size": "batch {}",
    "epochs": "epochs {}",
    "warmup_epochs": "warm-up epochs {:g}",
    "drops": "drops after {}",
    "drop_factor": "times {:g}",
    "optimizer": "{}",
    "reference_rate": "learning rate {}",
    "momentum": "momentum {:g}",
    "weight_decay": "weight decay {:g}",
    "augmentation": "{}",
    "loader": "loader {}",
    "precision": "{}",
}


class Line(NamedTuple):
    """A line of a table: what its runs share beside the recipe."""

    network: str
    method: str


#: What is known of a run: its accuracy in percent, or its state where there is none.
Known = float | str
Recipe = dict[Line, dict[int, list[Known]]]  # by line, then by k


def table(outcome: Outcome) -> str:
    """Mean test accuracy in percent after the last epoch: a table a recipe, with networks and methods by k.

    A cell of a table that lacks runs says so: `95.3 (1 of 2)`, or the state of a run if none is done. Cells that are
    measured, not trained, are counted.
    """
    trained: dict[TrainingCell, State] = {}
    for cell, state in outcome.states.items():
        if isinstance(cell, TrainedCell):
            plain = _as_trained(cell)
            if plain not in trained or type(cell) is TrainingCell:
                trained[plain] = state
    recipes: dict[str, Recipe] = {}
    settings: dict[str, dict[str, Any]] = {}
    for plain, state in trained.items():
        own = _settings(plain)
        key = str(own)
        settings[key] = own
        line = Line(f"{plain.model} w{plain.width}", methods.by_name(plain.method).title)
        known: Known = state.result["test_accuracy"] if state.status is Status.DONE else str(state)
        recipes.setdefault(key, {}).setdefault(line, {}).setdefault(plain.accumulation, []).append(known)
    common = {name for name in IN_WORDS if len({str(own[name]) for own in settings.values()}) == 1}
    lines = []
    for key, recipe in sorted(recipes.items()):
        lines += [*_heading(settings[key], common), *_rows(recipe), ""]
    return "\n".join([*lines, *_measured(outcome)]).rstrip("\n")


def shortfalls(scale: Scale, outcome: Outcome) -> list[str]:
    """The cells that do not fulfil what the scale expects of them, each with its accuracy or failure."""
    found = []
    for cell, state in outcome.states.items():
        accuracy = state.result.get("test_accuracy")
        if scale.falls_short(cell, state, accuracy):
            reached = state if accuracy is None else f"{accuracy:.2f} %"
            own = scale.own_targets.get(cell.model) if isinstance(cell, TrainedCell) else None
            found.append(f"{cell.slug}: {reached}" + (f" (expected: above {own:g} %)" if own is not None else ""))
    return found


def _as_trained(cell: TrainedCell) -> TrainingCell:
    """The training cell of the same settings, which trains the same."""
    names = [field.name for field in dataclasses.fields(TrainingCell)]
    return TrainingCell(**{name: getattr(cell, name) for name in names})


def _settings(cell: TrainingCell) -> dict[str, Any]:
    """The recipe: what a heading says, where there are several."""
    values = cell.to_dict() | {"optimizer": cell.optimizer}
    return {name: values[name] for name in IN_WORDS if name in values} | {
        "reference_rate": rates.described(cell.optimizer, rates.reference_of(cell))
    }


def _heading(settings: Mapping[str, Any], common: set[str]) -> list[str]:
    """What tells a recipe from the others; nothing if it is the only one."""
    words = [
        template.format((", ".join(map(str, v)) or "no epoch") if isinstance(v := settings[name], tuple | list) else v)
        for name, template in IN_WORDS.items()
        if name not in common
    ]
    return [f"{', '.join(words)}:"] if words else []


def _rows(recipe: Recipe) -> list[str]:
    columns = sorted({k for by_k in recipe.values() for k in by_k})
    lines = [["network", "method", *(f"k = {k}" for k in columns)]]
    lines += [[*line, *(_entry(recipe[line].get(k, [])) for k in columns)] for line in sorted(recipe)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _entry(runs: Sequence[Known]) -> str:
    accuracies = [known for known in runs if isinstance(known, int | float)]
    if not accuracies:
        return "; ".join(dict.fromkeys(map(str, runs)))
    missing = "" if len(accuracies) == len(runs) else f" ({len(accuracies)} of {len(runs)})"
    return f"{sum(accuracies) / len(accuracies):.1f}{missing}"


def _measured(outcome: Outcome) -> Iterable[str]:
    """A line for each kind of cells that train nothing."""
    kinds = Counter(cell.kind for cell in outcome.states if not isinstance(cell, TrainedCell))
    for kind, count in kinds.items():
        done = sum(state.status is Status.DONE for cell, state in outcome.states.items() if cell.kind == kind)
        yield f"{kind}: {done} of {count} measured"
