"""The end of a run in a few lines: accuracies by method and k, and loudly whatever is not as it should be.

A larger scale has several experiments on one network: other batch sizes, lengths, warm-ups, learning rates. Their means
would be meaningless, so there is a table for each (`reproduce.exhibits.experiments`), under a line that says what is
its own. Runs with a probe train as those without (`reproduce.cells.kinds.ProbedCell`), so their accuracy stands with
theirs.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reproduce.cells.kinds import TrainedCell, TrainingCell
from reproduce.grids.scales import Scale
from reproduce.records.record import Status
from reproduce.running.runner import Outcome

if TYPE_CHECKING:
    from reproduce.exhibits.experiments import Experiment, Group

#: What a heading says of an experiment, where there are several that differ in it.
TOLD = {
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


def table(outcome: Outcome) -> str:
    """Mean test accuracy in percent after the last epoch: a table an experiment, with networks and methods by k.

    A cell of a table that lacks runs says so: `95.3 (1 of 2)`, or the state of a run if none is done. Cells that are
    measured, not trained, are counted.
    """
    from reproduce.exhibits.experiments import experiments  # scipy takes a second to import
    from reproduce.records.results import Run

    runs = {}
    for cell, state in outcome.states.items():
        if isinstance(cell, TrainedCell):
            trained = _as_trained(cell)
            if trained not in runs or type(cell) is TrainingCell:
                runs[trained] = Run(trained, state, dict(state.result), (), (), (), {})
    found = experiments(runs.values())
    common = _common([_settings(experiment) for experiment in found])
    lines = [line for experiment in found for line in (*_heading(experiment, common), *_rows(experiment), "")]
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


def _settings(experiment: "Experiment") -> dict[str, Any]:
    return {**experiment.settings, "optimizer": experiment.optimizer}


def _common(settings: Sequence[Mapping[str, Any]]) -> set[str]:
    """Names of the settings in which all experiments agree."""
    return {name for name in TOLD if len({str(values[name]) for values in settings}) == 1}


def _heading(experiment: "Experiment", common: set[str]) -> list[str]:
    """What tells an experiment from the others; nothing if it is the only one."""
    settings = _settings(experiment) | {"reference_rate": experiment.rate}
    told = [(name, settings[name]) for name in TOLD if name not in common]
    words = [
        TOLD[name].format((", ".join(map(str, v)) or "no epoch") if isinstance(v, tuple | list) else v)
        for name, v in told
    ]
    return [f"{', '.join(words)}:"] if words else []


def _rows(experiment: "Experiment") -> list[str]:
    columns = experiment.accumulations
    lines = [["network", "method", *(f"k = {k}" for k in columns)]]
    rows = dict.fromkeys((network, method) for network, method, _ in experiment.groups)
    for network, method in rows:
        groups = (experiment.groups.get((network, method, k)) for k in columns)
        lines.append([f"{network.model} w{network.width}", method.title, *(_entry(group) for group in groups)])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _entry(group: "Group | None") -> str:
    if group is None:
        return ""
    accuracies = group.values("test_accuracy").values()
    if not accuracies:
        return group.summary
    missing = "" if len(accuracies) == len(group.runs) else f" ({len(accuracies)} of {len(group.runs)})"
    return f"{sum(accuracies) / len(accuracies):.1f}{missing}"


def _measured(outcome: Outcome) -> Iterable[str]:
    """A line for each kind of cells that train nothing."""
    kinds = Counter(cell.kind for cell in outcome.states if not isinstance(cell, TrainedCell))
    for kind, count in kinds.items():
        done = sum(state.status is Status.DONE for cell, state in outcome.states.items() if cell.kind == kind)
        yield f"{kind}: {done} of {count} measured"
