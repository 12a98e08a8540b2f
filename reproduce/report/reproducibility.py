"""Write the reproducibility report: scope, methodology, results and difficulties, from claims and records."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from reproduce.exhibits._exhibit import text_of
from reproduce.exhibits.claims import Judged
from reproduce.exhibits.cost import cost_of
from reproduce.presentation.statements import ClaimVerdict
from reproduce.presentation.statistics import MARGIN_POINTS
from reproduce.records.frames import Frames
from reproduce.records.run import Status
from reproduce.text import conjunction, count

PAPER = "PETRA"
#: Predicate of one claim and of several claims with a verdict.
PREDICATES = {
    ClaimVerdict.AGREE: ("agrees with our runs", "agree with our runs"),
    ClaimVerdict.DISAGREE: ("disagrees with our runs", "disagree with our runs"),
    ClaimVerdict.SAME: ("holds at a smaller scale", "hold at a smaller scale"),
    ClaimVerdict.NOT_SO: ("does not hold at a smaller scale", "do not hold at a smaller scale"),
    ClaimVerdict.OPEN: ("is open", "are open"),
    ClaimVerdict.UNKNOWN: ("has no run that bears on it", "have no run that bears on them"),
}


@dataclass(frozen=True)
class Reproducibility:
    """The parts of the report that depend on records; `published.remarks` has the others.

    Attributes:
        scope: What is tested.
        methodology: How it is tested.
        results: Claims by verdict: a sentence per verdict, with the claims that it names.

    """

    scope: str
    methodology: str
    results: Sequence[tuple[str, Sequence[Judged]]]


def list_verdicts(judged: Sequence[Judged]) -> str:
    """List how many claims have each verdict, as "8 hold at a smaller scale and 11 are open"."""
    verdicts = Counter(judgement.verdict for judgement in judged)
    return conjunction(
        [f"{amount} {forms[amount > 1]}" for verdict, forms in PREDICATES.items() if (amount := verdicts[verdict])]
    )


def count_verdicts(judged: Sequence[Judged]) -> str:
    """Count the claims of the paper by verdict, in a sentence."""
    of_paper = [judgement for judgement in judged if judgement.claim.paper == PAPER]
    return f"Of {count(len(of_paper), 'claim')} of the PETRA paper {list_verdicts(of_paper)}."


def _by_paper(judged: Sequence[Judged]) -> str:
    """Count claims by paper, as "9 of PETRA and 1 of BDIA"."""
    return conjunction([f"{n} of {paper}" for paper, n in Counter(member.claim.paper for member in judged).items()])


def reproducibility(judged: Sequence[Judged], frames: Frames) -> Reproducibility:
    """Compose the report."""
    of_paper = [judgement for judgement in judged if judgement.claim.paper == PAPER]
    beside = _by_paper([judgement for judgement in judged if judgement.claim.paper != PAPER])
    begun = [run for run in frames.results.runs if run.state.status is not Status.NOT_RUN]
    cost, scales = cost_of(begun), Counter(run.cell.scale for run in begun)
    sizes = conjunction([f"{amount:,} at the scale “{scale}”" for scale, amount in scales.most_common()])
    runs = f"{count(len(begun), 'run')} are recorded{f' ({sizes})' * bool(sizes)}"
    grouped = [
        (verdict, [judgement for judgement in judged if judgement.verdict is verdict]) for verdict in ClaimVerdict
    ]
    return Reproducibility(
        scope=f"The suite tests {count(len(of_paper), 'claim')} of the paper"
        + (f", and claims of related papers ({beside})" * bool(beside))
        + ". Each claim is a sentence with a predicate and the runs that decide it.",
        methodology=text_of("reproducibility", "methodology", runs=runs, cost=cost, margin=MARGIN_POINTS),
        results=[
            (f"{verdict.value.capitalize()} ({_by_paper(members)}): {verdict.meaning}.", members)
            for verdict, members in grouped
            if members
        ],
    )
