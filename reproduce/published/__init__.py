"""Read the values that the paper reports (arXiv 2406.02052) from CSV files, each with a mark of its source.

A published number could be written into the line of code that compares with it. There it would be retyped, rounded and
separated from its source. Here the numbers are in CSV files next to this module, one file per table. They are read as
`Row`s with a `Mark`:

    paper          read in the text of the paper
    second-hand    quoted from the paper (of PETRA, version 2) by others; the table itself was not available
    unknown        reported by the paper, but the values were not available; shown as unknown, never invented

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

import petra_core

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
SUITE_CITATION = f"""\
@software{{petra_suite,
  title   = {{{{PETRA suite: benchmark and reproduction of parallel end-to-end training with reversible
             architectures}}}},
  author  = {{{{PETRA suite authors}}}},
  version = {{{{{petra_core.__version__}, the commit that you used}}}}
}}"""


class Mark(enum.Enum):
    """Source of a published value."""

    PAPER = "paper"
    SECOND_HAND = "second-hand"
    UNKNOWN = "unknown"

    @property
    def meaning(self) -> str:
        """Explanation for a reader."""
        meanings = {
            Mark.PAPER: "read in the text of its paper",
            Mark.SECOND_HAND: "quoted from its paper by others",
            Mark.UNKNOWN: "reported by its paper, but the values were not at hand",
        }
        return meanings[self]

    @property
    def letter(self) -> str:
        """Short sign next to a number."""
        return {Mark.PAPER: "p", Mark.SECOND_HAND: "s", Mark.UNKNOWN: "?"}[self]


@dataclass(frozen=True)
class Row:
    """One line of a published table.

    Attributes:
        fields: Text of each column, by the column's name.
        mark: Source of the values of this line.

    """

    fields: dict[str, str]
    mark: Mark

    def __getitem__(self, column: str) -> str:
        return self.fields[column]

    def number(self, column: str) -> float:
        """Return the value of a column, in the unit that the column's name states.

        Raises:
            ValueError: If it is not a number.

        """
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


@cache
def claims() -> tuple[Claim, ...]:
    """Return all claims in the order of `claims.json`."""
    found = []
    for entry in _claims_file()["claims"]:
        fields = {name: entry[name] for name in ("key", "exhibit", "paper", "sentence", "predicate", "tests")}
        found.append(Claim(mark=Mark(entry["source"]), **fields))
    return tuple(found)


def not_published() -> list[str]:
    """Return sentences on what the paper does not contain, or was not at hand."""
    return list(_claims_file()["not_published"])


@cache
def _claims_file() -> dict[str, Any]:
    text = (resources.files(__name__) / "claims.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]  # a mapping, as its test says


def read(name: str) -> list[Row]:
    """Return all lines of a published table, such as "table3_memory", in the order of the paper."""
    file = resources.files(__name__) / f"{name}.csv"
    lines = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    return [Row(line, Mark(line.pop("source", Mark.PAPER.value))) for line in lines]


def pareprop_row(network: str) -> Row | None:
    """Return the row that was published for PaReprop on a network such as `revswin_tiny`, or on its family, or None."""
    family, _, size = network.partition("_")
    rows = (row for row in read("pareprop") if row["family"].lower() == family and row["size"].lower() in (size, ""))
    return next(rows, None)


def forward_gradient_row(target: str, guess: str, space: str, scaling: str) -> Row | None:
    """Return the published row for these settings of forward gradients (all empty: backpropagation), or None."""
    wanted = dict(zip(("target", "guess", "space", "scaling"), (target, guess, space, scaling), strict=True))
    rows = read("forward_gradients")
    return next((row for row in rows if all(row[name] == value for name, value in wanted.items())), None)
