"""What the paper reports (arXiv 2406.02052), as data, each value with a mark of how well it is known.

The obvious place for a published number is the line of code that compares with it. There it gets retyped, rounded and
separated from where it came from. Here the numbers live in CSV files beside this module, one file a table, and come out
as `Row`s that carry a `Mark`:

    paper          read in the text of its paper
    second-hand    quoted from its paper (of PETRA, version 2) by others; the table itself was not at hand
    unknown        its paper reports it, its values were not at hand; shown as unknown, never invented

A file with a `source` column marks row by row; the others were read in the paper as a whole. `exhibits.csv` lists
every table and figure of the paper, those of unknown values too. `claims.json` has the sentences that the suite tests,
each with a predicate and the cells that decide it (`reproduce.exhibits.claims`). `pareprop.csv` and `bdia.csv` are
of other papers (arXiv 2306.09342 and 2407.09093), with the same marks. `forward_gradients.csv` has what others than
arXiv 2306.06968, of which no value was at hand, report of forward gradients on CIFAR-10, on other networks than ours.
"""

import csv
import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

PAPER_TITLE = "PETRA: Parallel End-to-end Training with Reversible Architectures"
PAPER_REFERENCE = "ICLR 2025, arXiv:2406.02052"
PAPER_CITATION = f"""\
@inproceedings{{rivaud2025petra,
  title     = {{{{{PAPER_TITLE}}}}},
  author    = {{Rivaud, Stéphane and Fournier, Louis and Pumir, Thomas and Belilovsky, Eugene and
               Eickenberg, Michael and Oyallon, Edouard}},
  booktitle = {{The Thirteenth International Conference on Learning Representations}},
  year      = {{2025}},
  note      = {{arXiv:2406.02052}}
}}"""

#: data files by name, with the mark of rows in files without a `source` column
_FILES = {
    "bdia": None,
    "exhibits": None,
    "forward_gradients": None,
    "pareprop": None,
    "table1_complexity": "paper",
    "table2_accuracy": None,
    "table3_memory": "paper",
    "table5_speed": None,
    "table6_fragments": None,
}


class Mark(enum.Enum):
    """How well a published value is known."""

    PAPER = "paper"
    SECOND_HAND = "second-hand"
    UNKNOWN = "unknown"

    @property
    def meaning(self) -> str:
        """What a reader is told."""
        meanings = {
            Mark.PAPER: "read in the text of its paper",
            Mark.SECOND_HAND: "quoted from its paper by others",
            Mark.UNKNOWN: "reported by its paper, but the values were not at hand",
        }
        return meanings[self]

    @property
    def letter(self) -> str:
        """A short sign beside a number."""
        return {Mark.PAPER: "p", Mark.SECOND_HAND: "s", Mark.UNKNOWN: "?"}[self]


@dataclass(frozen=True)
class Row:
    """One line of a published table."""

    fields: dict[str, str]  # the text of each column, by the column's name
    mark: Mark  # how well the values of this line are known

    def __getitem__(self, column: str) -> str:
        return self.fields[column]

    def number(self, column: str) -> float:
        """The value of a column, in the unit that the column's name states. Raises: ValueError: it is no number."""
        return float(self.fields[column])


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper that the suite tests.

    Attributes:
        key: Unique name.
        exhibit: Key of the exhibit that it is about.
        paper: Short name of the paper.
        sentence: The claim.
        mark: How well it is known.
        predicate: What has to hold: `is` (equal, below, above, not below, holds), and where they apply `value`, `unit`
            and `digits`.
        tests: The tests, the paper's own size first: scale, plan, measure, cells, and the terms of a difference.

    """

    key: str
    exhibit: str
    paper: str
    sentence: str
    mark: Mark
    predicate: Mapping[str, Any]
    tests: Sequence[Mapping[str, Any]]

    @property
    def quoted(self) -> str:
        """The sentence in quotation marks, with how well it is known."""
        return f"“{self.sentence}” ({self.mark.value})"


@cache
def claims() -> tuple[Claim, ...]:
    """Return all claims in the order of `claims.json`."""
    found = []
    for of in _claims_file()["claims"]:
        fields = {name: of[name] for name in ("key", "exhibit", "paper", "sentence", "predicate", "tests")}
        found.append(Claim(mark=Mark(of["source"]), **fields))
    return tuple(found)


def quoted(exhibit: str) -> str:
    """Quote the claims about an exhibit, one after the other.

    Raises:
        ValueError: There is none.

    """
    known = [claim.quoted for claim in claims() if claim.exhibit == exhibit]
    if not known:
        others = sorted({claim.exhibit for claim in claims()})
        raise ValueError(f"claims.json has no claim about {exhibit!r}; it has claims about {', '.join(others)}")
    return " ".join(known)


def remarks(kind: str) -> list[str]:
    """Return the sentences of the reproducibility report of a kind: "easy", "difficult" or "not_published"."""
    return list(_claims_file()[kind])


@cache
def _claims_file() -> dict[str, Any]:
    text = (resources.files(__name__) / "claims.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]  # a mapping, as its test says


def read(name: str) -> list[Row]:
    """All lines of a published table, such as "table3_memory", in the order of the paper."""
    file = resources.files(__name__) / f"{name}.csv"
    lines = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    mark = _FILES[name]
    return [Row({c: v for c, v in line.items() if c != "source"}, Mark(mark or line["source"])) for line in lines]


def pareprop_row(network: str, *, exactly: bool = False) -> Row | None:
    """What was published of PaReprop on a network (revswin_tiny), or of its family where sizes were not told apart.

    None if there is nothing; with `exactly` of this very size only.
    """
    family, _, size = network.partition("_")
    sizes = (size,) if exactly else (size, "")
    rows = (row for row in read("pareprop") if row["family"].lower() == family and row["size"].lower() in sizes)
    return next(rows, None)


def forward_gradient_row(target: str, guess: str, space: str, scaling: str) -> Row | None:
    """What was published with these settings of forward gradients (empty: of backpropagation), if anything."""
    wanted = dict(zip(("target", "guess", "space", "scaling"), (target, guess, space, scaling), strict=True))
    rows = read("forward_gradients")
    return next((row for row in rows if all(row[name] == value for name, value in wanted.items())), None)


def suite_citation(version: str) -> str:
    """How to cite this suite, of which `version` names the commit."""
    return f"""\
@software{{petra_suite,
  title   = {{{{PETRA suite: benchmark and reproduction of parallel end-to-end training with reversible
             architectures}}}},
  author  = {{{{PETRA suite authors}}}},
  version = {{{{{version}}}}}
}}"""
