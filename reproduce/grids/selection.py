"""Which cells of a grid are meant: those of some tables, networks, methods, k, data sets and seeds.

Every condition narrows the choice; several values of one condition widen it. A value that no cell of the grid has is an
error with the near ones, rather than a grid that is silently empty.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reproduce.cells.kinds import Cell, CellError, TrainedCell, near_matches
from reproduce.grids.grid import Grid
from reproduce.grids.plans import PLANS

__all__ = ["CONDITIONS", "select", "with_settings"]

#: Option of the command line -> setting of a cell.
CONDITIONS = {"models": "model", "methods": "method", "k": "accumulation", "datasets": "dataset"}


def select(
    grid: Grid,
    conditions: Mapping[str, Sequence[str]],
    *,
    tables: Sequence[str] = (),
    seeds: Sequence[str] = (),
    only: Sequence[str] = (),
) -> list[Cell]:
    """The cells of a scale that fulfil all conditions, in its order.

    Args:
        grid: the cells to choose from.
        conditions: values by option, see `CONDITIONS`; an option without values does not count.
        tables: keys of what shows the cells (`reproduce.grids.plans`).
        seeds: one number N means the first N seeds of the grid, several are the seeds themselves.
        only: `setting=value,value`, of any setting, or `name=value` for the cells of these names.

    Raises:
        CellError: a setting or a value that no cell has, or no cell fulfils all conditions.

    """
    cells = list(grid.cells)
    asked: list[str] = []
    if tables:
        shown = _cells_of(tables, grid)
        cells = [cell for cell in cells if cell in shown]
        asked.append(f"--tables {','.join(tables)}")
    wanted = [(f"--{name} {','.join(values)}", CONDITIONS[name], values) for name, values in conditions.items()]
    wanted.append((f"--seeds {','.join(seeds)}", "seed", _first(seeds[0], grid) if len(seeds) == 1 else seeds))
    wanted += [_condition(text, grid) for text in only]
    for source, setting, values in wanted:
        if not values:
            continue
        chosen = _narrowed(cells, grid.cells, setting, values, source)
        if not chosen:
            there = dict.fromkeys(_shown(own[setting]) for cell in cells if setting in (own := _settings(cell)))
            before = " and ".join(asked)
            left = f"{setting} is {' or '.join(there)}" if there else f"no cell has a {setting}"
            raise CellError(f"no cell of the scale {grid.name} fulfils {before} and {source}: with {before} {left}")
        cells = chosen
        asked.append(source)
    return cells


def _condition(text: str, grid: Grid) -> tuple[str, str, list[str]]:
    """`--only SETTING=VALUE,VALUE`: how it is told, the setting and the values. Raises: CellError: no such setting."""
    setting, equals, values = text.partition("=")
    known = {key: None for cell in grid.cells for key in _settings(cell)}
    if not equals or setting not in known:
        raise CellError(f"--only {text}: {near_matches(setting, known)} (as SETTING=VALUE)")
    return f"--only {text}", setting, values.split(",")


def _first(number: str, grid: Grid) -> list[str]:
    """So many of the grid's seeds, the lowest. Raises: CellError: not a number of them."""
    seeds = sorted({cell.seed for cell in grid.cells if isinstance(cell, TrainedCell)})
    if not number.isdecimal() or not 0 < int(number) <= len(seeds):
        raise CellError(
            f"--seeds {number}: how many, 1 to {len(seeds)}, or several seeds themselves, such as 0,2; seed 0 alone is "
            f"--only seed=0"
        )
    return [str(seed) for seed in seeds[: int(number)]]


def with_settings(cells: Iterable[Cell], *, loader: str | None = None, precision: str | None = None) -> list[Cell]:
    """The cells with another loader or precision, where they have one: then they are other cells.

    Raises:
        CellError: there is no such loader for a data set, or no such precision.

    """
    given = {"loader": loader, "precision": precision}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    changed = [
        dataclasses.replace(cell, **changes) if isinstance(cell, TrainedCell) and changes else cell for cell in cells
    ]
    return list(dict.fromkeys(changed))


def _narrowed(
    cells: Iterable[Cell], grid: Iterable[Cell], setting: str, values: Iterable[str], source: str
) -> list[Cell]:
    """The cells whose setting is one of the values. Raises: CellError: no cell of the grid has one of them."""
    there: dict[str, str] = {}  # comparable form -> as to be shown
    for cell in grid:
        if setting in (settings := _settings(cell)):
            there.setdefault(_plain(settings[setting]), _shown(settings[setting]))
    wanted = {_plain(value): value.strip() for value in values}
    for plain, value in wanted.items():
        if plain not in there:
            raise CellError(f"{source}: no cell has {setting} {value}; {_near(value.lower(), there.values())}")
    return [cell for cell in cells if setting in (own := _settings(cell)) and _plain(own[setting]) in wanted]


def _settings(cell: Cell) -> dict[str, Any]:
    """What a condition may be about: every setting, and the cell's name, by which the report asks for one alone."""
    return {**cell.to_dict(), "name": cell.name}


def _near(wrong: str, known: Iterable[str]) -> str:
    """Near matches of a word; numbers that look alike are not near, so of those there is the whole list."""
    if wrong.isdecimal():
        return f"choose from {', '.join(sorted(known, key=lambda value: (len(value), value)))}"
    return near_matches(wrong, known)


def _plain(value: object) -> str:
    """So that RevNet-18 is revnet18, delayed-gradients DELAYED_GRADIENTS, and 0 the number 0.0."""
    text = _shown(value).strip()
    try:
        return str(float(text))
    except ValueError:
        return text.replace("-", "").replace("_", "")


def _shown(value: object) -> str:
    """As a condition has it; the members of a tuple are joined by +, since commas are between values."""
    return "+".join(map(str, value)) or "none" if isinstance(value, tuple | list) else str(value).lower()


def _cells_of(tables: Sequence[str], grid: Grid) -> set[Cell]:
    """The cells that these exhibits need. Raises: CellError: there is no such exhibit, or it has no cells here."""
    known = {_plain(name): plan for name, plan in PLANS.items()}
    shown: set[Cell] = set()
    for table in tables:
        if _plain(table) not in known:
            raise CellError(f"--tables {table}: {near_matches(table.lower(), PLANS)}")
        cells = known[_plain(table)](grid.name)
        if not cells:
            some = [name for name, plan in PLANS.items() if plan(grid.name)]
            raise CellError(
                f"--tables {table}: it has no cells at the scale {grid.name}; these have: {', '.join(some)}"
            )
        shown.update(cells)
    return shown
