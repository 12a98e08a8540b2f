"""The first page: how much has been run, what came out of it, and what needs attention.

Thirty findings in one list are read by nobody. Here what needs attention stands first, with the exhibit that it belongs
to, then at what scale anything has been run, then the other findings under their exhibits: what a reader came for. A
line for each exhibit and study, with what is missing, is long and comes last.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reproduce import published
from reproduce.exhibits.accounts import STUDIES, Account, Study, accounts, keys
from reproduce.grids import scales
from reproduce.published import Mark, Row
from reproduce.records.record import Status
from reproduce.records.results import Results
from reproduce.show.content import Column, Entry, Finding, Section, Table, Tone, missing, none, number, text

__all__ = ["Part", "coverage", "parts", "scales_run"]

#: Sections that say where the others come from; whatever is neither here nor in the paper is a study.
GROUND = ("schedules", "provenance")


@dataclass(frozen=True)
class Part:
    """Sections under one heading."""

    title: str
    sections: Sequence[Section]


def parts(sections: Sequence[Section]) -> list[Part]:
    """The paper's exhibits in its order, the studies beyond it, then where everything comes from."""
    order = {key: place for place, key in enumerate(keys())}
    of_paper = {row["key"] for row in published.read("exhibits")}
    in_order = sorted(sections, key=lambda section: order.get(section.key, len(order)))
    split = {
        "The paper's tables and figures": [s for s in in_order if s.key in of_paper],
        "Beyond the paper": [s for s in in_order if s.key not in of_paper and s.key not in GROUND],
        "Where the numbers come from": [s for key in GROUND for s in in_order if s.key == key],
    }
    return [Part(title, own) for title, own in split.items() if own]


def attention(sections: Sequence[Section]) -> list[tuple[Section, Finding]]:
    """The findings that a reader must not miss."""
    return [(s, finding) for s in sections for finding in s.findings if finding.tone is Tone.ALERT]


def words(section: Section, finding: Finding) -> str:
    """What a finding says, where its section's name stands before it."""
    rest = finding.text.removeprefix(f"{label(section)}: ")
    return rest[0].upper() + rest[1:]


def other_findings(sections: Sequence[Section]) -> list[tuple[Section, list[Finding]]]:
    """The other findings, under their sections."""
    found = ((s, [finding for finding in s.findings if finding.tone is not Tone.ALERT]) for s in sections)
    return [(section, findings) for section, findings in found if findings]


def label(section: Section) -> str:
    """The section's name in a list: "Table 1", not what it is about."""
    return section.title.partition(":")[0]


def scales_run(results: Results) -> Table:
    """What the scales are, and how many of their cells have been run."""
    rows = []
    for name in (*scales.SCALES, *sorted({run.cell.scale for run in results.runs} - set(scales.SCALES))):
        title = scales.SCALES[name].title.partition(": ")[2] if name in scales.SCALES else "cells by hand"
        own = [run.state for run in results.runs if run.cell.scale == name]
        failed = [state.reason for state in own if state.status is Status.FAILED]
        begun = sum(state.status is Status.PARTIAL for state in own)
        done = sum(state.status is Status.DONE for state in own)
        counts = (len(own), done, failed.count("diverged"), failed.count("out of memory"), begun)
        rows.append([text(name), text(title), *(number(amount, 0, tone=Tone.PLAIN) for amount in counts)])
    return Table(
        key="scales",
        caption="The scales, and their cells: a cell is one configuration with one seed.",
        columns=[
            Column("scale", numeric=False),
            Column("what it is", numeric=False),
            *(Column(name, group="cells") for name in ("planned", "finished", "diverged", "out of memory", "begun")),
        ],
        rows=rows,
        notes=("Results of different scales never share a column. Only “paper” compares with the published values.",),
    )


def coverage(results: Results, sections: Sequence[Section]) -> Table:
    """A line for each exhibit of the paper and each study: what was published or asked, and what is here."""
    by_key = {section.key: section for section in sections}
    counted = accounts(results)
    lines: list[Row | Study] = [*published.read("exhibits"), *STUDIES]
    return Table(
        key="coverage",
        caption="What the paper reports, what was asked beyond it, and what is here of both.",
        columns=[
            Column("exhibit", numeric=False),
            Column("content", numeric=False),
            Column("published values", numeric=False),
            *(Column(scale, group="cells finished") for scale in scales.SCALES),
            Column("here", numeric=False),
        ],
        rows=[_line(line, by_key, counted) for line in lines],
        notes=("Cells that two exhibits share are counted for both.",),
    )


def _line(line: Row | Study, by_key: Mapping[str, Section], counted: Mapping[tuple[str, str], Account]) -> list[Entry]:
    if isinstance(line, Study):
        key, title, content = line.key, line.title, f"Asked: {line.question}"
        values = none("beyond the paper")
    else:
        key, title, content = line["key"], line["title"], line["content"]
        values = _published_values(line)
    section = by_key.get(key)
    return [
        Entry(title, anchor=section.key if section else ""),
        text(content),
        values,
        *(_finished(counted.get((key, scale))) for scale in scales.SCALES),
        text(section.coverage or "see there") if section else missing("not run"),
    ]


def _published_values(row: Row) -> Entry:
    stated = f"; stated ({row['statement_source']}): {row['statement']}" if row["statement"] else ""
    return Entry(row.mark.value + stated, tone=Tone.MISSING if row.mark is Mark.UNKNOWN else Tone.PLAIN)


def _finished(account: Account | None) -> Entry:
    if account is None:
        return none("needs no cell of this scale")
    failed = "".join(f"; {amount} {reason}" for reason, amount in account.failed.items())
    hint = f"{account.begun} begun, {account.not_run} not run"
    shown = f"{account.done} of {account.planned}{failed}"
    return Entry(shown, account.done, Tone.OURS if account.done else Tone.MISSING, hint)
