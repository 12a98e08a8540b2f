"""Make one self-contained HTML file from the records.

A report that loads its style, plots or data from another place breaks when that place disappears. Everything is
therefore inline: style, script, and drawings as SVG. A copy of the file is complete. The page is also complete without
its script, which only sorts tables, hides what is not selected, and saves a table as CSV or a drawing as a file on
demand. The page's content security policy forbids all loading and every other script. The same records give the same
file, byte for byte, because nothing in it depends on when or where it was made.
"""

import base64
import hashlib
import re
from typing import NamedTuple

import jinja2

from reproduce import published
from reproduce.exhibits import claims
from reproduce.exhibits._exhibit import all_exhibits, commands
from reproduce.presentation.content import Figure, Listing, Table
from reproduce.presentation.statements import ClaimVerdict
from reproduce.presentation.statistics import MARGIN_POINTS
from reproduce.records.frames import Frames
from reproduce.records.results import Results
from reproduce.report import layout, overview
from reproduce.report.headline import QUESTION, TERMS, Answer
from reproduce.report.sections import make_answers, make_section
from reproduce.text import count

SCRIPT_PLACE = "HASH-OF-THE-SCRIPT"  # placeholder in the page for the hash of its script


class Report(NamedTuple):
    """The page as HTML, and the content of its top, which is computed from all records together."""

    html: str
    answers: list[Answer]
    judged: list[claims.Judged]


def render(results: Results) -> Report:
    """Return the report on the results."""
    frames = Frames(results)
    answers = make_answers(frames)
    sections = [make_section(exhibit, frames) for exhibit in all_exhibits()]
    judged = claims.judge(frames)
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
            answers=answers,
            question=QUESTION,
            terms=TERMS,
            judged=judged,
            claims_sentence=claims.count_verdicts(judged),
            titles={section.key: overview.label(section) for section in sections},
            not_published=published.not_published(),
            verdict_meanings=list(ClaimVerdict),
            parts=parts,
            attention=overview.attention(in_order),
            marks=published.Mark,
            margin=MARGIN_POINTS,
            citation=f"{published.PAPER_CITATION}\n\n{published.SUITE_CITATION}",
        )
    )
    script = page.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Report(page.replace(SCRIPT_PLACE, digest, 1), answers, judged)


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("reproduce.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = _prose
    environment.filters["count"] = count
    environment.globals |= {"layout": layout, "overview": overview, "commands": commands}
    environment.filters["first_is_code"] = lambda table: any(row[0].code for row in table.rows[:1])
    environment.tests["table"] = lambda block: isinstance(block, Table)
    environment.tests["figure"] = lambda block: isinstance(block, Figure)
    environment.tests["listing"] = lambda block: isinstance(block, Listing)
    return environment


def _prose(words: str) -> str:
    """Use typographic apostrophes, and keep percent signs on the line of their numbers."""
    words = re.sub(r"(?<=\w)'(?=\w)", "\N{RIGHT SINGLE QUOTATION MARK}", words)
    return words.replace(" %", "\N{NO-BREAK SPACE}%")
