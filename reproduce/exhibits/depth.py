"""Beyond the paper: reconstruction error and accuracy against depth and delay, on a chain of constant width.

In a RevNet a reconstruction error accumulates only between two stages that keep their input, over at most 5 blocks. On
the chain only the head stops it. The exhibit separates methods that lose accuracy from runs that are broken.
"""

from collections.abc import Iterator

from petra_core import methods
from petra_core.methods import Method
from reproduce.exhibits._exhibit import Shown, declare, result, text_of
from reproduce.exhibits.reconstruction import NOTE, draw_errors, error_columns, errors_at_bottom, list_broken
from reproduce.grids.plans.depth import COMPARED
from reproduce.presentation import facets
from reproduce.presentation.compare import DONE, Difference, SeedSample, means, measured_samples, summarize
from reproduce.presentation.content import Finding, in_prose, short_title
from reproduce.presentation.tables import Field, judged_columns, mean, number, table, words
from reproduce.records.broken import RULE
from reproduce.records.frames import RunSet
from reproduce.text import conjunction

#: The two methods whose difference isolates each cause.
STEPS = {"reconstruction": (methods.PETRA, methods.DSP), "delay": (methods.DSP, methods.BACKPROPAGATION)}
PAIRS = {step: " − ".join(map(short_title, pair)) for step, pair in STEPS.items()}
EXACT = methods.BACKPROPAGATION
Place = tuple[int, int]  # (k, J)


def each(run_set: RunSet) -> Iterator[Shown]:
    """Yield accuracy against depth, the differences between methods, broken runs, and reconstruction errors."""
    runs = run_set.runs.assign(J=run_set.runs["model"].str.removeprefix("chain").astype(int) + 2)
    accuracy = means(runs, "test_accuracy", ["k", "J", "method"])
    places = sorted({place[:2] for place in accuracy})
    pairs = {
        (*place, step): _sound(*(accuracy[*place, method.name] for method in pair))
        for place in places
        for step, pair in STEPS.items()
    }
    bottom = errors_at_bottom(run_set, runs[["cell", "J"]])
    errors = measured_samples(bottom, ["k", "J", "measure"])
    setting = run_set.describe()
    panels = facets.Panels(col="k", height=2.9)

    def accuracy_column(method: Method) -> Field:
        return mean(short_title(method), lambda place: accuracy[*place, method.name], 1, group="accuracy, %")

    def step_columns(step: str) -> Field:
        return judged_columns(
            "difference", lambda place: pairs[*place, step] or "both broken", group=f"{step}: {PAIRS[step]}"
        )

    def broken_runs(place: Place) -> str:
        return "; ".join(
            f"{short_title(m)}: {counted}" for m in COMPARED for counted in list_broken(accuracy[*place, m.name])
        )

    k, last = places[0][0], places[-1][1]
    deepest = {in_prose(m): accuracy[k, last, m.name] for m in COMPARED}
    reach = [
        f"{estimate.mean:.1f} % with {name} (seeds: {sample.seeds})"
        for name, sample in deepest.items()
        if (estimate := sample.estimate)
    ]
    lost = [f"{name}: {sample.summary}" for name, sample in deepest.items() if sample.failures and not sample.estimate]
    failed = f" ({'; '.join(lost)})" * bool(lost)
    yield result(
        reach,
        f"{run_set.after.capitalize()} a chain of {last} stages reaches {conjunction(reach)} at k = {k}{failed}.",
        f"No run on a chain of {last} stages has an accuracy yet at k = {k}{failed}.",
    )
    yield facets.facet(
        runs[runs["status"] == DONE],
        [facets.line(), facets.dots(apart=0.012, broken="broken")],
        key=f"depth-{run_set.key}-accuracy",
        caption=text_of("depth", "figure", setting=setting),
        x="J",
        y="test_accuracy",
        panels=panels,
    )
    yield table(
        key=f"depth-{run_set.key}",
        caption=f"Accuracy, differences in points, and errors against depth ({setting}).",
        rows=places,
        fields=[
            words("k", lambda place: f"k = {place[0]}", heading=True),
            number("J", lambda place: place[1]),
            *map(accuracy_column, COMPARED),
            *map(step_columns, STEPS),
            words("broken runs", broken_runs),
            *error_columns(errors),
        ],
        notes=[NOTE],
    )
    costs = {step: summarize(pairs[*place, step] for place in places) for step in STEPS}
    listed = "; ".join(f"{step} ({PAIRS[step]}), {cost or 'nothing to compare yet'}" for step, cost in costs.items())
    yield Finding(f"Scale “{run_set.scale}”. Cost in accuracy: {listed}.")
    yield draw_errors(bottom, f"depth-{run_set.key}-errors", text_of("depth", "errors", setting=setting), "J", panels)


def _sound(sample: SeedSample, other: SeedSample) -> Difference | None:
    """Return the difference without seeds that are broken on both sides; None if all are.

    The agreement of two broken runs means nothing.
    """
    wrecks = sample.broken.keys() & other.broken.keys()
    difference = sample.without(wrecks) - other.without(wrecks)
    return difference if difference.estimate or not wrecks else None


EXHIBIT = declare("depth", each, rule=RULE)
