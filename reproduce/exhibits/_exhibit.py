"""Define the type of a table, figure or study of the report, and the one function that makes its section.

An exhibit is a declaration. The plan with its key defines the cells that it needs (`reproduce.grids.plans`), and
`exhibits.toml` its title, its introduction, and its notes, captions and other texts of more than a line. Its functions
`whole` and `each` yield its content in order:

    Table, Figure, Listing, str     shown (a str is a paragraph)
    Folded(…)                       shown on demand
    Finding(…)                      a line of the summary
    Sentence(…)                     the result in one sentence; of several, the first with a value

`section` calls `each` for every run set (`reproduce.records.frames.RunSet`: a scale, an arithmetic, a data set, a
text) of which a run has begun, the largest scale first. A run set that compares nothing yet comes after those that do.
Only `section` lists the run sets that have not been run and counts the finished runs. It calls `whole` once, before
`each`, for content that does not belong to a run set. `reproduce.exhibits.claims` compares our runs with the claims.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module, resources
from typing import Any

from reproduce.cells import catalogue
from reproduce.grids import scales
from reproduce.grids.grid import cells_of
from reproduce.grids.plans import PLANS
from reproduce.presentation.content import Block, Figure, Finding, Listing, Role, Section, Table
from reproduce.records.frames import Frames, RunSet
from reproduce.text import conjunction, count


@dataclass(frozen=True)
class Folded:
    """A block that is shown on demand."""

    block: Block


@dataclass(frozen=True)
class Sentence:
    """One-sentence summary of an exhibit. With a role it is also listed as a finding."""

    words: str
    role: Role | None = None
    known: bool = True  # whether it contains a value; otherwise it says that nothing has been run


def result(known: object, words: str, otherwise: str, *, finding: bool = False) -> Sentence:
    """Return the sentence `words`, which contains what is known, or `otherwise` if nothing is known yet.

    With `finding` it is also listed as a finding.
    """
    role = Role.PLAIN if known else Role.MISSING
    return Sentence(words if known else otherwise, role if finding else None, known=bool(known))


Shown = Block | Folded | Finding | Sentence


@dataclass(frozen=True)
class Exhibit:
    """A table, a figure or a study.

    Attributes:
        key: Key of its section, of its plan, and of the published exhibit (`table3`).
        title: Heading of the section.
        introduction: First paragraph of the section.
        each: Yields the content of a run set of its plan.
        whole: Yields the content that appears once, before that of the run sets.
        folded: Heading of the content that is shown on demand.

    """

    key: str
    title: str
    introduction: str = ""
    each: Callable[[RunSet], Iterable[Shown]] | None = None
    whole: Callable[[Frames], Iterable[Shown]] | None = None
    folded: str = "More"


@cache
def _texts() -> Mapping[str, Mapping[str, Any]]:
    """Read the texts of all exhibits, and then those of other parts of the report."""
    return tomllib.loads((resources.files("reproduce.exhibits") / "exhibits.toml").read_text(encoding="utf-8"))


def declare(
    key: str,
    each: Callable[[RunSet], Iterable[Shown]] | None = None,
    whole: Callable[[Frames], Iterable[Shown]] | None = None,
    **values: object,
) -> Exhibit:
    """Return the exhibit with the texts of its key in `exhibits.toml`; `values` fill in its introduction."""
    texts = _texts()[key]
    introduction = texts.get("introduction", "").format(**values)
    return Exhibit(key, texts["title"], introduction, each, whole, texts.get("folded", "More"))


def text_of(key: str, name: str, **values: object) -> str:
    """Return a caption or another text of an exhibit from `exhibits.toml`; `values` fill it in."""
    text: str = _texts()[key]["texts"][name].format(**values)
    return text


def notes(key: str, table: str, **values: object) -> list[str]:
    """Return the remarks below a table of an exhibit from `exhibits.toml`; `values` fill them in."""
    return [note.format(**values) for note in _texts()[key]["notes"][table]]


@cache
def all_exhibits() -> tuple[Exhibit, ...]:
    """Return all exhibits in the order of `exhibits.toml`."""
    return tuple(
        import_module(f"reproduce.exhibits.{key}").EXHIBIT for key, texts in _texts().items() if "title" in texts
    )


def run_sets(frames: Frames, plan: str) -> list[RunSet]:
    """Return the run sets of a plan, the largest scale first, including those without any runs."""
    if plan not in frames.by_plan:
        cells = {scale: cells_of(PLANS[plan], scale) for scale in reversed(scales.SCALES)}
        frames.by_plan[plan] = [
            run_set
            for scale, cells_of_scale in cells.items()
            if cells_of_scale
            for run_set in frames.run_sets(scale, cells_of_scale)
        ]
    return frames.by_plan[plan]


def commands(plan: str) -> list[str]:
    """Return the commands that run all cells of a plan, one for each scale."""
    cells = PLANS.get(plan)
    known = [scale for scale in scales.SCALES if cells and cells_of(cells, scale)]
    return [f"python -m reproduce run {scale} --exhibits {plan}" for scale in known]


def section(exhibit: Exhibit, frames: Frames) -> Section:
    """Return the section of an exhibit."""
    stream: list[Shown] = [*exhibit.whole(frames)] if exhibit.whole else []
    planned_sets = run_sets(frames, exhibit.key) if exhibit.each else []
    each = exhibit.each or (lambda _: ())
    made = [[_at_scale(item, run_set.scale) for item in each(run_set)] for run_set in planned_sets if run_set.begun]
    # A run set that compares nothing yet comes last, so that it does not hide one that does, and without its figures,
    # which would show single dots.
    made.sort(key=_compares_nothing)
    for of_run_set in made:
        dots = _compares_nothing(of_run_set) and not _compares_nothing(made[0])
        stream += [item for item in of_run_set if not (dots and isinstance(item, Figure))]
    stream = [item for item in stream if not isinstance(item, Figure) or item.svg]
    absent = [run_set for run_set in planned_sets if not run_set.begun]
    for scale in dict.fromkeys(run_set.scale for run_set in absent):
        datasets = [
            catalogue.by_name(run_set.dataset).title for run_set in absent if run_set.scale == scale and run_set.dataset
        ]
        stream.append(f"Not run at the scale “{scale}”{f' ({conjunction(datasets)})' if datasets else ''}.")
    sentences = [item for item in stream if isinstance(item, Sentence)]
    known = [sentence for sentence in sentences if sentence.known]
    first = next((sentence.words for sentence in known or sentences), "")
    summaries = [
        Finding(item.words, item.role)
        for item in sentences
        if item.role and (item.words != first or item.role is Role.ALERT)
    ]
    findings = [*summaries, *(item for item in stream if isinstance(item, Finding))]
    planned = sum(len({*run_set.planned, *run_set.rows}) for run_set in planned_sets)
    blocks = [item for item in stream if isinstance(item, Table | Figure | Listing | str)]
    return Section(
        key=exhibit.key,
        title=exhibit.title,
        blocks=[*filter(None, [exhibit.introduction]), *blocks],
        findings=findings,
        folded=[item.block for item in stream if isinstance(item, Folded)],
        folded_title=exhibit.folded,
        sentence=first,
        count=f"{sum(run_set.number_done for run_set in planned_sets)} of {count(planned, 'cell')}"
        if planned_sets
        else "",
    )


def _compares_nothing(of_run_set: Sequence[Shown]) -> bool:
    return any(isinstance(item, Sentence) and not item.known for item in of_run_set)


def _at_scale(item: Shown, scale: str) -> Shown:
    """Return a table or figure with the name of its scale; return other content unchanged."""
    if isinstance(item, Folded):
        return Folded(_at_scale(item.block, scale))  # type: ignore[arg-type]  # a block stays one
    return replace(item, scale=scale) if isinstance(item, Table | Figure) else item
