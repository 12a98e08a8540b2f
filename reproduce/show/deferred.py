"""What draws, imported when something of it is first used: matplotlib, seaborn, pandas, and what of them has a name.

To plan and to run a grid, every command asks the exhibits for their cells, and only the report draws; but importing
matplotlib, seaborn and pandas takes as long as importing torch. Drawing modules take these names from here and use them
as they would otherwise: they are called, their attributes are asked for, they stand in annotations. They are no
classes, so for `isinstance` or to derive from one, import it where it is used.

This module exports Axes, Drawing, Line2D, Patch, Rectangle, mpl, pd, sns, ticker.
"""

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["Axes", "Drawing", "Line2D", "Patch", "Rectangle", "mpl", "pd", "sns", "ticker"]


class _Deferred:
    """A module, or something of a module, that is imported at its first use."""

    def __init__(self, module: str, name: str = "") -> None:
        self._module, self._name = module, name

    def _found(self) -> Any:
        module = importlib.import_module(self._module)
        return getattr(module, self._name) if self._name else module

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._found(), attribute)

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        return self._found()(*arguments, **settings)


pd: Any = _Deferred("pandas")
sns: Any = _Deferred("seaborn")
if TYPE_CHECKING:
    import matplotlib as mpl
    from matplotlib import ticker
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch, Rectangle
else:
    mpl = _Deferred("matplotlib")
    ticker = _Deferred("matplotlib.ticker")
    Axes = _Deferred("matplotlib.axes", "Axes")
    Drawing = _Deferred("matplotlib.figure", "Figure")
    Line2D = _Deferred("matplotlib.lines", "Line2D")
    Patch = _Deferred("matplotlib.patches", "Patch")
    Rectangle = _Deferred("matplotlib.patches", "Rectangle")
