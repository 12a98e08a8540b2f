"""Draw the sections of the report and compute the content of its top."""

import traceback
from typing import NamedTuple

from reproduce.exhibits import claims
from reproduce.exhibits._exhibit import Exhibit, all_exhibits, section
from reproduce.presentation.content import Finding, Role, Section
from reproduce.records import reading
from reproduce.records.frames import Frames
from reproduce.records.results import Results
from reproduce.report.headline import Answer, first_screen

FAILED = "This section could not be made"


class Top(NamedTuple):
    """Content that is computed from all records together."""

    answers: list[Answer]
    judged: list[claims.Judged]


def draw(results: Results) -> tuple[list[Section], Top]:
    """Return all sections in the order of the report, and the content of the top."""
    frames = Frames(results)
    answers = _first_screen(frames)
    sections = [_section(exhibit, frames) for exhibit in all_exhibits()]
    return sections, Top(answers, claims.judge(frames))


def _first_screen(frames: Frames) -> list[Answer]:
    try:
        return first_screen(frames)
    except Exception:
        traceback.print_exc()
        return []


def _section(exhibit: Exhibit, frames: Frames) -> Section:
    """Return the section of an exhibit; if it fails, a section with the error, since the others are still useful."""
    try:
        return section(exhibit, frames)
    except Exception as error:
        traceback.print_exc()
        words = f"{FAILED}: {type(error).__name__}: {reading.short(str(error))}."
        advice = "`python -m reproduce records check` names damaged records; the traceback is on the terminal."
        return Section(
            key=exhibit.key,
            title=exhibit.title,
            blocks=[f"{words} {advice}"],
            findings=[Finding(words, Role.ALERT)],
            sentence=words,
        )
