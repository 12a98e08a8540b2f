"""Select cells from a grid: those of some tables, networks, methods, k, data sets and seeds.

Every condition narrows the selection; several values of one condition widen it. A value that no cell of the grid has is
an error that lists near matches. Otherwise a typo would give an empty grid.
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
    """Return the cells of a scale that fulfil all conditions, in the order of the scale or of a plan with its order.

    Args:
        grid: Cells to choose from, all of one scale.
        conditions: Values by option (see `CONDITIONS`). An option without values has no effect.
        tables: Keys of the exhibits that show the cells (`reproduce.grids.plans`).
        seeds: A single number N for the first N seeds of the grid, or several seeds.
        only: `setting=value,value` for any setting, or `name=value` for the cells of these names.

    Returns:
        The selected cells.

    Raises:
        CellError: No cell has a given setting or value, or no cell fulfils all conditions.

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
    """Parse `--only SETTING=VALUE,VALUE` into the option as given, the setting and the values.

    Raises:
        CellError: No cell has such a setting.

    """
    setting, equals, values = text.partition("=")
    names = {key: None for cell in grid for key in _settings(cell)}
    if not equals or setting not in names:
        raise CellError(f"--only {text}: {near_matches(setting, names)} (as SETTING=VALUE)")
    return f"--only {text}", setting, values.split(",")


def _first(number: str, grid: Sequence[Cell]) -> list[str]:
    """Return the lowest seeds of the grid, as many as the number says.

    Raises:
        CellError: It is not a number between 1 and the number of seeds.

    """
    seeds = sorted({cell.seed for cell in grid if isinstance(cell, TrainedCell)})
    if not number.isdecimal() or not 0 < int(number) <= len(seeds):
        raise CellError(
            f"--seeds {number}: expected a number from 1 to {len(seeds)}, or seeds such as 0,2; for seed 0, use "
            f"--only seed=0"
        )
    return [str(seed) for seed in seeds[: int(number)]]


def with_settings(
    cells: Iterable[Cell], *, loader: str | None = None, precision: str | None = None, timing: str | None = None
) -> list[Cell]:
    """Return the cells with another loader, precision or timing if they support it. They are then different cells.

    Raises:
        CellError: A data set has no such loader, or the precision or timing is unknown, or a cell does not support it.

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
    """Return the cells whose setting has one of the values.

    Raises:
        CellError: No cell of the grid has one of the values.

    """
    in_grid: dict[str, str] = {}  # comparable form -> displayed form
    for cell in grid:
        if setting in (settings := _settings(cell)):
            in_grid.setdefault(_comparable(settings[setting]), _text(settings[setting]))
    wanted = {_comparable(value): value.strip() for value in values}
    for comparable, value in wanted.items():
        if comparable not in in_grid:
            raise CellError(f"{source}: no cell has {setting} {value}; {_near(value.lower(), in_grid.values())}")
    return [cell for cell in cells if setting in (of := _settings(cell)) and _comparable(of[setting]) in wanted]


def _settings(cell: Cell) -> dict[str, Any]:
    """Return the settings that conditions can select, and the cell's name, by which the report selects one cell."""
    return {**cell.to_dict(), "name": cell.name}


def _near(wrong: str, values: Iterable[str]) -> str:
    """Return near matches of a word. Similar numbers are not near, so for numbers return the whole list."""
    if wrong.isdecimal():
        return f"choose from {', '.join(sorted(values, key=lambda value: (len(value), value)))}"
    return near_matches(wrong, values)


def _comparable(value: object) -> str:
    """Normalise a value: RevNet-18 becomes revnet18, delayed-gradients DELAYED_GRADIENTS, and 0 the number 0.0."""
    text = _text(value).strip()
    try:
        return str(float(text))
    except ValueError:
        return text.replace("-", "").replace("_", "")


def _text(value: object) -> str:
    """Return a value as a condition writes it. Members of a tuple are joined by +, since commas separate values."""
    return "+".join(map(str, value)) or "none" if isinstance(value, tuple | list) else str(value).lower()


def _cells_of(tables: Sequence[str], scale: str) -> dict[Cell, None]:
    """Return the cells that these exhibits need.

    Raises:
        CellError: There is no such exhibit, or it has no cells at this scale.

    """
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
