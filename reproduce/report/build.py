"""Build one self-contained HTML file, and the verdicts as JSON, from a folder of records.

A report that loads its style, plots or data from another place breaks when that place disappears. Everything is
therefore inline: style, script, and drawings as SVG. A copy of the file is complete. The page is also complete without
its script, which only sorts tables, hides what is not selected, and saves a table as CSV or a drawing as a file on
demand. The page's content security policy forbids all loading and every other script. The same records give the same
file, byte for byte, because nothing in it depends on when or where it was made. `verdicts.json` next to it contains the
verdict on every claim of the paper, with its evidence and the cells that it is based on.
"""

import base64
import gc
import hashlib
import json
import multiprocessing
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.sharedctypes import SynchronizedArray
from pathlib import Path
from typing import NamedTuple

import jinja2

from reproduce import published
from reproduce.exhibits import claims
from reproduce.exhibits._exhibit import Exhibit, commands, section
from reproduce.exhibits.registry import EXHIBITS
from reproduce.grids import scales
from reproduce.grids.grid import grid_of
from reproduce.presentation.content import Figure, Finding, Listing, Role, Section, Table
from reproduce.presentation.statements import ClaimVerdict
from reproduce.presentation.statistics import MARGIN_POINTS
from reproduce.records import reading
from reproduce.records.frames import Frames
from reproduce.records.results import Results, read
from reproduce.records.storage import check_own, write_atomically
from reproduce.report import citing, layout, overview
from reproduce.report.headline import Answer, Headline, first_screen
from reproduce.report.readme import contents, update
from reproduce.report.reproducibility import Reproducibility, counted, reproducibility
from reproduce.text import count

FAILED = "This section could not be made"
VERDICTS = "verdicts.json"  # written next to the page
SCRIPT_PLACE = "HASH-OF-THE-SCRIPT"  # placeholder in the page for the hash of its script
PATIENCE_SECONDS = 60.0  # how long to wait for a helper process before printing a notice
#: Exhibits that need torch or the run sets of all plans. This process draws them while the others still have other
#: exhibits to draw: importing torch in another process takes longer than drawing most exhibits.
OURS = (
    *("staleness", "scale_study", "invertible", "schedules", "tradeoff", "table5", "table3", "figure5", "table6"),
    *("table4", "figure6", "cost"),
)


def build(records_root: Path, output: Path, *, jobs: int = 1, readme: Path | None = None) -> Path:
    """Write the report on all records under `records_root` to the file `output`, and return that path.

    Args:
        records_root: Folder of the records.
        output: File of the page.
        jobs: Number of processes that draw its sections.
        readme: README whose results and pictures are updated too; None to update no README.

    Raises:
        StorageFullError: If the disk is full.
        StorageError: If the file of the verdicts exists and was not written by a report.
        ReadmeError: If the README has no place for the results.

    """
    check_own(output.with_name(VERDICTS), b'{\n  "verdicts"')
    expected = [cell for name in scales.SCALES for cell in grid_of(name)]
    report = render(read(records_root, expected), jobs=jobs)
    if readme is not None:
        update(readme, contents(report.top.answers, report.top.headlines, report.top.judged))
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, report.html.encode())
    write_atomically(output.with_name(VERDICTS), report.verdicts.encode())
    return output


class Top(NamedTuple):
    """Content that is computed from all records together."""

    answers: list[Answer]
    headlines: list[Headline]
    judged: list[claims.Judged]
    reproducibility: Reproducibility


class Report(NamedTuple):
    """The page as HTML, the verdicts as JSON, and the content of the top of the page."""

    html: str
    verdicts: str
    top: Top


def render(results: Results, *, jobs: int = 1) -> Report:
    """Return the report on the results."""
    sections, top = _made(results, jobs)
    claims_of = claims.by_exhibit(top.judged)
    sections = [replace(of, status=claims.summarize(claims_of.get(of.key, []))) for of in sections]
    parts = overview.parts(sections)
    in_order = [section for part in parts for section in part.sections]
    page = (
        _environment()
        .get_template("page.html")
        .render(
            script_place=SCRIPT_PLACE,
            paper_title=published.PAPER_TITLE,
            paper_reference=published.PAPER_REFERENCE,
            begun=results.begun,
            newest=overview.newest(results),
            answers=top.answers,
            headlines=top.headlines,
            judged=top.judged,
            claims_of=claims_of,
            claims_sentence=counted(top.judged),
            titles={of.key: overview.label(of) for of in sections},
            reproducibility=top.reproducibility,
            verdict_meanings=list(ClaimVerdict),
            parts=parts,
            attention=overview.attention(in_order),
            marks=published.Mark,
            margin=MARGIN_POINTS,
            citation=citing.entries(results),
        )
    )
    script = page.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    verdicts = json.dumps({"verdicts": [of.to_dict() for of in top.judged]}, indent=2, ensure_ascii=False) + "\n"
    return Report(page.replace(SCRIPT_PLACE, digest, 1), verdicts, top)


def _made(results: Results, jobs: int) -> tuple[list[Section], Top]:
    """Return the sections and the content of the top, computed by `jobs` processes, including this one."""
    context = multiprocessing.get_context("spawn")  # a forked child of a process with threads may deadlock
    begun, jobs = context.Array("i", [0, 0]), min(jobs, len(EXHIBITS))
    with ProcessPoolExecutor(jobs, context, _receive, (begun, os.getpid())) as pool, _uncollected():
        helpers = [pool.submit(_help, results) for _ in range(1, jobs)]
        frames = Frames(results)
        answers, headlines = _heads(frames)  # runs while the helpers import their modules
        judged = claims.judge(frames)
        top = Top(answers, headlines, judged, reproducibility(judged, frames))
        made = _sections(frames, begun, last=False)
        for helper in helpers:
            made |= _helped(helper)
    for exhibit in EXHIBITS:  # draw the sections of helpers that died
        if exhibit.key not in made:
            made[exhibit.key] = _section(exhibit, frames)
    return [made[exhibit.key] for exhibit in EXHIBITS], top


def _helped(helper: "Future[dict[str, Section]]") -> dict[str, Section]:
    """Return the sections of a helper, or none if it died."""
    while True:
        try:
            return helper.result(PATIENCE_SECONDS)
        except TimeoutError:
            print("waiting for a process that draws sections: it is slow, or was stopped", file=sys.stderr, flush=True)
        except BrokenProcessPool:
            print("a process that draws sections died; this one draws them", file=sys.stderr, flush=True)
            return {}


def _heads(frames: Frames) -> tuple[list[Answer], list[Headline]]:
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


def _sections(frames: Frames, begun: "SynchronizedArray[int]", *, last: bool) -> dict[str, Section]:
    """Make the sections that no other process has started, one after the other.

    Args:
        frames: The records.
        begun: Numbers of sections started by all processes, from the front and from the back of the same order.
        last: Whether to take the last remaining section each time instead of the first.

    Returns:
        Sections by their keys.

    """
    made: dict[str, Section] = {}
    in_order = sorted(EXHIBITS, key=lambda exhibit: exhibit.key not in OURS)
    while True:
        with begun.get_lock():
            if begun[0] + begun[1] >= len(in_order):
                return made
            place = begun[last]
            begun[last] += 1
        exhibit = in_order[-1 - place if last else place]
        made[exhibit.key] = _section(exhibit, frames)


_begun: "SynchronizedArray[int]"  # the counters of `_sections`, in a helper process


def _receive(begun: "SynchronizedArray[int]", parent: int) -> None:
    global _begun
    _begun = begun

    def end_with_the_parent() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)  # the parent was killed, and this process would wait for its pipe without end

    threading.Thread(target=end_with_the_parent, daemon=True).start()


def _help(results: Results) -> dict[str, Section]:
    with _uncollected():
        return _sections(Frames(results), _begun, last=True)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable the cyclic garbage collector, which took a third of the time.

    Simulations create hundreds of thousands of small objects without cycles. The figures keep only 60 MB in total.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("reproduce.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = _prose
    environment.filters["label"] = overview.label
    environment.filters["sentence"] = overview.sentence
    environment.filters["count"] = count
    environment.filters["commands"] = lambda section: commands(section.key)
    environment.filters |= {name: getattr(layout, name) for name in layout.__all__}
    environment.filters["first_is_code"] = lambda table: any(row[0].code for row in table.rows[:1])
    environment.tests["table"] = lambda block: isinstance(block, Table)
    environment.tests["figure"] = lambda block: isinstance(block, Figure)
    environment.tests["listing"] = lambda block: isinstance(block, Listing)
    return environment


def _prose(words: str) -> str:
    """Use typographic apostrophes, and keep percent signs on the line of their numbers."""
    words = re.sub(r"(?<=\w)'(?=\w)", "\N{RIGHT SINGLE QUOTATION MARK}", words)
    return words.replace(" %", "\N{NO-BREAK SPACE}%")
