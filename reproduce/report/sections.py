"""Draw the sections of the report and compute the content of its top, with the help of other processes."""

import sys
import traceback
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple

from reproduce.exhibits import claims
from reproduce.exhibits._exhibit import Exhibit, all_exhibits, section
from reproduce.presentation.content import Finding, Role, Section
from reproduce.records import reading
from reproduce.records.frames import Frames
from reproduce.records.results import Results
from reproduce.report import processes
from reproduce.report.headline import Answer, Headline, first_screen
from reproduce.report.processes import Helpers, Queue
from reproduce.report.reproducibility import Reproducibility, reproducibility

EXHIBITS = all_exhibits()  # imported with this module, which helpers do while they wait
FAILED = "This section could not be made"
NOTICE_SECONDS = 60.0  # how long to wait for a helper process before printing a notice
#: Exhibits that run the engine or predict memory, which takes torch and its compiler. Only this process draws them,
#: since it needs both for the first screen, and importing them takes longer than most drawings.
ENGINE = ("scale_study", "staleness", "invertible", "table5", "table6", "schedules", "tradeoff", "table3")
#: Exhibits that need torch without its compiler. Helpers draw them last, if this process has not done so.
WITH_TORCH = ("table4", "figure5", "figure6")
#: Exhibits that take longest. Helpers start with them, so that all processes end at about the same time.
LONGEST = ("couplings", "depth", "table1", "corrections", "benchmarks", "stability", "forward_gradients")


class Top(NamedTuple):
    """Content that is computed from all records together."""

    answers: list[Answer]
    headlines: list[Headline]
    judged: list[claims.Judged]
    reproducibility: Reproducibility


class Drawn(NamedTuple):
    """Work of a helper: sections by their keys, and the verdicts on all claims if it was asked for them."""

    sections: dict[str, Section]
    judged: list[claims.Judged] | None = None


def draw(results: Results, helpers: Helpers | None = None) -> tuple[list[Section], Top]:
    """Return all sections in the order of the report, and the content of the top."""
    frames = Frames(results)
    made: dict[str, Section] = {}
    judged: list[claims.Judged] | None = None
    started = (
        [helpers.pool.submit(_help, results, judge=place == 0) for place in range(helpers.number)] if helpers else []
    )
    answers, headlines = _first_screen(frames)
    for exhibit in EXHIBITS:
        if exhibit.key in ENGINE:
            made[exhibit.key] = _section(exhibit, frames)
    if helpers:
        made |= _sections(frames, helpers.queue, last=False)
    for helper in started:
        drawn = _wait_for(helper)
        made |= drawn.sections
        judged = judged or drawn.judged
    for exhibit in EXHIBITS:  # all without helpers, and the sections of helpers that died
        if exhibit.key not in made:
            made[exhibit.key] = _section(exhibit, frames)
    judged = judged or claims.judge(frames)
    top = Top(answers, headlines, judged, reproducibility(judged, frames))
    return [made[exhibit.key] for exhibit in EXHIBITS], top


def _wait_for(helper: "Future[Drawn]") -> Drawn:
    """Return the work of a helper, or none if it died."""
    while True:
        try:
            return helper.result(NOTICE_SECONDS)
        except TimeoutError:
            print("waiting for a process that draws sections: it is slow, or was stopped", file=sys.stderr, flush=True)
        except BrokenProcessPool:
            print("a process that draws sections died; this one draws them", file=sys.stderr, flush=True)
            return Drawn({})


def _first_screen(frames: Frames) -> tuple[list[Answer], list[Headline]]:
    try:
        return first_screen(frames)
    except Exception:
        traceback.print_exc()
        return [], []


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
            findings=[Finding(f"{exhibit.title.partition(':')[0]}: {words}", Role.ALERT)],
            sentence=words,
        )


def _sections(frames: Frames, queue: Queue, *, last: bool) -> dict[str, Section]:
    """Make the sections that do not need the engine and that no other process has started, one after the other.

    Args:
        frames: The records.
        queue: Places in the order of work: this process begins in front, helpers begin at the end.
        last: Whether to take the last remaining section each time instead of the first.

    Returns:
        Sections by their keys.

    """
    order = {key: place for place, key in enumerate(("", *LONGEST))} | dict.fromkeys(WITH_TORCH, -1)
    in_order = sorted((e for e in EXHIBITS if e.key not in ENGINE), key=lambda exhibit: order.get(exhibit.key, 0))
    exhibits = (in_order[place] for place in queue.places(len(in_order), last=last))
    return {exhibit.key: _section(exhibit, frames) for exhibit in exhibits}


def _help(results: Results, *, judge: bool) -> Drawn:
    """Judge the claims in a helper process, if asked to, and then draw sections until none are left."""
    frames = Frames(results)
    judged = claims.judge(frames) if judge else None
    return Drawn(_sections(frames, processes.queue_of_helper, last=True), judged)
