"""Find the command that runs exactly one cell, for readers who want to repeat a result.

With the values of only some settings (`--k 4 --seeds 1`), a command would also run cells of other lengths and rates. So
a cell of a grid is selected by its name. If the grid has the cell only with another loader or precision, that cell is
selected by name, with these two options. Any other cell is trained by `train`, with every setting written out; its
scale is then `custom`.
"""

import shlex
from functools import cache

from petra_core import methods
from reproduce.cells.kinds import Cell, ForwardGradientCell, TrainingCell
from reproduce.cells.setting import flags_of, settings_of, spell
from reproduce.grids import scales
from reproduce.grids.grid import grid_of
from reproduce.records.results import meaning


def command(cell: Cell) -> str:
    """Return the command, or an empty string if the grid no longer has the cell and no command makes its kind."""
    same = plan_by_meaning(cell.scale).get(meaning(cell), ()) if cell.scale in scales.SCALES else ()
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
    values = cell.without_defaults()
    if cell.method in methods.SYSTEMS:  # the name of a system selects a timing other than a cell's default
        values["timing"] = cell.timing
    if len(cell.stages) == 1:  # all blocks in one stage: a single number is a number of stages
        values["stages"] = (1,)
    words = ["python", "-m", "reproduce", "train"]
    for name, described in settings_of(type(cell)).items():
        if name in values:
            words += [flags_of(name, described)[-1], spell(values[name], described)]
    return shlex.join(words)


@cache
def plan_by_meaning(scale: str) -> dict[str, list[Cell]]:
    """Return the cells of a grid by meaning, whatever their loader and precision. A meaning may have two cells."""
    by_meaning: dict[str, list[Cell]] = {}
    for cell in grid_of(scale):
        by_meaning.setdefault(meaning(cell), []).append(cell)
    return by_meaning
