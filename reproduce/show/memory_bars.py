"""Stacked bars of memory: one bar a network, one colour a kind of tensor, the sum at its end."""

from collections.abc import Mapping

import seaborn as sns
from matplotlib.figure import Figure as Drawing

from petra_core.ledger import KINDS
from reproduce.show import plots
from reproduce.show.plots import KIND_COLOURS


def draw(*, key: str, title: str, description: str, bars: Mapping[str, Mapping[str, float]], unit: str) -> str:
    """An SVG.

    Args:
        key: unique within the page.
        title: accessible name.
        description: what can be seen, in words.
        bars: name of the bar -> kind -> amount; kinds of no amount anywhere are left out.
        unit: of the amounts.

    """
    kinds = [kind for kind in KINDS if any(by_kind.get(kind, 0) for by_kind in bars.values())]
    with plots.style():
        drawing = Drawing(figsize=(10.4, 1.1 + 0.38 * len(bars)), layout="constrained")
        panel = drawing.subplots()
        for row, by_kind in enumerate(bars.values()):
            left = 0.0
            for kind in kinds:
                panel.barh(row, by_kind.get(kind, 0), 0.66, left, color=KIND_COLOURS[kind], linewidth=0)
                left += by_kind.get(kind, 0)
            panel.annotate(f" {left:.1f}", (left, row), va="center", fontsize=8, color=plots.QUIET)
        panel.set(ylim=(len(bars) - 0.5, -0.5), yticks=range(len(bars)), yticklabels=list(bars), xlabel=unit)
        panel.margins(x=0.06)
        panel.grid(visible=True, axis="x")
        panel.grid(visible=False, axis="y")
        panel.tick_params(axis="y", length=0)
        sns.despine(drawing, left=True)
        handles = [panel.barh(0, 0, color=KIND_COLOURS[kind], label=kind.replace("_", " ")) for kind in kinds]
        drawing.legend(handles=handles, loc="outside lower center", ncols=len(kinds))
        return plots.to_svg(drawing, key=key, title=title, description=description)
