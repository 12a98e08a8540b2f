"""Make the answers and the sections of the report. One that fails does not prevent the others."""

import traceback

from reproduce.exhibits._exhibit import Exhibit, section
from reproduce.presentation.content import Finding, Role, Section
from reproduce.records import reading
from reproduce.records.frames import Frames
from reproduce.report.headline import Answer, first_screen

FAILED = "This section could not be made"


def make_answers(frames: Frames) -> list[Answer]:
    """Return the answers of the first screen; none if they fail."""
    try:
        return first_screen(frames)
    except Exception:
        traceback.print_exc()
        return []


def make_section(exhibit: Exhibit, frames: Frames) -> Section:
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
