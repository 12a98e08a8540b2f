"""Scales: grids of cells that may be compared, from minutes to the paper's own size.

A scale says how close to the paper a result is; results of different scales never share a column.
docs/running.md says what each is.

How a cell is trained at a scale is in `reproduce.grids.recipes`; which cells there are is known by the tables and
figures that show them, and put together by `reproduce.grids.grid`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from reproduce.cells.kinds import Cell, CellError, ForwardGradientCell, TrainedCell, near_matches
from reproduce.records.record import State, Status


@dataclass(frozen=True)
class Scale:
    """A degree of closeness to the paper, and the accuracy that is expected of its cells."""

    name: str  # as on the command line, and in every cell
    target_accuracy: float = 0.0  # percent that a run is expected to exceed
    target_accumulations: tuple[int, ...] = ()  # values of k at which that is expected; empty: nothing is expected
    own_targets: Mapping[str, float] = field(default_factory=dict)  # percent that is expected instead, by model

    def target(self, cell: TrainedCell) -> float:
        """Percent that is expected of a cell at one of `target_accumulations`."""
        return self.own_targets.get(cell.model, self.target_accuracy)

    def falls_short(self, cell: Cell, state: State, test_accuracy: float | None) -> bool:
        """Whether something was expected of the cell's accuracy that its result, if there is one, does not fulfil."""
        if not isinstance(cell, TrainedCell) or cell.accumulation not in self.target_accumulations:
            return False
        if (cell.forward_weights, cell.correction) != ("current", "none") or cell.optimizer == "nadam":
            return False  # what is done about delay is on trial
        if isinstance(cell, ForwardGradientCell):
            return False  # guesses are on trial
        if state.status is Status.DONE:
            return test_accuracy is None or test_accuracy <= self.target(cell)
        return state.status is Status.FAILED


#: Every scale by its name.
SCALES = {
    scale.name: scale
    for scale in (
        # Always guessing the most frequent byte finds 23 % of those that are masked in the text of Python 3.11.
        Scale("smoke", 90.0, (1, 4), {"vit_micro2": 75.0, "revvit_micro2": 75.0, "revroberta_micro2": 28.0}),
        *map(Scale, ("small", "narrow", "paper")),
    )
}


def by_name(name: str) -> Scale:
    """The scale of that name. Raises: CellError: there is none; near matches are listed."""
    if name not in SCALES:
        raise CellError(f"there is no scale {name!r}; {near_matches(name, SCALES)}")
    return SCALES[name]
