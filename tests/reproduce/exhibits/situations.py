"""Write the texts of exhibits in made-up situations to situations.txt.

    python -m tests.reproduce.exhibits.situations

A situation is a function of a test module of this folder that writes records (`tests.sections.situation`). Its text
contains the sentence, the findings, the verdicts on claims, and the rows of tables that contain a result. Review every
change in `git diff`.
"""

import importlib
import tempfile
from dataclasses import replace
from pathlib import Path

from reproduce.exhibits._exhibit import section
from reproduce.presentation.content import Block, Entry, Role, Table
from reproduce.presentation.statements import ClaimVerdict
from reproduce.records.frames import Frames
from reproduce.records.results import read
from tests import messages, sections
from tests.golden import dump

FILE = Path(__file__).with_suffix(".txt")
#: Hints that repeat the number of runs.
OBVIOUS = ("a single run: no interval", "one seed: no range")
RESULTS = (Role.OURS, Role.GOOD, Role.ALERT)
#: Texts of missing results that are not worth a row.
ABSENT = ("", "not run", "not comparable yet", "not known", "reference", "\N{EN DASH}")


def names() -> list[str]:
    """Return the names of all situations of this folder, in the order of its modules."""
    for file in sorted(FILE.parent.glob("test_*.py")):
        importlib.import_module(f"tests.reproduce.exhibits.{file.stem}")
    return sorted(sections.SITUATIONS, key=lambda name: sections.SITUATIONS[name].write.__module__)


def text_of(name: str, root: Path) -> str:
    """Write the records of a situation to an empty folder, and return the text of the exhibit."""
    situation = sections.SITUATIONS[name]
    situation.write(root)
    frames = Frames(read(root))
    made = section(situation.exhibit, frames)
    blocks = [
        with_results(block)
        for block in (*made.blocks, *made.folded)
        if block != situation.exhibit.introduction
        and (isinstance(block, str) or block.key.startswith(situation.prefix))
    ]
    lines = [" ".join((situation.write.__doc__ or "").split())]
    lines += dump.lines_of(replace(made, blocks=blocks, folded=()))
    judged = sections.judged(made.key, frames)
    known = [one for one in judged if one.verdict is not ClaimVerdict.UNKNOWN]
    lines += [f"claim {one.claim.key}: {one.verdict.value}: {one.found}" for one in known]
    return "\n".join(line.rstrip() for line in lines)


def with_results(block: Block) -> Block:
    """Return a table without the rows whose results are all missing, and with roles and hints in the texts."""
    if not isinstance(block, Table):
        return block
    rows = [
        [_explained(entry) for entry in row]
        for row in block.rows
        if any(map(_is_result, row)) or not any(entry.role is Role.MISSING and entry.text for entry in row)
    ]
    left_out = len(block.rows) - len(rows)
    return replace(block, rows=rows, notes=[*block.notes, *[f"{left_out} rows without a result"] * bool(left_out)])


def _is_result(entry: Entry) -> bool:
    return entry.role in RESULTS or (entry.role is Role.MISSING and entry.text not in ABSENT)


def _explained(entry: Entry) -> Entry:
    role = f" [{entry.role.value}]" if entry.role in (Role.GOOD, Role.ALERT) else ""
    known = entry.role is Role.PLAIN or entry.text == "not run" or entry.hint in ("", *OBVIOUS)
    return replace(entry, text=f"{entry.text}{role}{'' if known else f' ({entry.hint})'}")


def write() -> None:
    """Write the text of every situation."""
    blocks = []
    for name in names():
        with tempfile.TemporaryDirectory() as folder:
            blocks.append(f"{messages.MARK}{name}\n{text_of(name, Path(folder))}\n")
    FILE.write_text("".join(blocks), encoding="utf-8")


if __name__ == "__main__":
    write()
