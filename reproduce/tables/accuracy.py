"""Test accuracies of all methods, experiment by experiment, with the learning curves behind them.

No table of the paper has this shape: it is where runs are shown that compare all methods at one scale, first of all
the smoke runs on handwritten digits. A scale may say what it expects (`reproduce.scales.Scale.target_accuracy`); a
run that falls short of that is broken, and the report says so before anything else.
"""

from collections.abc import Iterable, Iterator

from petra_core import methods
from reproduce import scales
from reproduce.cells import TrainingCell
from reproduce.scales import Scale
from reproduce.statistics import MARGIN_POINTS, Verdict, verdict
from reproduce.tables import curves
from reproduce.tables.content import (
    MEGABYTE,
    Block,
    Column,
    Entry,
    Finding,
    Section,
    Table,
    Tone,
    count,
    estimate,
    method_name,
    missing,
    number,
    some,
    text,
)
from reproduce.tables.content import verdict as verdict_entry
from reproduce.tables.experiments import Experiment, Key, experiments
from reproduce.tables.results import Results, Run, grid

NOTHING = Finding("No network has been trained yet.", Tone.MISSING)


def falling_short(runs: Iterable[Run[TrainingCell]]) -> list[Run[TrainingCell]]:
    """Runs whose scale expects more of them than they reached."""
    return [
        run
        for run in runs
        if _expected_of(run) and grid(run.cell.scale).falls_short(run.cell, run.state, _reached(run))
    ]


def section(results: Results) -> Section:
    """Every experiment: accuracies as a picture and as a matrix, curves, and folded the cells one by one."""
    found = [e for e in experiments(results.training) if e.begun]
    blocks: list[Block] = [_INTRODUCTION] if found else [NOTHING.text]
    folded: list[Block] = []
    for experiment in found:
        blocks += [*curves.dots(experiment), _matrix(experiment), *curves.lines(experiment)]
        folded.append(_details(experiment))
    findings = [finding for experiment in found for finding in _findings(experiment)]
    return Section(
        "accuracy",
        "Accuracy of the methods",
        blocks,
        findings or [NOTHING],
        folded=folded,
        folded_title="Every cell: learning rate, seeds, verdict, memory",
    )


_INTRODUCTION = (
    "Accuracy on the test set after the last epoch, in percent: mean over the seeds ± half the 95 % interval "
    "(Student's t), and in brackets the number of seeds. With two seeds the interval is wide by nature, since "
    "Student's factor is then 12.7. Differences are to backpropagation on the same network with the same k, over "
    "the seeds that both have; a seed fixes initialisation and order of the data. No stage of a ResNet can be "
    "inverted: there PETRA is DSP, and approximate inputs are delayed gradients."
)


def _findings(experiment: Experiment) -> Iterator[Finding]:
    runs = experiment.runs
    done = sum(run.done for run in runs)
    described = experiment.described[0].upper() + experiment.described[1:]
    seeds = count(len({run.cell.seed for run in runs}), "seed")
    yield Finding(
        f"{described}: {done} of {len(runs)} runs finished, {seeds}.", Tone.PLAIN if done == len(runs) else Tone.MISSING
    )
    low = falling_short(runs)
    judged = [run for run in runs if _expected_of(run) and run.done]
    if low:
        names = some([f"{run.cell.slug}: {f'{_reached(run):.1f} %' if run.done else run.state}" for run in low])
        scale = grid(experiment.scale)
        yield Finding(
            f"{count(len(low), 'run')} at {_ks(scale)} not above {scale.target_accuracy:g} % test accuracy. {names}.",
            Tone.ALERT,
        )
    elif judged:
        scale = grid(experiment.scale)
        worst = min(run.result["test_accuracy"] for run in judged)
        yield Finding(
            f"Every method learns: all {len(judged)} finished runs at {_ks(scale)} are above "
            f"{scale.target_accuracy:g} % test accuracy, the lowest at {worst:.1f} %. At the scale “{scale.name}” "
            "this says that the methods train, and nothing about the paper's accuracies.",
            Tone.GOOD,
        )
    differences = [experiment.difference(key) for key in experiment.groups if key[1] is methods.PETRA]
    verdicts = [verdict(difference) for difference in differences if difference is not None]
    if verdicts:
        counts = ", ".join(f"{v.value} {verdicts.count(v)}" for v in Verdict if v in verdicts)
        yield Finding(
            f"PETRA against backpropagation on the same network, k and seeds, margin {MARGIN_POINTS} points, "
            f"{count(len(verdicts), 'comparison')}: {counts}."
        )


def _expected_of(run: Run[TrainingCell]) -> bool:
    """Whether its scale expects something of the run's accuracy."""
    return run.cell.scale in scales.SCALES and run.cell.accumulation in grid(run.cell.scale).target_accumulations


def _reached(run: Run[TrainingCell]) -> float | None:
    return float(run.result["test_accuracy"]) if run.done else None


def _ks(scale: Scale) -> str:
    return "k = " + " and ".join(map(str, scale.target_accumulations))


def _matrix(experiment: Experiment) -> Table:
    ks = experiment.accumulations
    columns = [Column("network", numeric=False), Column("method", numeric=False)]
    for k in ks:
        columns += [Column("accuracy, %", group=f"k = {k}"), Column("difference", group=f"k = {k}")]
        columns.append(Column("verdict", numeric=False, group=f"k = {k}"))
    body = []
    for network in experiment.networks:
        for method in methods.ALL:
            if any((network, method, k) in experiment.groups for k in ks):
                entries = [entry for k in ks for entry in _accuracy_entries(experiment, (network, method, k))]
                body.append([text(network.title), method_name(method), *entries])
    return Table(
        grouped=True,
        key=f"accuracy-{experiment.key}",
        caption=f"Test accuracy by network, method and k ({experiment.described}).",
        columns=columns,
        rows=body,
        notes=("Difference: to backpropagation on the same network with the same k, points, paired over seeds.",),
        data=list(_data(experiment)),
    )


def _accuracy_entries(experiment: Experiment, key: Key) -> list[Entry]:
    """Accuracy, difference and verdict."""
    group = experiment.groups.get(key)
    accuracy = None if group is None else group.estimate("test_accuracy")
    if group is None or accuracy is None:
        return [
            missing("no cell") if group is None else missing(group.summary, group.unfinished),
            missing(""),
            missing(""),
        ]
    mean = estimate(accuracy, 1, tone=Tone.ALERT if falling_short(group.runs) else Tone.OURS)
    shown = Entry(f"{mean.text} ({accuracy.n})", mean.value, mean.tone, group.unfinished or mean.hint)
    return [shown, *_comparison(experiment, key, 1)]


def _comparison(experiment: Experiment, key: Key, digits: int) -> list[Entry]:
    """Difference to backpropagation, and verdict."""
    if key[1] is methods.BACKPROPAGATION:
        return [missing("reference"), missing("")]
    difference = experiment.difference(key)
    if difference is None:
        return [missing("no shared seed"), missing("")]
    return [estimate(difference, digits, sign=True), verdict_entry(verdict(difference))]


def _details(experiment: Experiment) -> Table:
    columns = [
        Column("network", numeric=False),
        Column("method", numeric=False),
        *(Column(name) for name in ("k", "learning rate", "seeds", "accuracy, %", "best epoch's, %", "difference")),
        Column("verdict", numeric=False),
        Column("peak memory, MB"),
        Column("unfinished", numeric=False),
    ]
    return Table(
        grouped=True,
        key=f"cells-{experiment.key}",
        caption=f"Every cell ({experiment.described}).",
        columns=columns,
        rows=[_detail_row(experiment, key) for key in experiment.groups],
        notes=(
            f"Verdict on the difference to backpropagation: agree if its 95 % interval lies within ±{MARGIN_POINTS} "
            "points, differ if the interval excludes 0 and does not, else cannot tell. Peak memory: largest bytes "
            "held by all stages together, counted by the engine; 1 MB = 10⁶ bytes.",
        ),
        data=list(_data(experiment)),
    )


def _detail_row(experiment: Experiment, key: Key) -> list[Entry]:
    network, method, k = key
    group = experiment.groups[key]
    accuracy, best = group.estimate("test_accuracy"), group.estimate("best_test_accuracy")
    head = [
        text(network.title),
        method_name(method),
        number(k, 0, tone=Tone.PLAIN),
        Entry(f"{group.cell.learning_rate:.4g}", group.cell.learning_rate),
        number(accuracy.n if accuracy else 0, 0, tone=Tone.PLAIN),
    ]
    if accuracy is None or best is None:
        return [*head, *[missing("")] * 5, missing(group.unfinished)]
    peak = max(group.values("peak_bytes").values())
    return [
        *head,
        estimate(accuracy, 2, tone=Tone.ALERT if falling_short(group.runs) else Tone.OURS),
        estimate(best, 2),
        *_comparison(experiment, key, 2),
        number(peak / MEGABYTE, 2),
        missing(group.unfinished),
    ]


def _data(experiment: Experiment) -> Iterator[dict[str, object]]:
    """One line a run: what a reader needs to do the statistics anew."""
    for (network, method, k), group in experiment.groups.items():
        for run in group.runs:
            yield {
                "scale": experiment.scale,
                "dataset": experiment.settings["dataset"],
                "model": network.model,
                "width": network.width,
                "method": method.name,
                "k": k,
                "seed": run.cell.seed,
                "state": str(run.state),
                "test_accuracy": run.result.get("test_accuracy", ""),
                "best_test_accuracy": run.result.get("best_test_accuracy", ""),
                "peak_bytes": run.result.get("peak_bytes", ""),
                "cell": run.cell.name,
            }
