"""Selection of cells from a grid: those of some tables, networks, methods, k, data sets and seeds.

Every condition narrows the choice; several values of one condition widen it. A value that no cell of the grid has is an
error with the near ones, rather than a grid that is silently empty.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reproduce.cells import timing as timings
from reproduce.cells.kinds import Cell, CellError, TrainedCell, near_matches
from reproduce.grids.plans import IN_ORDER, PLANS

#: Option of the command line -> setting of a cell.
CONDITIONS = {"models": "model", "methods": "method", "k": "accumulation", "datasets": "dataset"}


def select(
    grid: Sequence[Cell],
    conditions: Mapping[str, Sequence[str]],
    *,
    tables: Sequence[str] = (),
    seeds: Sequence[str] = (),
    only: Sequence[str] = (),
) -> list[Cell]:
    """The cells of a scale that fulfil all conditions, in its order, or in that of a plan that has its own.

    Args:
        grid: the cells to choose from, all of one scale.
        conditions: values by option, see `CONDITIONS`; an option without values does not count.
        tables: keys of what shows the cells (`reproduce.grids.plans`).
        seeds: one number N means the first N seeds of the grid, several are the seeds themselves.
        only: `setting=value,value`, of any setting, or `name=value` for the cells of these names.

    Raises:
        CellError: a setting or a value that no cell has, or no cell fulfils all conditions.

    """
    cells = list(grid)
    asked: list[str] = []
    if tables:
        shown = _cells_of(tables, grid[0].scale)
        ordered = all(_comparable(table) in IN_ORDER for table in tables)
        cells = list(shown) if ordered else [cell for cell in cells if cell in shown]
        asked.append(f"--tables {','.join(tables)}")
    wanted = [(f"--{name} {','.join(values)}", CONDITIONS[name], values) for name, values in conditions.items()]
    wanted.append((f"--seeds {','.join(seeds)}", "seed", _first(seeds[0], grid) if len(seeds) == 1 else seeds))
    wanted += [_condition(text, grid) for text in only]
    for source, setting, values in wanted:
        if not values:
            continue
        chosen = _narrowed(cells, grid, setting, values, source)
        if not chosen:
            values_left = dict.fromkeys(_text(of[setting]) for cell in cells if setting in (of := _settings(cell)))
            before = " and ".join(asked)
            left = f"{setting} is {' or '.join(values_left)}" if values_left else f"no cell has a {setting}"
            raise CellError(f"no cell of the scale {grid[0].scale} fulfils {before} and {source}: with {before} {left}")
        cells = chosen
        asked.append(source)
    return cells


def _condition(text: str, grid: Sequence[Cell]) -> tuple[str, str, list[str]]:
    """Parse `--only SETTING=VALUE,VALUE`: the option as given, the setting and the values.

    Raises: CellError: no cell has such a setting.
    """
    setting, equals, values = text.partition("=")
    names = {key: None for cell in grid for key in _settings(cell)}
    if not equals or setting not in names:
        raise CellError(f"--only {text}: {near_matches(setting, names)} (as SETTING=VALUE)")
    return f"--only {text}", setting, values.split(",")


def _first(number: str, grid: Sequence[Cell]) -> list[str]:
    """So many of the grid's seeds, the lowest. Raises: CellError: not a number of them."""
    seeds = sorted({cell.seed for cell in grid if isinstance(cell, TrainedCell)})
    if not number.isdecimal() or not 0 < int(number) <= len(seeds):
        raise CellError(
            f"--seeds {number}: how many, 1 to {len(seeds)}, or several seeds themselves, such as 0,2; seed 0 alone is "
            f"--only seed=0"
        )
    return [str(seed) for seed in seeds[: int(number)]]


def with_settings(
    cells: Iterable[Cell], *, loader: str | None = None, precision: str | None = None, timing: str | None = None
) -> list[Cell]:
    """The cells with another loader, precision or timing, where they have one: then they are other cells.

    Raises:
        CellError: there is no such loader for a data set, or no such precision or timing, or a cell cannot have it.

    """
    given = {"loader": loader, "precision": precision, "timing": timing and timings.canonical(timing)}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    changed: dict[Cell, None] = {}
    refused: dict[str, str] = {}  # by kind of cell
    for cell in cells:
        try:
            changed[dataclasses.replace(cell, **changes) if isinstance(cell, TrainedCell) and changes else cell] = None
        except CellError as error:
            refused.setdefault(cell.kind, f"{cell.name}: {error}")
    if refused:
        others = sorted({cell.kind for cell in changed} - refused.keys())
        rest = f"; --only kind={','.join(others)} leaves such cells out" * bool(others)
        raise CellError(f"{next(iter(refused.values()))}{rest}")
    return list(changed)


def _narrowed(
    cells: Iterable[Cell], grid: Iterable[Cell], setting: str, values: Iterable[str], source: str
) -> list[Cell]:
    """The cells whose setting is one of the values. Raises: CellError: no cell of the grid has one of them."""
    in_grid: dict[str, str] = {}  # comparable form -> as to be shown
    for cell in grid:
        if setting in (settings := _settings(cell)):
            in_grid.setdefault(_comparable(settings[setting]), _text(settings[setting]))
    wanted = {_comparable(value): value.strip() for value in values}
    for comparable, value in wanted.items():
        if comparable not in in_grid:
            raise CellError(f"{source}: no cell has {setting} {value}; {_near(value.lower(), in_grid.values())}")
    return [cell for cell in cells if setting in (of := _settings(cell)) and _comparable(of[setting]) in wanted]


def _settings(cell: Cell) -> dict[str, Any]:
    """The settings that a condition may be about, and the cell's name, by which the report asks for one cell."""
    return {**cell.to_dict(), "name": cell.name}


def _near(wrong: str, values: Iterable[str]) -> str:
    """Near matches of a word; numbers that look alike are not near, so of those there is the whole list."""
    if wrong.isdecimal():
        return f"choose from {', '.join(sorted(values, key=lambda value: (len(value), value)))}"
    return near_matches(wrong, values)


def _comparable(value: object) -> str:
    """A value in a form in which RevNet-18 is revnet18, delayed-gradients DELAYED_GRADIENTS, and 0 the number 0.0."""
    text = _text(value).strip()
    try:
        return str(float(text))
    except ValueError:
        return text.replace("-", "").replace("_", "")


def _text(value: object) -> str:
    """A value as a condition has it; the members of a tuple are joined by +, since commas are between values."""
    return "+".join(map(str, value)) or "none" if isinstance(value, tuple | list) else str(value).lower()


def _cells_of(tables: Sequence[str], scale: str) -> dict[Cell, None]:
    """The cells that these exhibits need. Raises: CellError: there is no such exhibit, or it has no cells here."""
    plans = {_comparable(name): plan for name, plan in PLANS.items()}
    chosen: dict[Cell, None] = {}
    for table in tables:
        if _comparable(table) not in plans:
            raise CellError(f"--tables {table}: {near_matches(table.lower(), PLANS)}")
        cells = plans[_comparable(table)](scale)
        if not cells:
            with_cells = [name for name, plan in PLANS.items() if plan(scale)]
            raise CellError(
                f"--tables {table}: it has no cells at the scale {scale}; these have: {', '.join(with_cells)}"
            )
        chosen |= dict.fromkeys(cells)
    return chosen
