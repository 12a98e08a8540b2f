"""Define scales: grids of comparable cells, from minutes to the paper's size.

A scale states how close to the paper a result is. Results of different scales never share a column. docs/running.md
describes the scales.

`reproduce.grids.recipes` defines how a cell is trained at a scale. The tables and figures define which cells they need,
and `reproduce.grids.grid` combines them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from reproduce.cells.base import near_matches
from reproduce.cells.kinds import Cell, CellError, TrainedCell
from reproduce.records.run import State, Status


@dataclass(frozen=True)
class Scale:
    """A degree of closeness to the paper, and the expected accuracy of its cells."""

    name: str  # as on the command line, and in every cell
    target_accuracy: float = 0.0  # percent that a run must exceed
    target_accumulations: tuple[int, ...] = ()  # values of k with an expected accuracy; none if empty
    own_targets: Mapping[str, float] = field(default_factory=dict)  # expected percent by model

    def target(self, cell: TrainedCell) -> float:
        """Return the expected percent of a cell at one of `target_accumulations`."""
        return self.own_targets.get(cell.model, self.target_accuracy)

    def falls_short(self, cell: Cell, state: State, test_accuracy: float | None) -> bool:
        """Return whether a finished cell misses its expected accuracy."""
        if not isinstance(cell, TrainedCell) or cell.accumulation not in self.target_accumulations:
            return False
        if cell.under_test:
            return False
        if state.status is Status.DONE:
            return test_accuracy is None or test_accuracy <= self.target(cell)
        return state.status is Status.FAILED


#: Every scale by its name.
SCALES = {
    scale.name: scale
    for scale in (
        # Guessing the most frequent byte is right for 23 % of the masked bytes in the text of Python 3.11.
        Scale("smoke", 90.0, (1, 4), {"vit_micro2": 75.0, "revvit_micro2": 75.0, "revroberta_micro2": 28.0}),
        *map(Scale, ("small", "narrow", "paper")),
    )
}


def by_name(name: str) -> Scale:
    """Return the scale of that name.

    Raises:
        CellError: There is no such scale. The message lists near matches.

    """
    if name not in SCALES:
        raise CellError(f"there is no scale {name!r}; {near_matches(name, SCALES)}")
    return SCALES[name]
