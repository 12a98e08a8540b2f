"""Show the test accuracies of all methods in one setting, scale by scale.

The paper compares PETRA only with backpropagation; its reviewers asked for the other asynchronous methods. This exhibit
shows all of them on the same network with the same k and seeds. A run below the accuracy that its scale expects is an
alert.
"""

from collections.abc import Iterator

from petra_core import methods
from reproduce.cells import timing
from reproduce.exhibits._exhibit import Sentence, Shown, declare
from reproduce.grids import scales
from reproduce.grids.plans.accuracy import COMPARED
from reproduce.presentation import facets
from reproduce.presentation.compare import differences, means
from reproduce.presentation.content import Finding, Role, in_prose
from reproduce.presentation.tables import Field, judged_columns, mean, method, table, words
from reproduce.records.frames import Frames, RunSet
from reproduce.text import conjunction, count, some

PETRA, EXACT = methods.PETRA.name, methods.BACKPROPAGATION.name
BY = ["network", "method", "k"]
LOCKSTEP = (timing.LOCKSTEP, "")  # timing and stages by default
#: Pipelined methods other than PETRA; they compute with delayed gradients.
RIVALS = tuple(m.name for m in COMPARED if m.pipelined and m is not methods.PETRA)


def whole(frames: Frames) -> Iterator[Shown]:
    """Yield the accuracies of runs that were started by hand, by recipe and by timing.

    Methods without a pipeline have no timing. They are shown at each timing of their recipe.
    """
    by_hand = frames.runs[(frames.runs["kind"] == "training") & ~frames.runs["scale"].isin(list(scales.SCALES))]
    for (scale, recipe), runs in by_hand.groupby(["scale", "recipe"]):
        pipelined = runs["method"].isin([method.name for method in methods.ALL if method.pipelined])
        ways = set(runs.loc[pipelined, ["timing", "stages"]].itertuples(index=False, name=None)) or {LOCKSTEP}
        for number, way in enumerate(sorted(ways, key=lambda way: (way != LOCKSTEP, way))):
            group = runs[~pipelined | ((runs["timing"] == way[0]) & (runs["stages"] == way[1]))]
            suffix = f"-{recipe}{f'-{number}' if number else ''}"
            for run_set in frames.run_sets(str(scale), [frames.by_name[name].cell for name in group["cell"]]):
                yield from each(run_set, suffix, f", {timing.title_of_row(*way)}" if way != LOCKSTEP else "")


def each(run_set: RunSet, suffix: str = "", way: str = "") -> Iterator[Shown]:
    """Yield the accuracies by method and k, as a picture and a table, and the differences of PETRA to other methods."""
    accuracy = means(run_set.runs, "test_accuracy", BY)
    networks, _, ks = (list(dict.fromkeys(axis)) for axis in zip(*accuracy, strict=True))
    planned = {place[:2] for place in accuracy}
    rows = [(network, m.name) for network in networks for m in methods.ALL if (network, m.name) in planned]
    rivals = [(network, name) for network, name in rows if name in RIVALS]
    gaps = differences(accuracy, BY, method=EXACT)
    beside = {(n, m, k): accuracy[n, PETRA, k] - accuracy[n, m, k] for n, m in rivals for k in ks}
    key, setting = f"{run_set.key}-{run_set.dataset}{suffix}", run_set.describe(width=False) + way
    yield from _report_expected(run_set)
    k = min(k for network, _, k in accuracy if network == networks[0])
    reached = {name: accuracy[network, name, k].estimate for network, name in rows if network == networks[0]}
    of_each = [
        f"{estimate.mean:.1f} % with {in_prose(methods.by_name(m))}" for m, estimate in reached.items() if estimate
    ]
    title, _, width = networks[0].partition(", ")
    yield Sentence(
        f"{run_set.after.capitalize()} {title} ({width}, k = {k}) reaches {conjunction(of_each)}."
        if of_each
        else f"No run is finished (scale “{run_set.scale}”).",
        known=len(of_each) > 1,
    )
    yield facets.facet(
        run_set.done,
        [facets.rows()],
        key=f"dots-{key}",
        caption=f"Test accuracy of every run ({setting}). Dot: a seed; bar: mean.",
        x="test_accuracy",
        y="method",
        panels=facets.Panels(
            row="network", col="k", titles=lambda network, k: f"{network.partition(',')[0]}, k = {k}", height=1.6
        ),
        legend="",
    )

    def of_k(k: int) -> list[Field]:
        difference = judged_columns("difference", lambda row: gaps.get((*row, k), ""), digits=1, group=f"k = {k}")
        return [mean("accuracy, %", lambda row: accuracy.get((*row, k)), 1, group=f"k = {k}"), difference]

    def less_rival(k: int) -> Field:
        return judged_columns("PETRA − it", lambda row: beside[*row, k], digits=1, group=f"k = {k}")

    head = [words("network", lambda row: row[0], heading=True), method(lambda row: methods.by_name(row[1]))]
    yield table(
        key=f"accuracy-{key}",
        caption=f"Test accuracy by network, method and k, and differences to backpropagation, points ({setting}).",
        rows=rows,
        fields=[*head, *(field for k in sorted(ks) for field in of_k(k))],
    )
    if any(difference.estimate for difference in beside.values()):
        yield table(
            key=f"rivals-{key}",
            caption=f"PETRA − each other asynchronous method, points of accuracy ({setting}).",
            rows=rivals,
            fields=[*head, *map(less_rival, sorted(ks))],
        )


def _report_expected(run_set: RunSet) -> Iterator[Finding]:
    """Report the runs below the accuracy that their scale expects, or that there are none.

    Runs that were started by hand have no expected accuracy.
    """
    scale, by_name = scales.SCALES.get(run_set.scale, scales.Scale("")), run_set.frames.by_name
    short = {
        run.cell.name: f"{run.result['test_accuracy']:.1f} %" if run.done else str(run.state)
        for run in (by_name[cell] for cell in run_set.runs["cell"] if cell in by_name)
        if scale.falls_short(run.cell, run.state, run.result.get("test_accuracy"))
    }
    judged = run_set.done.loc[run_set.done["k"].isin(scale.target_accumulations), "test_accuracy"]
    at = f"k = {' and '.join(map(str, scale.target_accumulations))}"
    target = f"{scale.target_accuracy:g} % test accuracy"
    if short:
        names = some([f"{cell}: {what}" for cell, what in short.items()])
        yield Finding(
            f"Scale “{run_set.scale}”: {count(len(short), 'run')} at {at} not above {target}. {names}.", Role.ALERT
        )
    elif not judged.empty:
        learns = f"all {len(judged)} finished runs at {at} are above {target}, the lowest at {judged.min():.1f} %"
        yield Finding(f"Scale “{run_set.scale}”: every method learns, {learns}.", Role.GOOD)


EXHIBIT = declare("accuracy", each, whole)
