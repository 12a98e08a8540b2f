"""Measurements of `reproduce.measures.complexity` in the units of Table 1.

A formula counts activations in graphs (FG) or inputs of one stage, parameters in copies of a stage's weights, messages
in activations of one stream, FLOPs and time in forwards of one stage. The measured bytes are divided by the same units,
which are measured too: under backpropagation, FG is what an inner stage holds, and one stream is what it keeps of its
input. The paper counts j from 1, this suite from 0. Measured seconds are divided by those of the same stage's forward.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from petra_core import methods
from petra_core.methods import Inputs
from reproduce.cells.kinds import ComplexityCell
from reproduce.grids.scales import SCALES
from reproduce.modelling import formula
from reproduce.published import Row
from reproduce.records.results import Results, Run

FIRST_INNER = 1
TABULATED = (1, 4)  # k whose measurements are tabulated in full; all are drawn and listed
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

    @property
    def backward_time(self) -> float | None:
        """Seconds of an inner stage's backward, with what it rebuilds, in forwards of it; None in old records."""
        seconds = self.result.get("seconds")
        return None if seconds is None else float(seconds["backward"] / seconds["forward"])

    @property
    def time(self) -> float | None:
        """Time per batch in forwards of a stage, if all stages took as long as the first inner one.

        One at a time a batch passes all stages; else the slower of forward and backward sets the pace, as in Table 1.
        """
        if self.backward_time is None:
            return None
        return max(1.0, self.backward_time) if self.method.pipelined else self.stages * (1.0 + self.backward_time)

    def holds(self, row: Row) -> bool:
        """Whether the published formulas of activations, stashed weights and FLOPs hold at every inner stage."""
        return all(
            math.isclose(self.activations(stage), self.formula(row, "activation_storage", stage))
            and math.isclose(self.stashed_copies(stage), self._expected_copies(row, stage))
            for stage in self.inner
        ) and math.isclose(self.flops * self.stages, self.formula(row, "flops", FIRST_INNER))

    def _expected_copies(self, row: Row, stage: int) -> float:
        # The formula counts what is stashed where weights are stashed, and else the weights themselves.
        return math.ceil(self.formula(row, "parameter_storage", stage)) if self.method.stashes_weights else 0

    def formula(self, row: Row, column: str, stage: int) -> float:
        """A published formula at this measurement's J and k and at a stage."""
        values = {"J": self.stages, "j": stage + 1, "k": self.cell.accumulation, "FG": 1.0}
        return formula.evaluate(row[column], values)


@dataclass(frozen=True)
class Sweep:
    """The measurements of one scale.

    Attributes:
        scale: its name.
        all: every measurement, by J, then k, then in the order of the methods.

    """

    scale: str
    all: tuple[Measured, ...]

    @property
    def reference_stages(self) -> int:
        """The J at which k is varied most."""
        ks = {m.stages: {n.cell.accumulation for n in self.all if n.stages == m.stages} for m in self.all}
        return max(sorted(ks), key=lambda stages: len(ks[stages]))

    @property
    def reference(self) -> list[Measured]:
        """What is tabulated stage by stage: that J, and of its k those of `TABULATED` (all, if it has none of them)."""
        own = self.by_accumulation
        return [m for m in own if m.cell.accumulation in TABULATED] or own

    @property
    def by_accumulation(self) -> list[Measured]:
        """Growth with k, at the reference J."""
        return [m for m in self.all if m.stages == self.reference_stages]

    @property
    def by_stages(self) -> list[Measured]:
        """Growth with J, at the smallest k."""
        least = min(m.cell.accumulation for m in self.all)
        return [m for m in self.all if m.cell.accumulation == least]


def sweeps(results: Results) -> list[Sweep]:
    """The finished measurements, scale by scale."""
    found = measured(results)
    names = dict.fromkeys(m.cell.scale for m in found)
    return [Sweep(name, tuple(m for m in found if m.cell.scale == name)) for name in names]


def smallest(found: Sequence[Measured]) -> list[Measured]:
    """Those of the smallest k."""
    least = min(m.cell.accumulation for m in found)
    return [m for m in found if m.cell.accumulation == least]


def measured(results: Results) -> list[Measured]:
    """The finished measurements, by scale, J and k, then in the order of the methods.

    One without a measurement of backpropagation on the same network, which gives the units, is left out.
    """
    done = [run for run in results.complexity if run.done]
    units = {_network(run.cell): run.result for run in done if run.cell.method == methods.BACKPROPAGATION.name}
    found = [Measured(run, units[_network(run.cell)]) for run in done if _network(run.cell) in units]
    place = {name: position for position, name in enumerate(SCALES)}
    return sorted(
        found,
        key=lambda m: (
            place.get(m.cell.scale, len(place)),
            m.cell.scale,
            m.stages,
            m.cell.accumulation,
            methods.KNOWN.index(m.method),
        ),
    )


def _network(cell: ComplexityCell) -> tuple[str, str, str, int, int, int, int]:
    """What must be equal for two measurements to share their units."""
    return (cell.scale, cell.model, cell.stem, cell.image_size, cell.width, cell.batch_size, cell.accumulation)
