"""Memory that was really held: the records of `reproduce.measures.held_memory`, grouped as they may be compared.

Numbers of different batches are never brought to one another by scaling: parameters do not grow with the batch. So
everything that stands side by side is of one network, one shape of images and one batch, and the rules of Table 3 are
evaluated at that batch.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from petra_core import methods
from petra_core.ledger import KINDS
from petra_core.methods import Method
from reproduce.cells import catalogue
from reproduce.cells.kinds import MemoryCell
from reproduce.grids.plans.table3 import METHODS
from reproduce.grids.scales import SCALES
from reproduce.records.record import Status
from reproduce.records.results import Results, Run

#: What the rules of Table 3 add up; the engine holds more than that.
COUNTED = ("parameters", "buffers", "inputs", "stashed_weights")


class Subject(NamedTuple):
    """What must be equal for two measurements to stand side by side."""

    scale: str
    dataset: str
    model: str
    width: int
    batch_size: int
    accumulation: int

    @property
    def title(self) -> str:
        """As headings have it."""
        width = "" if self.width == 64 else f", width {self.width}"
        model = self.model.replace("revnet", "RevNet-")
        return f"{model}{width}, {catalogue.by_name(self.dataset).title}, batch {self.batch_size}"

    @property
    def depth(self) -> int:
        """Of the RevNet."""
        return int(self.model.removeprefix("revnet"))


@dataclass(frozen=True)
class Held:
    """One measurement."""

    run: Run[MemoryCell]

    @property
    def method(self) -> Method:
        """The method that held."""
        return methods.by_name(self.run.cell.method)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Stage, kind, and bytes `held`, `peak` and `predicted`."""
        found: list[dict[str, Any]] = self.run.result["rows"]
        return found

    @property
    def stages(self) -> int:
        """J."""
        return int(self.run.result["stages"])

    def peak(self, *kinds: str, stage: int | None = None) -> int:
        """Bytes of these kinds (all, if none is given), each at its largest moment; of one stage, or of all."""
        return self._sum("peak", kinds, stage)

    def predicted(self, *kinds: str, stage: int | None = None) -> int:
        """Likewise, as foretold from shapes."""
        return self._sum("predicted", kinds, stage)

    @property
    def foretold(self) -> tuple[int, int]:
        """How many of its numbers are as predicted, and of how many."""
        return sum(row["peak"] == row["predicted"] for row in self.rows), len(self.rows)

    @property
    def process(self) -> dict[str, Any] | None:
        """How much the process grew, by the system's word."""
        found: dict[str, Any] | None = self.run.result["process"]
        return found

    def _sum(self, column: str, kinds: tuple[str, ...], stage: int | None) -> int:
        wanted = kinds or KINDS
        return sum(
            row[column] for row in self.rows if row["kind"] in wanted and (stage is None or row["stage"] == stage)
        )


@dataclass(frozen=True)
class Group:
    """The configurations of one subject.

    Attributes:
        subject: what they share.
        runs: by method, in the order of Table 3.

    """

    subject: Subject
    runs: dict[Method, Run[MemoryCell]]

    @property
    def held(self) -> dict[Method, Held]:
        """Those that are finished."""
        return {method: Held(run) for method, run in self.runs.items() if run.done}

    @property
    def begun(self) -> bool:
        """Whether there is a record of any."""
        return any(run.state.status is not Status.NOT_RUN for run in self.runs.values())


def groups(results: Results) -> list[Group]:
    """All measurements of memory and the cells that are not run; scale by scale, then as the paper's tables go."""
    found: dict[Subject, dict[Method, Run[MemoryCell]]] = {}
    for run in results.of_kind(MemoryCell):
        cell = run.cell
        if not cell.model.startswith("revnet"):
            continue
        subject = Subject(cell.scale, cell.dataset, cell.model, cell.width, cell.batch_size, cell.accumulation)
        found.setdefault(subject, {})[methods.by_name(cell.method)] = run
    return [
        Group(subject, {method: found[subject][method] for method in METHODS if method in found[subject]})
        for subject in sorted(found, key=_order)
    ]


def _order(subject: Subject) -> tuple[Any, ...]:
    scales, datasets = list(SCALES), ("imagenet", "imagenet32", "cifar10")
    return (
        scales.index(subject.scale) if subject.scale in scales else len(scales),
        subject.scale,
        datasets.index(subject.dataset) if subject.dataset in datasets else len(datasets),
        -subject.depth,
        subject,
    )
