"""What a table, figure or study of the report is, and the one driver that makes its section.

An exhibit is a declaration: its plan says which cells it needs (`reproduce.grids.plans`, under its key), `whole` and
`each` say what is shown, as a stream of what goes into the report, in order:

    Table, Figure, Listing, str     shown (a str is a paragraph)
    Folded(…)                       shown on demand
    Finding(…)                      a line of the summary
    Coverage(…)                     a few words: what is here of the published exhibit

`each` is asked for every sheet (`reproduce.records.frames.Sheet`: a scale, an arithmetic, a data set, a text) of which
a run has begun, the largest scale first; that the others have not been run, and how many runs are finished, is said
here and nowhere else. `whole` is asked once, before, for what is not of a sheet.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from reproduce.cells import catalogue
from reproduce.grids import scales
from reproduce.grids.plans import PLANS
from reproduce.records.frames import Frames, Sheet
from reproduce.show import statements
from reproduce.show.content import Block, Column, Entry, Finding, Section, Table, Tone, missing, text
from reproduce.show.content import estimate as estimate_entry
from reproduce.show.statements import Outcome, Statement, outcome_entry
from reproduce.show.statistics import Estimate
from reproduce.words import conjunction

__all__ = ["Claim", "Coverage", "Exhibit", "Folded", "Shown", "claims", "claims_finding", "section", "sheets"]


@dataclass(frozen=True)
class Folded:
    """A block that is shown on demand."""

    block: Block


@dataclass(frozen=True)
class Coverage:
    """In a few words, what is here of the published exhibit."""

    words: str


Shown = Block | Folded | Finding | Coverage


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


def sheets(frames: Frames, plan: str) -> Iterator[Sheet]:
    """The sheets of a plan, the largest scale first; those of which nothing has begun, too."""
    for scale in reversed(scales.SCALES):
        if cells := PLANS[plan](scale):
            yield from frames.sheets(scale, cells)


def section(exhibit: Exhibit, frames: Frames) -> Section:
    """The section of an exhibit."""
    stream: list[Shown] = [exhibit.introduction] if exhibit.introduction else []
    stream += exhibit.whole(frames) if exhibit.whole else ()
    if exhibit.each:
        every = list(sheets(frames, exhibit.key))
        for sheet in every:
            if sheet.begun:
                stream += [Coverage(sheet.progress), *exhibit.each(sheet)]
        absent: dict[str, list[str]] = {}
        for sheet in every:
            if not sheet.begun:
                title = catalogue.by_name(sheet.dataset).title if sheet.dataset else ""
                absent.setdefault(sheet.scale, []).append(title)
        for scale, datasets in absent.items():
            of = f" ({conjunction(datasets)})" if any(datasets) else ""
            stream.append(f"Not run at the scale “{scale}”{of}.")
        if not any(sheet.begun for sheet in every):
            stream.append(Finding(f"{exhibit.title.partition(':')[0]}: nothing has been run yet.", Tone.MISSING))
    coverage = [shown.words for shown in stream if isinstance(shown, Coverage)]
    return Section(
        exhibit.key,
        exhibit.title,
        [shown for shown in stream if not isinstance(shown, Folded | Finding | Coverage)],
        [shown for shown in stream if isinstance(shown, Finding)],
        "; ".join(coverage) or ("not run" if exhibit.each else ""),
        folded=[shown.block for shown in stream if isinstance(shown, Folded)],
        folded_title=exhibit.folded,
    )


# --- what the paper states


@dataclass(frozen=True)
class Claim:
    """What our data say to a statement of the paper about one subject.

    Attributes:
        subject: such as a network.
        estimates: what was looked at, by its name.
        outcome: what follows.

    """

    subject: str
    estimates: dict[str, Estimate | None]
    outcome: Outcome


def claims(
    statement: Statement, found: Iterable[Claim], *, key: str, subject: str, caption: str, note: str
) -> Iterator[Shown]:
    """The table of a statement and what our data say to it, a row a claim."""
    found = list(found)
    names = list(found[0].estimates)
    columns = [Column(subject, numeric=False), Column("stated", numeric=False), *map(Column, names)]
    columns.append(Column("our data", numeric=False))

    def row(claim: Claim) -> list[Entry]:
        entries = [estimate_entry(e, 2, sign=True) if e else missing("no pair") for e in claim.estimates.values()]
        return [text(claim.subject), statement.entry, *entries, outcome_entry(claim.outcome)]

    yield Table(
        key=f"{key}-statement",
        caption=f"The paper's statement, and what these runs say ({caption}).",
        columns=columns,
        rows=[row(claim) for claim in found],
        notes=(note,),
    )


def claims_finding(
    title: str, scale: str, statement: Statement, found: Iterable[tuple[str, Claim]]
) -> Iterator[Finding]:
    """The line of the summary: the statement, and claim by claim what our data say."""
    said = {words: claim.outcome for words, claim in found}
    if said:
        words = f"{title}. Stated is {statement.quoted}; {'; '.join(said)}."
        yield Finding(words, statements.tone(scale, said.values()))
