"""How much of every exhibit of the paper, and of every study beyond it, has been run.

What an exhibit needs is known by its module (`cells(scale)`), what is there by the records. A cell that two exhibits
show is counted for both; one that was run in two precisions is one cell, unless the exhibit wants it in both.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from reproduce import published
from reproduce.cells.kinds import Cell
from reproduce.grids import scales
from reproduce.grids.plans import PLANS
from reproduce.records.record import State, Status
from reproduce.records.results import Results, Run, meaning

__all__ = ["STUDIES", "Account", "Study", "accounts", "commands", "keys", "title"]


@dataclass(frozen=True)
class Study:
    """Something that the paper does not show and that its readers asked for.

    Attributes:
        key: of its section, and name of the module that knows its cells.
        title: short.
        question: what was asked.

    """

    key: str
    title: str
    question: str


STUDIES = (
    Study("accuracy", "Rivals", "which asynchronous method loses how much accuracy, all in one setting?"),
    Study("length", "Training length", "does the gap to backpropagation close when the training is longer?"),
    Study("depth", "Depth and delay", "how do reconstruction and accuracy degrade with depth; where do they break?"),
    Study("stability", "Stability", "for which k, learning rate and warm-up does training diverge?"),
    Study("invertible", "Invertible down-sampling", "how much memory and accuracy if no stage had to keep its input?"),
    Study("scale_study", "Scale", "when does communication become the bottleneck, and when is PETRA worth it?"),
    Study("transformers", "Transformers", "does PETRA train networks other than residual ones?"),
)


@dataclass(frozen=True)
class Account:
    """How far the cells of one exhibit are at one scale.

    Attributes:
        key: of the exhibit.
        scale: name of the scale.
        planned: cells that it needs.
        done: of these, finished.
        failed: of these, failed, by reason.
        begun: of these, begun and not finished.

    """

    key: str
    scale: str
    planned: int
    done: int
    failed: dict[str, int]
    begun: int

    @property
    def not_run(self) -> int:
        """The rest."""
        return self.planned - self.done - self.begun - sum(self.failed.values())


def keys() -> list[str]:
    """Of all exhibits: those of the paper in its order, then the studies."""
    return [*(row["key"] for row in published.read("exhibits")), *(study.key for study in STUDIES)]


def title(key: str) -> str:
    """Of an exhibit or a study, short: "Table 1"."""
    titles = {row["key"]: row["title"] for row in published.read("exhibits")}
    return {**titles, **{study.key: study.title for study in STUDIES}}[key]


def accounts(results: Results) -> dict[tuple[str, str], Account]:
    """By exhibit and scale, of those that need cells there."""
    runs: dict[str, list[Run[Cell]]] = {}
    for run in results.runs:
        runs.setdefault(meaning(run.cell), []).append(run)
    return {(key, scale): _account(key, scale, cells, runs) for key in keys() for scale, cells in _cells(key).items()}


def commands(key: str) -> list[str]:
    """What runs all cells of an exhibit, scale by scale; nothing where it needs none."""
    return [f"python -m reproduce run {scale} --tables {key}" for scale in _cells(key)]


@cache
def _cells(key: str) -> dict[str, list[Cell]]:
    """What an exhibit needs, by scale."""
    plan = PLANS.get(key)
    return {scale: cells for scale in scales.SCALES if plan and (cells := plan(scale))}


def _account(key: str, scale: str, cells: Iterable[Cell], runs: Mapping[str, Sequence[Run[Cell]]]) -> Account:
    wanted: dict[str, set[Cell]] = {}
    for cell in cells:
        wanted.setdefault(meaning(cell), set()).add(cell)
    furthest = [
        _furthest(run.state for run in runs.get(name, ()) if len(alike) == 1 or run.cell == cell)
        for name, alike in wanted.items()
        for cell in alike
    ]
    statuses = Counter(state.status for state in furthest)
    failed = Counter(state.reason for state in furthest if state.status is Status.FAILED)
    return Account(
        key, scale, len(furthest), statuses[Status.DONE], dict(sorted(failed.items())), statuses[Status.PARTIAL]
    )


def _furthest(states: Iterable[State]) -> State:
    order = (Status.NOT_RUN, Status.PARTIAL, Status.FAILED, Status.DONE)
    return max(states, key=lambda state: order.index(state.status), default=State(Status.NOT_RUN))
