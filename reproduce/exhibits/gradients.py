"""What Figures 5 and 6 share: how good PETRA's gradients are, stage by stage, as frames and claims.

Probes write down three measures of three pairs of gradients at every stage (`reproduce.measures.gradient_quality`).
Averaging all of it at once, over epochs, seeds and stages, gives one number and hides that seeds are few and epochs
unlike. Here a run comes to a value a stage, or a value a stage and a part of the training, and every estimate is over
seeds. What is compared is compared within a run: the same micro-batches at the same weights.

The question is whether PETRA's gradient lies closer to the end-to-end gradient than the delayed one does. `gains` are
the differences by which it does; there is no margin below which one of them would not matter, so the claim is that the
interval lies above 0.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from petra_core import methods
from reproduce.cells import networks
from reproduce.cells.kinds import TrainedCell
from reproduce.records.frames import Frame, Sheet, weighted
from reproduce.show import statements
from reproduce.show.compare import CHANCE, Samples, means, measured
from reproduce.show.content import Column, Entry, Finding, Tone, estimate, missing, none
from reproduce.show.facets import METHOD_LOOKS, Look
from reproduce.show.statements import Outcome, combine, is_above, outcome_entry
from reproduce.show.statistics import Judgement
from reproduce.show.tables import Field, estimated
from reproduce.words import count

METHOD, DELAYED, BETWEEN = "method/end_to_end", "delayed/end_to_end", "method/delayed"
LOOKS = {
    METHOD: Look("PETRA and end-to-end", METHOD_LOOKS[methods.PETRA.name].colour),
    DELAYED: Look("delayed and end-to-end", METHOD_LOOKS[methods.DELAYED_GRADIENTS.name].colour, (4, 1.5)),
    BETWEEN: Look("PETRA and delayed", METHOD_LOOKS[methods.BACKPROPAGATION.name].colour, (1, 1)),
}
SHORT = {METHOD: "PETRA/e2e", DELAYED: "delayed/e2e", BETWEEN: "PETRA/delayed"}
MEASURES = {"cosine": "cosine similarity", "norm_ratio": "norm ratio", "relative_error": "relative error"}

#: Measures of closeness, with the sign of a gain. A norm ratio is none: a gradient of the right length may be wrong.
CLOSENESS = {"cosine": 1, "relative_error": -1}

#: What the backward of a stage evaluates its function at.
KINDS = {
    "K": "keeps its input",
    "E": "reversible, but handed down exactly what it evaluates F at",
    "R": "reversible, evaluates F at a reconstructed input",
}
KINDS_NOTE = "Kinds of stages: " + "; ".join(f"{letter}, {what}" for letter, what in KINDS.items()) + "."


def kinds(cell: TrainedCell) -> str:
    """The kind of every stage of the cell's network, a letter each.

    One stream of a reversible stage's output is a copy of the one that F took. So F is evaluated at an exact input
    wherever the stage above keeps its own.
    """
    keeps = [not stage.invertible for stage in networks.outlined(cell, num_classes=10)]
    above = [*keeps[1:], True]
    return "".join("K" if here else "E" if next_ else "R" for here, next_ in zip(keeps, above, strict=True))


# --- frames


def comparisons(sheet: Sheet, *, single: bool = False) -> Frame:
    """The lines of a sheet with further columns: `study` (network and k), `pair`, `kind` and `head` of the stage."""
    of = {networks.title_of(cell): kinds(cell) for cell in sheet.planned if isinstance(cell, TrainedCell)}
    lines = sheet.lines(single=single)
    stages = list(zip(lines["network"], lines["stage"], strict=True))
    return lines.assign(
        study=_study(lines),
        pair=lines["measure"].str.replace("/[^/]*$", "", regex=True),
        measure=lines["measure"].str.replace("^.*/", "", regex=True),
        kind=[of[network][stage] for network, stage in stages],
        head=[stage == len(of[network]) - 1 for network, stage in stages],
    )


def _study(frame: Frame) -> Any:
    return frame["network"] + ", k = " + frame["k"].astype(str)


def profiles(lines: Frame, *over: str) -> Frame:
    """The mean of each measure over micro-batches: a row a run, pair, measure and stage (and what it is `over`)."""
    return weighted(lines, ["study", "seed", *over, "stage", "kind", "head", "pair", "measure"])


def gains(values: Frame) -> Frame:
    """By how much PETRA's gradient is closer to the end-to-end one than the delayed gradient, below the head.

    The head's forward and backward are of one tick: there both are the same gradient.
    """
    close = values[values["measure"].isin(list(CLOSENESS)) & ~values["head"]]
    ours, delayed = (close[close["pair"] == pair].drop(columns="pair") for pair in (METHOD, DELAYED))
    both = ours.merge(delayed, on=[name for name in ours.columns if name != "value"], suffixes=("", "_delayed"))
    return both.assign(value=(both["value"] - both["value_delayed"]) * both["measure"].map(CLOSENESS))


def over_stages(values: Frame) -> Frame:
    """The means of the stages below the head."""
    by = [name for name in values.columns if name not in ("stage", "kind", "head", "value", "value_delayed")]
    return values[~values["head"]].groupby(by, sort=False)["value"].mean().reset_index()


def places(frame: Frame, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """The combinations of values in these columns, in the order in which they come."""
    return list(frame[list(columns)].drop_duplicates().itertuples(index=False, name=None))


def extents(sheet: Sheet, values: Frame) -> dict[str, str]:
    """By study what there is of it: "3 seeds", or "2 of 3 seeds; seed 1: 2 of 3 epochs; seed 2: not run"."""
    known = measured(values, "value", ["study"])
    words = {}
    for study, sample in means(sheet.runs.assign(study=_study(sheet.runs)), "seed", ["study"]).items():
        n, planned = len(known[study].values), len(sample.states)
        amount = f"{n} of " * (n < planned) + count(planned, "seed")
        words[study] = "; ".join(part for part in (amount, sample.unfinished) if part)
    return words


# --- the paper's statement


def claim(judgement: Judgement) -> Outcome:
    """Whether PETRA's gradient is closer: agree if the 95 % interval is above 0, disagree if it is below."""
    return combine([is_above(judgement.difference)])


def claim_entry(judgement: Judgement) -> Entry:
    """A claim, with a dagger where it does not survive Holm's correction."""
    shown = outcome_entry(claim(judgement))
    if claim(judgement) is Outcome.CANNOT_TELL:
        alone = judgement.difference is not None and judgement.difference.low is None
        return missing(shown.text, "one seed: no interval" if alone else "")
    return shown if judgement.survives else Entry(f"{shown.text} {CHANCE}", shown.text, shown.tone)


def word(judgements: Iterable[Judgement]) -> str:
    """The claims that survive, in a word: one that does not may be there by chance."""
    standing = {claim(judgement) for judgement in judgements if judgement.survives}
    return "mixed" if len(standing) > 1 else (standing or {Outcome.CANNOT_TELL}).pop().value


def finding(title: str, sheet: Sheet, judgements: Iterable[Judgement], ours: str, details: str) -> Finding:
    """The line of the summary: the statement, and what our data say to it."""
    said = word(judgements)
    tone = {Outcome.AGREE.value: Tone.GOOD, Outcome.CANNOT_TELL.value: Tone.MISSING}.get(said, Tone.PLAIN)
    quoted = statements.of("figure5").quoted
    return Finding(f"{title}: scale “{sheet.scale}”. The statement {quoted}: ours, {ours} {said}{details}", tone)


# --- columns of tables whose rows are places


def mean_field(of: Samples, pair: str, measure: str) -> Field:
    """A column of the means of a measure of a pair; `of`: by place, pair and measure."""
    group, hint = MEASURES[measure], LOOKS[pair].label
    return estimated(SHORT[pair], lambda row: of[*row, pair, measure].estimate, 3, group=group, hint=hint)


def claim_field(name: str, judged: Mapping[Any, Judgement], measure: str, group: str) -> Field:
    """Two columns: a gain, and what it says to the paper's statement; `judged`: by place and measure."""

    def entries(row: Any) -> list[Entry]:
        judgement = judged.get((*row, measure))
        if judgement is None or judgement.difference is None:
            return [none("not defined"), missing("")]
        return [estimate(judgement.difference, 4, sign=True), claim_entry(judgement)]

    return Field([Column(name, group=group), Column("the statement", numeric=False, group=group)], entries)
