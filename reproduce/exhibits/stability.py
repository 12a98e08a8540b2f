"""Beyond the paper: where does training break? A map over k, learning rate and warm-up.

Warm-up and accumulation are what makes PETRA stable: the first keeps the weights from moving far while they are
reconstructed through, the second divides the number of updates within a delay. The map has both, for PETRA and for
backpropagation at the same points, on a chain of reversible blocks, where every inner stage is reconstructed: whatever
breaks under both is the learning rate's doing and not the delay's.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from petra_core.methods import Method
from reproduce.exhibits._exhibit import Exhibit, Folded, Sentence, Shown
from reproduce.grids.plans.stability import COMPARED
from reproduce.records.broken import RULE, chance
from reproduce.records.frames import Sheet
from reproduce.show import facets
from reproduce.show.compare import DONE, Sample, means, with_difference
from reproduce.show.content import Entry, Finding, Tone, missing, text
from reproduce.show.facets import facet
from reproduce.show.tables import Field, amount, difference, entry, number, table
from reproduce.words import count

POINT = ["warmup_epochs", "k", "reference_rate"]  # of the map: the last is the learning rate at 256 samples an update
PETRA, EXACT = COMPARED
DIFFERENCE = "PETRA less backpropagation, points"
INTRODUCTION = (
    "Each field is one short training, with one seed: differences of a few points between two fields mean nothing, "
    "what breaks and what does not is what the map is for. The learning rate after warm-up is rate·batch·k/256, the "
    "paper's rule with other rates than its 0.1, so that a field further up has the same rate for each sample and "
    f"fewer updates within a delay. {RULE}"
)


def each(sheet: Sheet) -> Iterator[Shown]:
    """The maps, the largest rate that is stable, and every point."""
    runs = sheet.runs[sheet.runs["seed"] == sheet.example.seed]
    learning_rates: dict[Any, float] = runs.groupby(POINT)["learning_rate"].first().to_dict()
    warmups, ks, tried = (sorted(set(axis)) for axis in zip(*learning_rates, strict=True))
    samples = means(runs, "test_accuracy", [*POINT, "method"])
    accuracy = {method: {point: samples[*point, method.name] for point in learning_rates} for method in COMPARED}
    stable = {
        (warmup, k, method): stable_rate({rate: accuracy[method][warmup, k, rate] for rate in tried})
        for warmup in warmups
        for k in ks
        for method in COMPARED
    }
    findings = [f"scale “{sheet.scale}” {_counts(accuracy)}"]
    for warmup in warmups:
        rates = [f"{m.title} {', '.join(f'{stable[warmup, k, m].text} at k = {k}' for k in ks)}" for m in COMPARED]
        findings.append(
            f"scale “{sheet.scale}”, {_length(warmup)}: the largest rate up to which nothing breaks is for "
            f"{'; for '.join(rates)}."
        )
    setting = sheet.described(network=True, rate=False)
    petra, exact = (sum(bool(sample.broken) for sample in accuracy[method].values()) for method in COMPARED)
    yield Sentence(
        f"Of {len(learning_rates)} points over k, learning rate and warm-up, training breaks at {petra} under PETRA "
        f"and at {exact} under backpropagation."
    )
    yield facet(
        with_difference(runs, "test_accuracy", of=PETRA.name, less=EXACT.name, by=POINT, title=DIFFERENCE),
        [facets.fields(broken="broken", difference="difference", least=chance(sheet.example))],
        key=f"stability-{sheet.key}",
        title=f"Stability of PETRA and backpropagation, scale “{sheet.scale}”",
        caption=f"Stability of PETRA and backpropagation ({setting}). Test accuracy after the last epoch. Hatched: "
        "broken by the rule above; on the right, where one of the two is. A dot: not run.",
        x="reference_rate",
        y="test_accuracy",
        hue="k",
        looks=facets.rising(ks),
        row="warmup_epochs",
        col="method",
        titles=lambda warmup, shown: f"{_title(shown)}\n{_length(warmup)}",
        xlabel="rate",
        ylabel="k",
        height=0.9 + 0.34 * len(ks),
        legend="",
    )
    yield table(
        key=f"stability-{sheet.key}-rates",
        caption=f"The largest rate up to which nothing breaks ({setting}).",
        rows=[(warmup, k) for warmup in warmups for k in ks],
        fields=[
            number("warm-up, epochs", lambda row: row[0], 1),
            number("k", lambda row: row[1]),
            entry(PETRA.title, lambda row: stable[*row, PETRA]),
            entry(EXACT.title, lambda row: stable[*row, EXACT]),
        ],
        notes=("The rate stands where the paper has 0.1. Only rates of the map were tried; nothing is interpolated.",),
    )
    yield Folded(
        table(
            key=f"stability-{sheet.key}-points",
            caption=f"Every point of the map ({setting}), one seed.",
            rows=learning_rates,
            fields=[
                number("warm-up, epochs", lambda point: point[0], 1),
                number("k", lambda point: point[1]),
                entry("rate", lambda point: Entry(f"{point[2]:g}", point[2])),
                entry("learning rate", lambda point: Entry(f"{learning_rates[point]:.4g}", learning_rates[point])),
                *_outcome(PETRA, accuracy[PETRA]),
                *_outcome(EXACT, accuracy[EXACT]),
                difference("difference", lambda point: _mean(accuracy[PETRA][point] - accuracy[EXACT][point]), 1),
            ],
            notes=("Difference: PETRA less backpropagation at the same point, points of accuracy.",),
        )
    )
    yield from (Finding(f"Stability: {words}") for words in findings)


def stable_rate(by_rate: Mapping[float, Sample]) -> Entry:
    """The largest rate up to which nothing breaks, as far as is known; unless the next one breaks, what limits it.

    Args:
        by_rate: the runs, the rates rising.

    """
    stable, limit = None, "largest tried"
    for rate, sample in by_rate.items():
        if sample.broken and stable is None:
            return text("none", tone=Tone.ALERT, hint="breaks at the smallest rate")
        if sample.broken or not sample.ended:
            limit = "" if sample.broken else "next not run"
            break
        stable = rate
    if stable is None:
        return missing("not known", "the smallest rate has not been run")
    return Entry(f"{stable:g} ({limit})" if limit else f"{stable:g}", stable, Tone.OURS)


def _counts(accuracy: Mapping[Method, Mapping[Any, Sample]]) -> str:
    """How many points break under which method, of those that are known of both."""
    both = [point for point in accuracy[PETRA] if all(accuracy[method][point].ended for method in COMPARED)]
    petra, exact = ({point for point in both if accuracy[method][point].broken} for method in COMPARED)
    return (
        f"({len(both)} of {count(len(accuracy[PETRA]), 'point')} run with both methods, one seed): PETRA breaks at "
        f"{len(petra)} and backpropagation at {len(exact)} of them; at {len(petra - exact)} PETRA alone, at "
        f"{len(exact - petra)} backpropagation alone."
    )


def _outcome(method: Method, accuracy: Mapping[Any, Sample]) -> list[Field]:
    """Two columns: the accuracy, and whether it trains or why not."""

    def state(point: Any) -> Entry:
        sample = accuracy[point]
        if sample.broken:
            return text(f"broken: {next(iter(sample.broken.values()))}", tone=Tone.ALERT)
        return missing("trains" if sample.summary == DONE else sample.summary)

    return [
        amount("accuracy, %", lambda point: _mean(accuracy[point]), 1, group=method.title),
        entry("state", state, group=method.title, numeric=False),
    ]


def _mean(sample: Sample) -> float | None:
    return sample.estimate.mean if sample.estimate else None


def _title(shown: str) -> str:
    """Of a panel: a method's name, or that of the difference."""
    return next((f"{method.title}, %" for method in COMPARED if method.name == shown), shown)


def _length(warmup: float) -> str:
    return f"warm-up of {warmup:g} epoch{'' if warmup == 1 else 's'}" if warmup else "no warm-up"


EXHIBIT = Exhibit(
    "stability",
    "Stability: where training breaks, over k, learning rate and warm-up",
    INTRODUCTION,
    each,
    folded="Every point of the maps",
)
