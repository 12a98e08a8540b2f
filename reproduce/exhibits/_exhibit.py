"""What a table, figure or study of the report is, and the one driver that makes its section.

An exhibit is a declaration: its plan says which cells it needs (`reproduce.grids.plans`, under its key), `whole` and
`each` say what is shown, as a stream of what goes into the report, in order:

    Table, Figure, Listing, str     shown (a str is a paragraph)
    Folded(…)                       shown on demand
    Finding(…)                      a line of the summary
    Sentence(…)                     what it says; of several the first with a value

`each` is asked for every sheet (`reproduce.records.frames.Sheet`: a scale, an arithmetic, a data set, a text) of which
a run has begun, the largest scale first. A sheet that compares nothing yet comes after those that do. That the others
have not been run, and how many runs are finished, is said here and nowhere else. `whole` is asked once, before, for
what is not of a sheet. What our runs say about the paper's claims is in `reproduce.exhibits.claims`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from reproduce.cells import catalogue
from reproduce.grids import scales
from reproduce.grids.grid import cells_of
from reproduce.grids.plans import PLANS
from reproduce.records.frames import Frames, Sheet
from reproduce.show.content import Block, Figure, Finding, Listing, Section, Table, Tone
from reproduce.words import conjunction, count

__all__ = ["Exhibit", "Folded", "Sentence", "Shown", "commands", "section", "sheets"]


@dataclass(frozen=True)
class Folded:
    """A block that is shown on demand."""

    block: Block


@dataclass(frozen=True)
class Sentence:
    """What an exhibit says, for who reads no further; with a tone it is a line of the summary, too."""

    words: str
    tone: Tone | None = None
    known: bool = True  # whether there is a value in it, and not only that there is none yet


Shown = Block | Folded | Finding | Sentence


@dataclass(frozen=True)
class Exhibit:
    """A table, a figure or a study.

    Attributes:
        key: of its section, of its plan, and of what was published (`table3`).
        title: heading.
        introduction: a paragraph.
        each: what is shown of a sheet of its plan.
        whole: what is shown once, before.
        folded: heading of what is shown on demand.

    """

    key: str
    title: str
    introduction: str = ""
    each: Callable[[Sheet], Iterable[Shown]] | None = None
    whole: Callable[[Frames], Iterable[Shown]] | None = None
    folded: str = "More"


def sheets(frames: Frames, plan: str) -> list[Sheet]:
    """Return the sheets of a plan, the largest scale first, including those of which nothing has begun."""
    if plan not in frames.by_plan:
        cells = {scale: cells_of(PLANS[plan], scale) for scale in reversed(scales.SCALES)}
        frames.by_plan[plan] = [sheet for scale, of in cells.items() if of for sheet in frames.sheets(scale, of)]
    return frames.by_plan[plan]


def commands(plan: str) -> list[str]:
    """Return the commands that run all cells of a plan, scale by scale."""
    cells = PLANS.get(plan)
    known = [scale for scale in scales.SCALES if cells and cells_of(cells, scale)]
    return [f"python -m reproduce run {scale} --tables {plan}" for scale in known]


def first(sentences: Sequence[Sentence]) -> str:
    """The one to show, of the largest scale that has an answer: a run that has begun is none."""
    return next((said.words for said in (*(s for s in sentences if s.known), *sentences)), "")


def section(exhibit: Exhibit, frames: Frames) -> Section:
    """The section of an exhibit."""
    stream: list[Shown] = [*exhibit.whole(frames)] if exhibit.whole else []
    every = sheets(frames, exhibit.key) if exhibit.each else []
    each = exhibit.each or (lambda _: ())
    made = [[_at_scale(shown, sheet.scale) for shown in each(sheet)] for sheet in every if sheet.begun]
    # A sheet of which a first run has ended, and which compares nothing yet, does not hide one that does.
    for of_sheet in sorted(made, key=_compares_nothing):
        stream += of_sheet
    stream = [shown for shown in stream if not isinstance(shown, Figure) or shown.svg]
    absent = [sheet for sheet in every if not sheet.begun]
    for scale in dict.fromkeys(sheet.scale for sheet in absent):
        datasets = [catalogue.by_name(of.dataset).title for of in absent if of.scale == scale and of.dataset]
        stream.append(f"Not run at the scale “{scale}”{f' ({conjunction(datasets)})' if datasets else ''}.")
    label = exhibit.title.partition(":")[0]
    sentences = [shown for shown in stream if isinstance(shown, Sentence)]
    said = [Finding(f"{label}: {shown.words}", shown.tone) for shown in sentences if shown.tone]
    findings = [*said, *(shown for shown in stream if isinstance(shown, Finding))]
    planned = sum(len(sheet.runs) for sheet in every)
    blocks = [shown for shown in stream if isinstance(shown, Table | Figure | Listing | str)]
    return Section(
        key=exhibit.key,
        title=exhibit.title,
        blocks=[*filter(None, [exhibit.introduction]), *blocks],
        findings=findings,
        folded=[shown.block for shown in stream if isinstance(shown, Folded)],
        folded_title=exhibit.folded,
        sentence=first(sentences),
        count=f"{sum(len(sheet.done) for sheet in every)} of {count(planned, 'cell')}" if every else "",
    )


def _compares_nothing(of_sheet: Sequence[Shown]) -> bool:
    return any(isinstance(shown, Sentence) and not shown.known for shown in of_sheet)


def _at_scale(shown: Shown, scale: str) -> Shown:
    """A table or figure with the scale that it is of."""
    if isinstance(shown, Folded):
        return Folded(_at_scale(shown.block, scale))  # type: ignore[arg-type]  # a block stays one
    return replace(shown, scale=scale) if isinstance(shown, Table | Figure) else shown
