"""Measurements of `reproduce.tables.complexity` in the units of Table 1.

A formula counts activations in graphs (FG) or inputs of one stage, parameters in copies of a stage's weights, messages
in activations of one stream, FLOPs and time in forwards of one stage. The measured bytes are divided by the same units,
which are measured too: under backpropagation, FG is what an inner stage holds, and one stream is what it keeps of its
input. The paper counts j from 1, this suite from 0.
"""

import math
from typing import Any

from petra_core import methods
from petra_core.methods import Inputs
from reproduce.cells import ComplexityCell
from reproduce.published import Row
from reproduce.tables import formula
from reproduce.tables.results import Results, Run

FIRST_INNER = 1
#: names in the published file of the engine's methods
PUBLISHED_NAMES = {
    methods.BACKPROPAGATION: "backpropagation",
    methods.REVERSIBLE_BACKPROPAGATION: "reversible_backpropagation",
    methods.DELAYED_GRADIENTS: "delayed_gradients",
    methods.DSP: "delayed_gradients_checkpointing",
    methods.PETRA: "petra",
}


class Measured:
    """One measurement in the units of the table."""

    def __init__(self, run: Run[ComplexityCell], units: dict[str, Any]) -> None:
        self.cell = run.cell
        self.method = methods.by_name(run.cell.method)
        self.result = run.result
        self._units = units  # result of backpropagation on the same network

    @property
    def stages(self) -> int:
        """J."""
        return int(self.result["stages"])

    @property
    def inner(self) -> range:
        """The stages that are all alike."""
        return range(FIRST_INNER, self.stages - 1)

    def row(self, stage: int) -> dict[str, Any]:
        """The measured bytes of a stage."""
        found: dict[str, Any] = self.result["rows"][stage]
        return found

    def activation_bytes(self, stage: int) -> int:
        """Inputs and graphs held."""
        return int(self.row(stage)["inputs"] + self.row(stage)["graph"])

    @property
    def stream(self) -> int:
        """Bytes of one stream: backpropagation's inner stages keep one of their input."""
        return int(self._units["rows"][FIRST_INNER]["inputs"])

    @property
    def graph(self) -> int:
        """FG: bytes of the full graph of one stage, its input included."""
        row = self._units["rows"][FIRST_INNER]
        return int(row["inputs"] + row["graph"])

    @property
    def activation_unit(self) -> tuple[str, int]:
        """Name and bytes of what activations are counted in."""
        return ("FG", self.graph) if self.method.inputs is Inputs.GRAPH else ("inputs", self.stream)

    def activations(self, stage: int) -> float:
        """Activation storage in `activation_unit`."""
        return self.activation_bytes(stage) / self.activation_unit[1]

    def stashed_copies(self, stage: int) -> float:
        """Copies of a stage's weights besides the current one."""
        return float(self.row(stage)["stashed_weights"] / self.row(stage)["parameters"])

    def streams_sent(self, direction: str) -> float:
        """Message between inner stages, `up` or `down`, in streams."""
        return float(self.row(FIRST_INNER)[f"message_{direction}"] / self.stream)

    @property
    def flops(self) -> float:
        """FLOPs of an inner stage for one micro-batch, in forwards of it."""
        return float(self.result["stage_flops"] / self.result["stage_forward_flops"])

    def holds(self, row: Row) -> bool:
        """Whether the published formulas of activations, stashed weights and FLOPs hold at every inner stage."""
        return all(
            math.isclose(self.activations(stage), self._formula(row, "activation_storage", stage))
            and math.isclose(self.stashed_copies(stage), self._expected_copies(row, stage))
            for stage in self.inner
        ) and math.isclose(self.flops * self.stages, self._formula(row, "flops", FIRST_INNER))

    def _expected_copies(self, row: Row, stage: int) -> float:
        # The formula counts what is stashed where weights are stashed, and else the weights themselves.
        return math.ceil(self._formula(row, "parameter_storage", stage)) if self.method.stashes_weights else 0

    def _formula(self, row: Row, column: str, stage: int) -> float:
        values = {"J": self.stages, "j": stage + 1, "k": self.cell.accumulation, "FG": 1.0}
        return formula.evaluate(row[column], values)


def measured(results: Results) -> list[Measured]:
    """The finished measurements, by k, then in the order of the methods.

    One without a measurement of backpropagation on the same network, which gives the units, is left out.
    """
    done = [run for run in results.complexity if run.done]
    units = {_network(run.cell): run.result for run in done if run.cell.method == methods.BACKPROPAGATION.name}
    found = [Measured(run, units[_network(run.cell)]) for run in done if _network(run.cell) in units]
    return sorted(found, key=lambda m: (_network(m.cell), methods.ALL.index(m.method)))


def _network(cell: ComplexityCell) -> tuple[str, str, str, int, int, int, int]:
    """What must be equal for two measurements to share their units."""
    return (cell.scale, cell.model, cell.stem, cell.image_size, cell.width, cell.batch_size, cell.accumulation)
