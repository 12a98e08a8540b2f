"""Find the command that runs exactly one cell, for readers who want to repeat a result.

With the values of only some settings (`--k 4 --seeds 1`), a command would also run cells of other lengths and rates. So
a cell of a grid is selected by its name. If the grid has the cell only with another loader or precision, that cell is
selected by name, with these two options. Any other cell is trained by `train`, with every setting written out; its
scale is then `custom`.
"""

from functools import cache

from petra_core import methods
from reproduce.cells.kinds import REMOVED, Cell, ForwardGradientCell, TrainingCell
from reproduce.grids import scales
from reproduce.grids.grid import grid_of
from reproduce.records.results import meaning


def command(cell: Cell) -> str:
    """Return the command, or an empty string if the grid no longer has the cell and no command makes its kind."""
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
    if cell.method in methods.SYSTEMS:  # the name of a system selects a timing other than a cell's default
        settings["timing"] = cell.timing
    if len(cell.stages) == 1:  # all blocks in one stage: a single number is a number of stages
        settings["stages"] = (1,)
    options = " ".join(f"--{name.replace('_', '-')} {_argument(value)}" for name, value in settings.items())
    return f"python -m reproduce train {options}"


@cache
def planned(scale: str) -> dict[str, list[Cell]]:
    """Return the cells of a grid by meaning, whatever their loader and precision. A meaning may have two cells."""
    by_meaning: dict[str, list[Cell]] = {}
    for cell in grid_of(scale):
        by_meaning.setdefault(meaning(cell), []).append(cell)
    return by_meaning


def _argument(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or '""'
    return str(value)
