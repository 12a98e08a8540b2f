"""Beyond the paper: accuracy against the length of the training, PETRA and backpropagation.

The paper trains for 300 epochs and reports a small gap; whoever tries PETRA for a few epochs finds a large one. Is it a
gap in what the method reaches, or in how soon? The same network is trained for several lengths, each with a schedule of
its own (the warm-up stays, the drops come at the same fractions of the training), and the gap is shown against the
length, with its change since the shortest.
"""

from collections.abc import Iterator, Mapping

from petra_core import methods
from petra_core.methods import Method
from reproduce.exhibits.sheets import (
    DIFFERENCES,
    Sheet,
    accuracy_entry,
    data,
    described,
    family_note,
    judged_entries,
    sheets,
)
from reproduce.grids.plans.length import ACCUMULATION, COMPARED, LENGTHS, cells, planned
from reproduce.records.results import Results
from reproduce.show import sweep_plots
from reproduce.show.content import Block, Column, Figure, Finding, Section, Table, Tone, missing, number
from reproduce.show.content import estimate as estimate_entry
from reproduce.show.statistics import Estimate, Judgement, estimate, judge, paired
from reproduce.words import count

LAST = "test_accuracy"
GAP, CHANGE = "gap", "change"


def section(results: Results) -> Section:
    """For every scale a figure, its numbers, and what they say."""
    blocks: list[Block] = [_INTRODUCTION]
    findings: list[Finding] = []
    coverage = []
    for scale in reversed(LENGTHS):
        found = sheets(results, scale, cells(scale))
        if not found:
            blocks.append(f"Trainings of several lengths have not been run at the scale “{scale}” yet.")
        for sheet in found:
            coverage.append(f"{sheet.key}: {sheet.progress}")
            if any(run.done for run in sheet.runs):
                judged = judge(dict(_differences(sheet)))
                blocks += [_figure(sheet), _table(sheet, judged)]
                findings += _findings(sheet, judged)
    return Section("length", "Training length: does the gap close?", blocks, findings, "; ".join(coverage) or "not run")


_INTRODUCTION = (
    "If delayed gradients and rebuilt inputs cost accuracy mainly while weights move fast, early in a training, then "
    "the gap to backpropagation closes with its length; if not, it stays. Here the same network is trained for several "
    "lengths, each with a whole schedule of its own: the same warm-up in epochs, drops of the learning rate at the "
    f"same fractions. All with k = {ACCUMULATION}, where gradients are the most updates late."
)


def _accuracies(sheet: Sheet, method: Method) -> dict[int, dict[int, float]]:
    """By epochs and seed, percent."""
    return {epochs: sheet.group(planned(sheet.scale, method, epochs)).values(LAST) for epochs in LENGTHS[sheet.scale]}


def _gaps(sheet: Sheet) -> dict[int, dict[int, float]]:
    """PETRA less backpropagation by epochs and shared seed, points."""
    petra, backpropagation = (_accuracies(sheet, method) for method in COMPARED)
    return {
        epochs: {seed: petra[epochs][seed] - others[seed] for seed in sorted(petra[epochs].keys() & others.keys())}
        for epochs, others in backpropagation.items()
    }


def _differences(sheet: Sheet) -> Iterator[tuple[tuple[str, int], Estimate | None]]:
    """The gap at every length, and its change since the shortest, over the seeds that have both."""
    gaps = _gaps(sheet)
    shortest = LENGTHS[sheet.scale][0]
    for epochs, gap in gaps.items():
        yield (GAP, epochs), estimate(list(gap.values())) if gap else None
        if epochs != shortest:
            yield (CHANGE, epochs), paired(gap, gaps[shortest])


def _words(sheet: Sheet) -> str:
    """Scale, data set, network and recipe, less the length."""
    example = planned(sheet.scale, methods.PETRA, LENGTHS[sheet.scale][0])
    return f"{described(example, network=True, length=False)}, k = {ACCUMULATION}, {sheet.arithmetic}"


def _figure(sheet: Sheet) -> Figure:
    title = "Accuracy against the length of the training"
    accuracies = {method: _accuracies(sheet, method) for method in COMPARED}
    means = "; ".join(
        f"{count(epochs, 'epoch')}: "
        + ", ".join(f"{method.title} {_mean(by_epochs[epochs])}" for method, by_epochs in accuracies.items())
        for epochs in LENGTHS[sheet.scale]
    )
    description = (
        f"Two panels against the number of epochs. Left, test accuracy after the last epoch, in percent: {means}. "
        "Right, PETRA less backpropagation, points."
    )
    svg = sweep_plots.draw(
        key=f"figure-length-{sheet.key}",
        title=title,
        description=description,
        axis="epochs",
        accuracies=accuracies,
        labels={GAP: "trained as long"},
        differences={
            GAP: {epochs: estimate(list(gap.values())) if gap else None for epochs, gap in _gaps(sheet).items()}
        },
    )
    caption = (
        f"{title} ({_words(sheet)}). Left: test accuracy after the last epoch; dot: a seed, line: mean, band: 95 % "
        "interval of the mean, cut where it leaves the panel. Right: PETRA less backpropagation, paired over seeds, "
        "with the 95 % interval; shaded: the margin of the verdicts."
    )
    return Figure(f"length-{sheet.key}", title, description, svg, caption)


def _table(sheet: Sheet, judged: Mapping[tuple[str, int], Judgement]) -> Table:
    lengths = LENGTHS[sheet.scale]
    since = f"change since {count(lengths[0], 'epoch')}"
    columns = [Column("epochs"), *(Column(f"{method.title}, %") for method in COMPARED)]
    for group in ("PETRA less backpropagation", since):
        columns += [Column("points", group=group), Column("verdict", numeric=False, group=group)]
    groups = {(m, epochs): sheet.group(planned(sheet.scale, m, epochs)) for epochs in lengths for m in COMPARED}
    body = []
    for epochs in lengths:
        line = [number(epochs, 0, tone=Tone.PLAIN), *(accuracy_entry(groups[method, epochs]) for method in COMPARED)]
        line += judged_entries(judged[GAP, epochs])
        line += judged_entries(judged[CHANGE, epochs]) if epochs != lengths[0] else [missing("reference"), missing("")]
        body.append(line)
    return Table(
        key=f"length-{sheet.key}",
        caption=f"Accuracy after the last epoch, by the length of the training ({_words(sheet)}).",
        columns=columns,
        rows=body,
        notes=(
            f"Mean ± half the 95 % interval (number of seeds). {DIFFERENCES} {since[0].upper()}{since[1:]}: this gap "
            "less that of the shortest training, over the seeds that have both; above 0, PETRA catches up.",
            family_note(judged),
        ),
        data=list(data(groups.values())),
    )


def _findings(sheet: Sheet, judged: Mapping[tuple[str, int], Judgement]) -> Iterator[Finding]:
    gaps = {epochs: judged[GAP, epochs].difference for epochs in LENGTHS[sheet.scale]}
    known = {epochs: gap for epochs, gap in gaps.items() if gap is not None}
    if not known:
        return
    said = ", ".join(f"{_points(gap)} with {count(epochs, 'epoch')}" for epochs, gap in known.items())
    changes = [
        f"{_points(judgement.difference)} with {epochs} ({judgement.verdict.value})"
        for (kind, epochs), judgement in judged.items()
        if kind == CHANGE and judgement.difference is not None
    ]
    change = f"; change since {count(LENGTHS[sheet.scale][0], 'epoch')}: {', '.join(changes)}" if changes else ""
    yield Finding(f"Training length: {_words(sheet)}. PETRA less backpropagation, points: {said}{change}.")


def _points(difference: Estimate) -> str:
    return f"{estimate_entry(difference, 2, sign=True).text} (n = {difference.n})"


def _mean(values: Mapping[int, float]) -> str:
    return f"{sum(values.values()) / len(values):.2f}" if values else "not run"
