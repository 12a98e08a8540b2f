"""Write the results of the README: the answers with three pictures, and the verdicts on the paper's main claims.

They are generated from the records, like the report, so no number is typed by hand and no picture is older than its
records. Pictures are SVG files next to the documentation. Each text is in the README between two comments:

    <!-- answers: written by `python -m reproduce report --readme README.md` -->
    ...
    <!-- answers: end -->
"""

import re
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

from reproduce.exhibits.claims import Judged, count_verdicts
from reproduce.presentation.content import NARROW_SPACE, Table
from reproduce.presentation.statements import ClaimVerdict
from reproduce.records.storage import write_atomically
from reproduce.report.headline import TERMS, Answer

PICTURES = "docs/results"
BEGIN, END = "<!-- {}: written by `python -m reproduce report --readme README.md` -->", "<!-- {}: end -->"
FOLDED = '<details markdown="1">\n<summary>In numbers</summary>'  # GitHub needs no attribute, Python-Markdown does
LINE = 120  # maximum number of characters in a line of text
#: Exhibits whose decided claims the README lists. The formulas of Table 1 are only counted.
EXHIBITS = ("table2", "table3", "table4", "table5", "figure4", "figure5", "figure6")
UNDECIDED = (ClaimVerdict.OPEN, ClaimVerdict.UNKNOWN)


class ReadmeError(ValueError):
    """A README that is not text, or that has no place for the results."""


def contents(answers: list[Answer], judged: list[Judged]) -> tuple[dict[str, str], dict[str, bytes]]:
    """Return the texts by the names of their places, and the pictures by the names of their files.

    Args:
        answers: Answers of the report's first screen.
        judged: All claims with their verdicts. Claims without runs are counted, not listed.

    """
    pictures, parts = {}, []
    for answer in answers:
        name = f"{answer.figure.key.removeprefix('headline-')}.svg"
        pictures[name] = _on_white(answer.figure.svg).encode()
        parts += [_wrap(f"**{answer.title}**"), f"![{answer.figure.title}]({PICTURES}/{name})"]
        numbers = [part for table in answer.tables for part in _table(table)]
        parts += [_wrap(answer.figure.caption), FOLDED, *numbers, _wrap(answer.text), "</details>"]
    if answers:
        parts.append(_wrap(TERMS))
    decided = [one for one in judged if one.claim.exhibit in EXHIBITS and one.verdict not in UNDECIDED]
    rows = [(one.claim.sentence, one.found, one.verdict.value) for one in decided]
    lead = "The report lists all; decided beyond the formulas of Table 1 are:"
    table = [_markdown([("the paper", "this suite", "verdict"), ("---",) * 3, *rows])]
    if not rows:
        lead, table = "No claim beyond the formulas of Table 1 is decided; the report lists all.", []
    verdicts = [_wrap(f"{count_verdicts(judged)} {lead}"), *table]
    texts = {"answers": "\n\n".join(parts), "verdicts": "\n\n".join(verdicts)}
    return {name: text.replace(NARROW_SPACE, " ") for name, text in texts.items()}, pictures


def update(readme: Path, texts: Mapping[str, str], pictures: Mapping[str, bytes]) -> None:
    """Write the results into a README and the pictures next to it.

    Args:
        readme: The file.
        texts: Texts by the names of their places.
        pictures: SVG files by their names.

    Raises:
        ReadmeError: If the file is not text in UTF-8, or does not have the two comments of every text.
        StorageError: If a file cannot be written.

    """
    try:
        page = readme.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ReadmeError(f"{readme} is not text in UTF-8: {error}") from error
    for name, text in texts.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, found, rest = page.partition(begin)
        _, ended, after = rest.partition(end)
        if not found or not ended:
            raise ReadmeError(f"{readme} has no place for the {name}: put the lines {begin!r} and {end!r} into it")
        page = f"{before}{begin}\n\n{text}\n\n{end}{after}"
    folder = readme.parent / PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in pictures.items():
        write_atomically(folder / name, content)
    write_atomically(readme, page.encode())


def _table(table: Table) -> list[str]:
    """Return the caption, the lines and the notes of a table in Markdown. An entry that is a heading is in its row."""
    heads = [f"{head.group}: {head.name}" if head.group else head.name for head in table.columns]
    rules = ["---:" if head.numeric else "---" for head in table.columns]
    lines = [heads, rules, *([entry.text for entry in row] for row in table.rows)]
    return [_wrap(table.caption), _markdown(lines), *map(_wrap, table.notes)]


def _markdown(lines: Iterable[Iterable[str]]) -> str:
    """Return the lines of a table in Markdown: the heads, the rules, and the rows."""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _wrap(text: str) -> str:
    """Break a text into lines at spaces. Escape asterisks, which would begin a list or emphasis."""
    escaped = re.sub(r"(?<!\*)\*(?!\*)", r"\\*", text)
    return textwrap.fill(escaped, LINE, break_long_words=False, break_on_hyphens=False)


def _on_white(svg: str) -> str:
    """Add a white background: the colours are for a light page, and a README may be shown on a dark one."""
    head, close, rest = svg.partition(">")
    return f'{head}{close}<rect width="100%" height="100%" fill="#fff"/>{rest}'
