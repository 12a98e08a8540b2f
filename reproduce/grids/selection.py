"""Select cells from a grid: those of some tables, networks, methods, k, data sets and seeds.

Every condition narrows the selection; several values of one condition widen it. A value that no cell of the grid has is
an error that lists near matches. Otherwise a typo would give an empty grid.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from petra_core.methods import ALL
from reproduce.cells import catalogue
from reproduce.cells import timing as timings
from reproduce.cells.base import near_matches
from reproduce.cells.kinds import Cell, CellError, ForwardGradientCell, TrainedCell
from reproduce.cells.setting import WHICH, flags_of, setting, settings_of
from reproduce.grids.plans import IN_ORDER, PLANS

#: Setting of a cell -> name of its option, by which `--only` selects: drops -> lr_milestones.
OPTIONS = {name: flags_of(name, s)[-1][2:].replace("-", "_") for name, s in settings_of(ForwardGradientCell).items()}
#: Field of a selection -> setting of a cell.
CONDITIONS = {"models": "model", "methods": "method", "k": "accumulation", "datasets": "dataset"}
_PIPELINED = {method.name for method in ALL if method.pipelined}


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Conditions on the cells of a scale, and changes of the selected cells. An empty condition has no effect.

    Attributes:
        exhibits: Cells of these tables, figures and studies, such as table2,figure4,stability.
        models: Networks, such as revnet18,resnet50.
        methods: Methods, such as petra,backpropagation.
        k: Accumulation factors, such as 1,4.
        datasets: Data sets.
        seeds: The first N seeds, or a list of seeds such as 0,2. For a single seed: --only seed=2.
        only: Cells with these values of a setting, such as --only kind=training --only batch_size=64. Repeatable. The
            setting name selects cells by their names.
        loader: ffcv, memory or torchvision. These are separate cells.
        precision: float32, tf32 (CUDA) or bf16. These are separate cells.
        timing: lockstep, 1f1b or 1f1b+S, for pipelined methods. These are separate cells.

    """

    exhibits: tuple[str, ...] = setting(WHICH, default=(), metavar="NAME,…", old="--tables")
    models: tuple[str, ...] = setting(WHICH, default=(), metavar="MODEL,…")
    methods: tuple[str, ...] = setting(WHICH, default=(), metavar="METHOD,…")
    k: tuple[str, ...] = setting(WHICH, default=(), metavar="K,…", flags=("-k", "--k"))
    datasets: tuple[str, ...] = setting(WHICH, default=(), metavar="NAME,…", listed=tuple(catalogue.DATASETS))
    seeds: tuple[str, ...] = setting(WHICH, default=(), metavar="N | SEED,SEED,…")
    only: tuple[str, ...] = setting(WHICH, default=(), metavar="SETTING=VALUE[,VALUE]", whole=True)
    loader: str = setting(WHICH, default="", rule="as planned")
    precision: str = setting(WHICH, default="", rule="as planned")
    timing: str = setting(WHICH, default="", rule="as planned")

    def select(self, grid: Sequence[Cell]) -> list[Cell]:
        """Return the cells that fulfil all conditions, in the order of the scale or of a plan with its order.

        Args:
            grid: Cells to choose from, all of one scale.

        Returns:
            The selected cells.

        Raises:
            CellError: No cell has a given setting or value, or no cell fulfils all conditions.

        """
        cells = list(grid)
        asked: list[str] = []
        if self.exhibits:
            needed = _cells_of(self.exhibits, grid[0].scale)
            ordered = all(_comparable(exhibit) in IN_ORDER for exhibit in self.exhibits)
            cells = list(needed) if ordered else [cell for cell in cells if cell in needed]
            asked.append(f"--exhibits {','.join(self.exhibits)}")
        for source, name, values in self._conditions(grid):
            if not values:
                continue
            chosen = _narrow(cells, grid, name, values, source)
            if not chosen:
                values_left = dict.fromkeys(_text(held[name]) for cell in cells if name in (held := _settings(cell)))
                before = " and ".join(asked)
                left = f"{name} is {' or '.join(values_left)}" if values_left else f"no cell has a {name}"
                scale = grid[0].scale
                raise CellError(f"no cell of the scale {scale} fulfils {before} and {source}: with {before} {left}")
            cells = chosen
            asked.append(source)
        return cells

    def _conditions(self, grid: Sequence[Cell]) -> Iterable[tuple[str, str, Sequence[str]]]:
        """Yield the spelling of each condition, the setting that it restricts, and the allowed values."""
        for option, name in CONDITIONS.items():
            values = getattr(self, option)
            yield f"--{option} {','.join(values)}", name, values
        seeds = self.seeds
        yield f"--seeds {','.join(seeds)}", "seed", _first(seeds[0], grid) if len(seeds) == 1 else seeds
        yield from (_condition(text, grid) for text in self.only)

    def variants(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return the cells with the other loader, precision or timing. They are then different cells.

        A timing leaves cells unchanged whose method is not pipelined.

        Raises:
            CellError: A data set has no such loader, or the precision or timing is unknown, or a cell does not support
                it, or no cell has a pipelined method and a timing is given.

        """
        timing = self.timing and timings.canonical(self.timing)
        asked: dict[str, Any] = {"loader": self.loader, "precision": self.precision, "timing": timing}
        timed = {cell for cell in cells if isinstance(cell, TrainedCell) and cell.method in _PIPELINED}
        if timing and not timed:
            raise CellError(f"--timing {timing}: no selected cell has a pipelined method; leave it out")
        changed: dict[Cell, None] = {}
        refused: dict[Cell, str] = {}
        for cell in cells:
            trained = isinstance(cell, TrainedCell)
            given = {n: value for n, value in asked.items() if value and trained and (n != "timing" or cell in timed)}
            try:
                changed[dataclasses.replace(cell, **given) if given else cell] = None
            except CellError as error:
                refused[cell] = f"{cell.slug}: {error}"
        if refused:
            same = {cell.kind for cell in changed} & {cell.kind for cell in refused}  # only some methods support it
            by, option = ("method", "--methods ") if same else ("kind", "--only kind=")
            supporting, refusing = ({getattr(c, by) for c in group if hasattr(c, by)} for group in (changed, refused))
            others = ",".join(sorted(supporting - refusing)).lower()
            rest = f"; add {option}{others}" * bool(others)
            options = " ".join(f"--{name} {value}" for name, value in asked.items() if value)
            raise CellError(f"{options} does not fit all cells{rest} ({next(iter(refused.values()))})")
        return list(changed)


def _condition(text: str, grid: Sequence[Cell]) -> tuple[str, str, list[str]]:
    """Parse `--only SETTING=VALUE,VALUE` into the option as given, the setting and the values.

    Raises:
        CellError: No cell has such a setting.

    """
    name, equals, values = text.partition("=")
    if not equals:
        raise CellError(f"--only {text}: =VALUE is missing; expected SETTING=VALUE")
    names = {key: None for cell in grid for key in _settings(cell)}
    name = OPTIONS.get(name, CONDITIONS.get(name, name.replace("-", "_")))
    if name not in names:
        raise CellError(f"--only {text}: expected SETTING=VALUE with a setting of a cell; {near_matches(name, names)}")
    return f"--only {text}", name, values.split(",")


def _first(number: str, grid: Sequence[Cell]) -> list[str]:
    """Return the lowest seeds of the grid, as many as the number says.

    Raises:
        CellError: It is not a number between 1 and the number of seeds.

    """
    seeds = sorted({cell.seed for cell in grid if isinstance(cell, TrainedCell)})
    if not number.isdecimal() or not 0 < int(number) <= len(seeds):
        raise CellError(
            f"--seeds {number}: expected a number of seeds from 1 to {len(seeds)}, or seeds such as 0,2; for seed 0, "
            f"use --only seed=0"
        )
    return [str(seed) for seed in seeds[: int(number)]]


def _narrow(cells: Iterable[Cell], grid: Iterable[Cell], name: str, values: Iterable[str], source: str) -> list[Cell]:
    """Return the cells whose setting `name` has one of the values.

    Raises:
        CellError: No cell of the grid has one of the values.

    """
    in_grid: dict[str, str] = {}  # comparable form -> displayed form
    for cell in grid:
        if name in (settings := _settings(cell)):
            in_grid.setdefault(_comparable(settings[name]), _text(settings[name]))
    wanted = {_comparable(value): value.strip() for value in values}
    for comparable, value in wanted.items():
        if comparable not in in_grid:
            raise CellError(f"{source}: no cell has {name} {value}; {_near(value.lower(), in_grid.values())}")
    return [cell for cell in cells if name in (held := _settings(cell)) and _comparable(held[name]) in wanted]


def _settings(cell: Cell) -> dict[str, Any]:
    """Return the settings by option, spelled as there, and the cell's name, by which the report selects one cell."""
    spelled = {"weight_prediction": cell.weight_prediction} if isinstance(cell, TrainedCell) else {}
    return {**{OPTIONS.get(n, n): value for n, value in cell.to_dict().items()}, **spelled, "name": cell.name}


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


def _cells_of(exhibits: Sequence[str], scale: str) -> dict[Cell, None]:
    """Return the cells that these exhibits need.

    Raises:
        CellError: There is no such exhibit, or it has no cells at this scale.

    """
    plans = {_comparable(name): plan for name, plan in PLANS.items()}
    chosen: dict[Cell, None] = {}
    for exhibit in exhibits:
        if _comparable(exhibit) not in plans:
            raise CellError(f"--exhibits {exhibit}: no such exhibit has cells; {near_matches(exhibit.lower(), PLANS)}")
        cells = plans[_comparable(exhibit)](scale)
        if not cells:
            with_cells = [name for name, plan in PLANS.items() if plan(scale)]
            raise CellError(
                f"--exhibits {exhibit}: it has no cells at the scale {scale}; these have: {', '.join(with_cells)}"
            )
        chosen |= dict.fromkeys(cells)
    return chosen
