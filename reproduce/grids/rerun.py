"""The command that runs one cell and no other, which is how a reader of a result repeats it.

With the values of some settings alone (`--k 4 --seeds 1`) a command would run cells of other lengths and rates too, so
a cell of a grid is called by its name. If the grid has it with another loader or precision alone, it is called by the
name of that and these two. Another is trained by hand, every setting written out; its scale is then `custom`.
"""

from functools import cache

from petra_core import methods
from reproduce.cells.kinds import REMOVED, Cell, ForwardGradientCell, TrainingCell
from reproduce.grids import scales
from reproduce.grids.grid import grid_of
from reproduce.records.results import meaning


def command(cell: Cell) -> str:
    """The command; empty if the cell's grid no longer has it and no command makes its kind."""
    same = planned(cell.scale).get(meaning(cell), ()) if cell.scale in scales.SCALES else ()
    if same:
        nearest = cell if cell in same else same[0]
        asked, nearest_settings = cell.to_dict(), nearest.to_dict()
        changed = [
            f" --{name} {asked[name]}"
            for name in ("loader", "precision")
            if asked.get(name) != nearest_settings.get(name)
        ]
        return f"python -m reproduce run {cell.scale} --only name={nearest.name}{''.join(changed)}"
    if not isinstance(cell, TrainingCell | ForwardGradientCell):
        return ""
    settings = {
        name: value for name, value in cell.without_defaults().items() if name not in ("kind", "scale", *REMOVED)
    }
    if cell.method in methods.SYSTEMS:  # whose name alone chooses another timing than the default of a cell
        settings["timing"] = cell.timing
    if len(cell.stages) == 1:  # all blocks in one stage: a number alone is a number of stages
        settings["stages"] = (1,)
    options = " ".join(f"--{name.replace('_', '-')} {_argument(value)}" for name, value in settings.items())
    return f"python -m reproduce train {options}"


@cache
def planned(scale: str) -> dict[str, list[Cell]]:
    """The cells of a grid, found by what they mean, whatever their loader and precision: of some it has two."""
    by_meaning: dict[str, list[Cell]] = {}
    for cell in grid_of(scale):
        by_meaning.setdefault(meaning(cell), []).append(cell)
    return by_meaning


def _argument(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or '""'
    return str(value)
