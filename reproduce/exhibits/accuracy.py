"""Test accuracies of all methods in one setting, scale by scale, with the learning curves behind them.

The paper compares PETRA with backpropagation only; its reviewers asked for the other asynchronous methods. Here are all
of them, on the same network with the same k and seeds, and beside the differences to backpropagation those of PETRA to
each rival. Runs made by hand are shown likewise, recipe by recipe. A scale may say what it expects
(`reproduce.grids.scales.Scale.target_accuracy`); a run that falls short of that is broken, and the report says so
before anything else.
"""

from collections.abc import Iterable, Iterator, Mapping

from petra_core import methods
from reproduce.cells.kinds import TrainingCell
from reproduce.exhibits import curves
from reproduce.exhibits.experiments import Experiment, Key, experiments
from reproduce.exhibits.sheets import data, family_note, judged_entries, settings_key, told
from reproduce.grids import scales
from reproduce.grids.plans.accuracy import COMPARED, cells
from reproduce.grids.scales import Scale
from reproduce.records.results import Results, Run
from reproduce.show.content import (
    MEGABYTE,
    Block,
    Column,
    Entry,
    Finding,
    Section,
    Table,
    Tone,
    estimate,
    method_name,
    missing,
    number,
    some,
    text,
)
from reproduce.show.statistics import MARGIN_POINTS, Judgement, judge
from reproduce.words import count

#: Methods that work on delayed gradients and are not PETRA.
RIVALS = tuple(method for method in COMPARED if method.pipelined and method is not methods.PETRA)

NOTHING = Finding("No network has been trained yet.", Tone.MISSING)


def shown(results: Results) -> list[Run[TrainingCell]]:
    """The runs of the cells above, over whatever seeds, and those made by hand; the rest is other exhibits'."""
    ours = {settings_key(cell) for scale in scales.SCALES for cell in cells(scale)}
    return [run for run in results.training if run.cell.scale not in scales.SCALES or settings_key(run.cell) in ours]


def falling_short(runs: Iterable[Run[TrainingCell]]) -> list[Run[TrainingCell]]:
    """Runs whose scale expects more of them than they reached."""
    return [
        run
        for run in runs
        if _expected_of(run) and scales.by_name(run.cell.scale).falls_short(run.cell, run.state, _reached(run))
    ]


def section(results: Results) -> Section:
    """Every experiment: accuracies as a picture and as a matrix, curves, and folded the cells one by one."""
    found = [e for e in experiments(shown(results)) if e.begun]
    blocks: list[Block] = [_INTRODUCTION] if found else [NOTHING.text]
    folded: list[Block] = []
    for experiment in found:
        judged = experiment.judged()
        blocks += [*curves.dots(experiment), _matrix(experiment, judged), *_rivals(experiment)]
        blocks += curves.lines(experiment)
        folded.append(_details(experiment, judged))
    findings = [finding for experiment in found for finding in _findings(experiment)]
    return Section(
        "accuracy",
        "Accuracy of the methods",
        blocks,
        findings or [NOTHING],
        "; ".join(_progress(experiment) for experiment in found) or "nothing trained yet",
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


def _progress(experiment: Experiment) -> str:
    runs = experiment.runs
    return f"{experiment.scale}, {experiment.settings['dataset']}: {sum(r.done for r in runs)} of {len(runs)} runs"


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
        scale = scales.by_name(experiment.scale)
        yield Finding(
            f"{count(len(low), 'run')} at {_ks(scale)} not above {scale.target_accuracy:g} % test accuracy. {names}.",
            Tone.ALERT,
        )
    elif judged:
        scale = scales.by_name(experiment.scale)
        worst = min(run.result["test_accuracy"] for run in judged)
        yield Finding(
            f"Every method learns: all {len(judged)} finished runs at {_ks(scale)} are above "
            f"{scale.target_accuracy:g} % test accuracy, the lowest at {worst:.1f} %. At the scale “{scale.name}” "
            "this says that the methods train, and nothing about the paper's accuracies.",
            Tone.GOOD,
        )
    differences = experiment.judged()
    verdicts = {
        method: words
        for method in (*RIVALS, methods.PETRA)
        if (words := told({key: judgement for key, judgement in differences.items() if key[1] is method}))
    }
    against = f"against backpropagation on the same network, k and seeds, margin {MARGIN_POINTS} points"
    rivals = [f"{method.title}, {words}" for method, words in verdicts.items() if method is not methods.PETRA]
    if rivals:
        yield Finding(f"Rivals {against}. {'; '.join(rivals)}.")
    if methods.PETRA in verdicts:
        yield Finding(f"PETRA {against}, {verdicts[methods.PETRA]}.")


def _expected_of(run: Run[TrainingCell]) -> bool:
    """Whether its scale expects something of the run's accuracy."""
    return run.cell.scale in scales.SCALES and scales.by_name(run.cell.scale).expects(run.cell)


def _reached(run: Run[TrainingCell]) -> float | None:
    return float(run.result["test_accuracy"]) if run.done else None


def _ks(scale: Scale) -> str:
    return "k = " + " and ".join(map(str, scale.target_accumulations))


def _matrix(experiment: Experiment, judged: Mapping[Key, Judgement]) -> Table:
    ks = experiment.accumulations
    columns = [Column("network", numeric=False), Column("method", numeric=False)]
    for k in ks:
        columns += [Column("accuracy, %", group=f"k = {k}"), Column("difference", group=f"k = {k}")]
        columns.append(Column("verdict", numeric=False, group=f"k = {k}"))
    body = []
    for network in experiment.networks:
        for method in methods.KNOWN:
            if any((network, method, k) in experiment.groups for k in ks):
                entries = [entry for k in ks for entry in _accuracy_entries(experiment, (network, method, k), judged)]
                body.append([text(network.title), method_name(method), *entries])
    return Table(
        grouped=True,
        key=f"accuracy-{experiment.key}",
        caption=f"Test accuracy by network, method and k ({experiment.described}).",
        columns=columns,
        rows=body,
        notes=(
            "Difference: to backpropagation on the same network with the same k, points, paired over seeds.",
            family_note(judged),
        ),
        data=list(data(experiment.groups.values())),
    )


def _accuracy_entries(experiment: Experiment, key: Key, judged: Mapping[Key, Judgement]) -> list[Entry]:
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
    entry = Entry(f"{mean.text} ({accuracy.n})", mean.value, mean.tone, group.unfinished or mean.hint)
    return [entry, *_comparison(judged.get(key), 1)]


def _comparison(judgement: Judgement | None, digits: int) -> list[Entry]:
    """Difference to backpropagation, and verdict."""
    if judgement is None:
        return [missing("reference"), missing("")]
    return judged_entries(judgement, digits=digits)


def _rivals(experiment: Experiment) -> Iterator[Table]:
    """PETRA less each of its rivals, if there are any."""
    petra, ks = methods.PETRA, experiment.accumulations
    judged = judge(
        {
            (network, rival, k): experiment.difference((network, petra, k), to=rival)
            for network in experiment.networks
            for rival in RIVALS
            for k in ks
        }
    )
    if all(judgement.difference is None for judgement in judged.values()):
        return
    columns = [Column("network", numeric=False), Column("rival", numeric=False)]
    for k in ks:
        columns += [Column("PETRA less it", group=f"k = {k}"), Column("verdict", numeric=False, group=f"k = {k}")]
    yield Table(
        grouped=True,
        key=f"rivals-{experiment.key}",
        caption=f"PETRA less each asynchronous rival, points of accuracy ({experiment.described}).",
        columns=columns,
        rows=[
            [
                text(network.title),
                method_name(rival),
                *(entry for k in ks for entry in judged_entries(judged[network, rival, k], digits=1)),
            ]
            for network in experiment.networks
            for rival in RIVALS
        ],
        notes=("Paired over seeds, same network and k.", family_note(judged)),
    )


def _details(experiment: Experiment, judged: Mapping[Key, Judgement]) -> Table:
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
        rows=[_detail_row(experiment, key, judged) for key in experiment.groups],
        notes=(
            f"Verdict on the difference to backpropagation: agree if its 95 % interval lies within ±{MARGIN_POINTS} "
            "points, differ if the interval excludes 0 and does not, else cannot tell. Peak memory: the most "
            "bytes that a stage held at one moment, counted by the engine, summed over the stages; 1 MB = 10⁶ bytes.",
        ),
        data=list(data(experiment.groups.values())),
    )


def _detail_row(experiment: Experiment, key: Key, judged: Mapping[Key, Judgement]) -> list[Entry]:
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
        *_comparison(judged.get(key), 2),
        number(peak / MEGABYTE, 2),
        missing(group.unfinished),
    ]
