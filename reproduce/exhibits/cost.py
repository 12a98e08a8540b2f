"""Show the cost of the runs: hours of CPU cores and GPUs by exhibit, failed runs, and settings tried by method."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from petra_core import methods
from reproduce.cells.kinds import FORWARD_GRADIENT, TrainedCell
from reproduce.exhibits._exhibit import Sentence, Shown, all_exhibits, declare, run_sets
from reproduce.grids.plans import PLANS
from reproduce.presentation.tables import amount, number, table, words
from reproduce.records.frames import Frames, settings_key
from reproduce.records.run import Run, Status
from reproduce.text import conjunction

HOUR = 3600


@dataclass(frozen=True)
class Cost:
    """Cost of some runs.

    Attributes:
        core_hours: Hours times threads of runs on CPUs.
        gpu_hours: Hours of GPUs.
        states: Number of runs by status.

    """

    core_hours: float
    gpu_hours: float
    states: Counter[Status]


def cost_of(runs: Iterable[Run[Any]]) -> Cost:
    """Add up the cost of runs."""
    cores = gpus = 0.0
    states: Counter[Status] = Counter()
    for run in runs:
        states[run.state.status] += 1
        if not run.environments:
            continue
        environment = run.environments[-1]
        if environment.get("device", "cpu") == "cpu":
            cores += seconds_of(run) * environment.get("threads", 1) / HOUR
        else:
            gpus += seconds_of(run) / environment.get("sharing", 1) / HOUR
    return Cost(cores, gpus, states)


def seconds_of(run: Run[Any]) -> float:
    """Return the recorded seconds of a run."""
    epochs = sum(line.get("train_seconds", 0.0) + line.get("evaluation_seconds", 0.0) for line in run.metrics)
    return float(epochs or run.result.get("wall_seconds") or 0.0)


def whole(frames: Frames) -> Iterator[Shown]:
    """Yield the hours in total and by exhibit, and the settings tried by method."""
    begun = [run for run in frames.results.runs if run.state.status is not Status.NOT_RUN]
    total = cost_of(begun)
    reasons = Counter(run.state.reason for run in begun if run.state.status is Status.FAILED)
    failed = conjunction([f"{times} {reason}" for reason, times in reasons.items()])
    ended = f"{total.states[Status.FAILED]} failed{f' ({failed})' * bool(failed)}"
    yield Sentence(
        f"All runs took {total.core_hours:,.0f} core-hours and {total.gpu_hours:,.1f} GPU-hours: "
        f"{total.states[Status.DONE]:,} finished, {ended} and {total.states[Status.PARTIAL]} were abandoned.",
        known=bool(begun),
    )
    cells = {
        plan: {row["cell"] for run_set in run_sets(frames, plan) for row in run_set.rows.values()} for plan in PLANS
    }
    titles = {exhibit.key: exhibit.title.partition(":")[0] for exhibit in all_exhibits()}
    by_exhibit = {plan: [run for run in begun if run.cell.name in names] for plan, names in cells.items()}
    yield table(
        key="cost",
        caption="Hours and runs by exhibit; an exhibit that shares its runs with others has them, too.",
        rows=[*((plan, cost_of(runs)) for plan, runs in by_exhibit.items() if runs), ("all runs", total)],
        fields=[
            words("exhibit", lambda row: titles.get(row[0], row[0])),
            amount("core-hours", lambda row: row[1].core_hours, 1),
            amount("GPU-hours", lambda row: row[1].gpu_hours, 2),
            number("finished", lambda row: row[1].states[Status.DONE]),
            number("failed", lambda row: row[1].states[Status.FAILED]),
        ],
    )
    trained: list[Run[Any]] = [run for run in begun if isinstance(run.cell, TrainedCell)]
    names = {method.name: method.title for method in methods.ALL} | {FORWARD_GRADIENT: "Forward gradients"}
    by_method = {name: [run for run in trained if run.cell.method == name] for name in names}
    yield table(
        key="cost-settings",
        caption="Settings tried by method in trainings: configurations that differ in more than the seed.",
        rows=[(names[name], runs) for name, runs in by_method.items() if runs],
        fields=[
            words("method", lambda row: row[0]),
            number("settings", lambda row: len({settings_key(run.cell) for run in row[1]})),
            number("learning rates", lambda row: len({run.cell.learning_rate for run in row[1]})),
            number("runs", lambda row: len(row[1])),
            amount("core-hours", lambda row: cost_of(row[1]).core_hours, 1),
            amount("GPU-hours", lambda row: cost_of(row[1]).gpu_hours, 2),
        ],
        notes=["Settings were chosen and compared by test accuracy; there is no validation split."],
    )


EXHIBIT = declare("cost", whole=whole)
