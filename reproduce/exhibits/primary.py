"""Show the few comparisons that decide the report's conclusions; every other comparison is exploratory.

They are declared in `primary.json`, each as two cells without a seed, with the date of the declaration, and whether
their runs came before it. The comparisons of a family answer one question and are corrected together, including those
without runs. A family may be restricted to some seeds: the seeds that produced a hypothesis cannot confirm it.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from pandas import DataFrame

from reproduce.cells.kinds import from_dict
from reproduce.cells.networks import title_of
from reproduce.exhibits._exhibit import Folded, Sentence, Shown, declare, notes, text_of
from reproduce.presentation import content, tables
from reproduce.presentation.compare import DONE, NOT_RUN, Difference, sample_of
from reproduce.presentation.content import Entry, Finding, Role, Table, missing
from reproduce.presentation.statistics import CONFIDENCE, MARGIN_POINTS, Verdict, holm, p_value
from reproduce.presentation.tables import amount, difference_column, entry, judged_columns, number, table, words
from reproduce.records.frames import AVERAGED, Frames, settings_key
from reproduce.text import conjunction, count

SHORT = 12  # in epochs; the paper trains for 300
OUTCOME = "final_accuracy"
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Primary:
    """A primary comparison with its results.

    Attributes:
        family: Name of the comparisons that it is corrected with.
        title: Both sides of the subtraction.
        question: Question that it answers.
        epochs: Length of the trainings.
        setting: Network and length, in words.
        accuracy: Difference in points.
        loss: Difference in training loss.
        alike: Difference in points over the runs on machines that both sides used.
        corrected: P-value after Holm's correction over the family.
        unfinished: Whether a side lacks runs with declared seeds.

    """

    family: str
    title: str
    question: str
    epochs: int
    setting: str
    accuracy: Difference
    loss: Difference
    alike: Difference
    corrected: float = 1.0
    unfinished: bool = False

    @property
    def verdict(self) -> Verdict:
        """Verdict on the accuracy. A difference that is not significant after the correction is open."""
        found = self.accuracy.verdict
        return found if found is Verdict.EQUAL or self.corrected < 1 - CONFIDENCE else Verdict.OPEN


@cache
def read_declaration() -> Mapping[str, Any]:
    """Read the declaration."""
    text = (resources.files("reproduce.exhibits") / "primary.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]  # its test checks that it is a mapping


def primaries(frames: Frames) -> list[Primary]:
    """Return the primary comparisons in the order of their declaration, corrected by family."""
    found = [_compare(frames, **comparison) for comparison in read_declaration()["comparisons"]]
    corrected: dict[int, float] = {}  # by position
    for family in read_declaration()["families"]:
        places = [place for place, comparison in enumerate(found) if comparison.family == family]
        p_values = [p_value(found[place].accuracy.estimate) for place in places]
        corrected |= dict(zip(places, holm(p_values), strict=True))
    return [replace(comparison, corrected=corrected[place]) for place, comparison in enumerate(found)]


def _compare(
    frames: Frames, family: str, title: str, question: str, study: str, first: dict[str, Any], second: dict[str, Any]
) -> Primary:
    base, rules = read_declaration()["studies"][study], read_declaration()["families"][family]
    seeds = rules["seeds"] or ()
    sides = [_runs(frames, base | changes, seeds) for changes in (first, second)]
    unfinished = any(len(side) < len(seeds) for side in sides)
    where = set.intersection(*(set(side["machine"]) for side in sides))
    alike = [side[side["machine"].isin(where)] for side in sides]
    cell = from_dict({**base, **second, "seed": 0, "loader": "memory"})
    setting = f"{title_of(cell)}, {count(base['epochs'], 'epoch')}, k = {base['accumulation']}"  # type: ignore[arg-type]  # a cell that trains
    found = (_difference(sides, OUTCOME), _difference(sides, rules["loss"]), _difference(alike, OUTCOME))
    return Primary(family, title, question, base["epochs"], setting, *found, unfinished=unfinished)


def _runs(frames: Frames, settings: dict[str, Any], seeds: Collection[int]) -> DataFrame:
    """Return the finished runs of a cell with one of the seeds (empty: any seed), at commits that can be looked up."""
    runs: DataFrame = frames.runs
    cell = from_dict({**settings, "seed": 0, "loader": "memory"})
    known = (runs["settings"] == settings_key(cell)) & (runs["status"] == DONE) & runs["traceable"]
    if seeds:
        known &= runs["seed"].isin(seeds)
    chosen: DataFrame = runs[known & (runs["arithmetic"] == settings["precision"])]
    return chosen


def _difference(sides: list[DataFrame], value: str) -> Difference:
    first, second = (sample_of(side, value) for side in sides)
    return first - second


def whole(frames: Frames) -> Iterator[Shown]:
    """Yield the comparisons, and the spreads on which all intervals of the report are based."""
    known = primaries(frames)
    made = [comparison for comparison in known if comparison.accuracy.estimate]
    verdicts = Counter(comparison.verdict.value for comparison in made)
    listed = conjunction(
        [f"{number} {'is' if number == 1 else 'are'} {verdict}" for verdict, number in verdicts.items()]
    )
    yield Sentence(
        f"Of {count(len(known), 'primary comparison')} {len(made) or 'none'} "
        f"{'has' if len(made) < 2 else 'have'} been run{f': {listed}' * bool(made)}.",
        known=bool(made),
    )
    yield table(
        key="primary",
        caption="Primary comparisons: differences in test accuracy over the last epochs, points.",
        rows=known,
        fields=[
            words("family", lambda comparison: comparison.family, heading=True),
            words("comparison", lambda comparison: comparison.title),
            words("question", lambda comparison: comparison.question),
            words("setting", lambda comparison: comparison.setting),
            judged_columns("points", _judge),
            entry("p, corrected", _p),
            judged_columns(
                "points",
                lambda comparison: comparison.alike if comparison.accuracy.mixed else "",
                group="runs on the same machines only",
            ),
            difference_column("training loss", lambda comparison: comparison.loss, 4),
        ],
        notes=notes("primary", "comparisons", margin=MARGIN_POINTS),
    )
    if open_ones := [comparison.title for comparison in made if comparison.unfinished]:
        titles = "; ".join(open_ones)
        yield Finding(
            text_of("primary", "unfinished", unfinished=len(open_ones), made=len(made), titles=titles), Role.ALERT
        )
    if mixed := [comparison.title for comparison in made if comparison.accuracy.mixed]:
        yield Finding(
            text_of("primary", "mixed", mixed=len(mixed), made=len(made), titles="; ".join(mixed)), Role.ALERT
        )
    epochs = frames.runs.loc[frames.runs["status"] == DONE, "epochs"].dropna()
    if len(epochs) and (short := int((epochs <= SHORT).sum())):
        yield Finding(text_of("primary", "short", short=short, trainings=len(epochs), most=SHORT), Role.ALERT)
    yield Folded(_spreads(frames))


def _judge(comparison: Primary) -> list[Entry] | str:
    """Return the difference and its verdict after the correction."""
    if comparison.accuracy.estimate is None:
        return NOT_RUN
    return [tables.difference_entries(comparison.accuracy)[0], content.verdict(comparison.verdict)]


def _p(comparison: Primary) -> Entry:
    if comparison.accuracy.estimate is None:
        return missing(NOT_RUN)
    certain = comparison.corrected < 1e-4
    return Entry("< 0.0001" if certain else f"{comparison.corrected:.2g}", comparison.corrected, Role.OURS)


def _spreads(frames: Frames) -> Table:
    """Return a table with the spread over seeds of each study, and whether its settings share it."""
    rows = [(study, spread) for study in frames.studies.values() if (spread := study.spreads.get(OUTCOME))]
    return table(
        key="spreads",
        caption=text_of("primary", "spreads"),
        rows=rows,
        fields=[
            words("study", lambda row: row[0].title),
            number("settings", lambda row: row[1].settings),
            number("degrees of freedom", lambda row: row[1].freedom),
            amount("standard deviation", lambda row: row[1].deviation, 2),
            entry("p of homogeneity", lambda row: missing("one setting") if row[1].p is None else _format_p(row[1].p)),
            words("intervals use", lambda row: "the shared spread" if row[1].shared else "own variances (Welch)"),
        ],
        notes=["Settings with a single run and broken runs are left out. Below p = 0.05 the spread is not shared."],
    )


def _format_p(p: float) -> Entry:
    return Entry(f"{p:.2g}", p, Role.OURS)


EXHIBIT = declare("primary", whole=whole, averaged=AVERAGED)
