"""Compare measurements of a chain of equal stages with the published formulas of Table 1, in the same units.

A formula counts activations in graphs (FG) or inputs of one stage, parameters in copies of a stage's weights, messages
in activations of one stream, FLOPs and time in forwards of one stage. The units are measured, too: under
backpropagation, FG is the memory of an inner stage, and one stream is the part of its input that it keeps. The paper
counts j from 1, this suite from 0.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from petra_core import methods
from petra_core.methods import Method
from reproduce import published
from reproduce.cells.kinds import ComplexityCell
from reproduce.grids.plans.table1 import FIRST_INNER
from reproduce.published import Row
from reproduce.records.run import Run

#: Names of the engine's methods in the published file, which lacks the others.
PUBLISHED_NAMES = {
    methods.BACKPROPAGATION: "backpropagation",
    methods.REVERSIBLE_BACKPROPAGATION: "reversible_backpropagation",
    methods.DELAYED_GRADIENTS: "delayed_gradients",
    methods.DSP: "delayed_gradients_checkpointing",
    methods.PETRA: "petra",
}
#: Published column for each value of `Measured.values`.
FORMULAS = {
    "activations": "activation_storage",
    "copies": "parameter_storage",
    "down": "communication_volume",
    "flops": "flops",
    "executed": "mean_time_per_batch",
    "time": "mean_time_per_batch",
}


@cache
def formulas() -> Mapping[Method, Row]:
    """Return the published formulas of Table 1 by method."""
    rows = {row["method"]: row for row in published.read("table1_complexity")}
    return {method: rows[name] for method, name in PUBLISHED_NAMES.items()}


@dataclass(frozen=True)
class Measured:
    """Measurement of a method at one J and k."""

    cell: ComplexityCell
    result: Mapping[str, Any]  # as returned by `reproduce.measures.complexity`
    stream: int  # bytes of one stream of activations between two inner stages
    graph: int  # bytes of the full graph of an inner stage, its input included (FG)

    @property
    def method(self) -> Method:
        """Method of the cell."""
        return methods.by_name(self.cell.method)

    @property
    def place(self) -> Mapping[str, int]:
        """Values of J and k of the measurement."""
        return {"J": self.result["stages"], "k": self.cell.accumulation}

    @property
    def inner(self) -> range:
        """Stages that are all alike."""
        return range(FIRST_INNER, self.place["J"] - 1)

    def values(self, stage: int = FIRST_INNER) -> Mapping[str, float]:
        """Return the measurements of an inner stage in the units of the formulas (seconds and FLOPs: of the first).

        Returns:
            Values by name: activations (bytes held), copies (of the weights, in addition to the current ones), up and
            down (messages, in streams), flops (of all stages, in forwards of one), executed (time per batch by the
            executed schedule, in forwards), time (by the clock, if all stages took as long as the first inner one: for
            methods that pass one batch at a time, the time through all stages; for others, the slower of forward and
            backward).

        """
        row, seconds, stages = self.result["rows"][stage], self.result["seconds"], self.place["J"]
        backward = seconds["backward"] / seconds["forward"]
        return {
            "activations": row["inputs"] + row["graph"],
            "copies": row["stashed_weights"] / row["parameters"],
            "up": row["message_up"] / self.stream,
            "down": row["message_down"] / self.stream,
            "flops": stages * self.result["stage_flops"] / self.result["stage_forward_flops"],
            "executed": self.result["units_overlapped"],
            "time": max(1.0, backward) if self.method.pipelined else stages * (1.0 + backward),
        }

    def formula(self, name: str, stage: int = FIRST_INNER) -> float:
        """Return the published formula of a value, for this network. Copies are not rounded up.

        Args:
            name: Name of the value.
            stage: Index of the stage.

        Raises:
            KeyError: The paper's table does not contain the method, or has no formula for the value.

        """
        values = {**self.place, "j": stage + 1, "FG": self.graph}
        value = evaluate(formulas()[self.method][FORMULAS[name]], values)
        if name == "activations" and not self.method.keeps_graph:
            return value * self.stream
        if name == "copies" and not self.method.stashes_weights:
            return 0.0  # the formula's 1 is the current weights
        if name == "down" and not self.method.reconstructs:
            return 2 * value  # the formula's 1 is for a network with one stream
        return value

    def follows(self, name: str) -> bool:
        """Return whether a value matches its formula, activations and copies at all inner stages, others at the first.

        Args:
            name: Name of the value.

        Raises:
            KeyError: The paper's table does not contain the method, or has no formula for the value.

        """
        whole = math.ceil if name == "copies" else float
        return all(
            math.isclose(self.values(stage)[name], whole(self.formula(name, stage)))
            for stage in (self.inner if name in ("activations", "copies") else self.inner[:1])
        )

    @property
    def holds(self) -> bool:
        """True if activations and stashes of all inner stages, and FLOPs of the first, match the formulas."""
        return all(self.follows(name) for name in ("activations", "copies", "flops"))


def read_measured(runs: Iterable[Run[Any]]) -> list[Measured]:
    """Return the finished measurements among these runs, by J and k, then in the order of the methods.

    A measurement without one of backpropagation on the same network, which gives the units, is left out.
    """
    done = {run.cell: run.result for run in runs if isinstance(run.cell, ComplexityCell) and run.done}
    counted = []
    for cell, result in done.items():
        exact = done.get(replace(cell, method=methods.BACKPROPAGATION.name))
        if exact is not None:
            row = exact["rows"][FIRST_INNER]
            counted.append(Measured(cell, result, row["inputs"], row["inputs"] + row["graph"]))
    return sorted(counted, key=lambda m: (*m.place.values(), methods.ALL.index(m.method)))


def evaluate(formula: str, values: Mapping[str, float]) -> float:
    """Return the value of a published formula.

    A formula written as code would compare a measurement with the copy, not with the publication.

    Args:
        formula: Text in the published table; "3J" and "2(J-j)" are products.
        values: Values of its names, such as {"J": 10, "j": 1, "k": 4}.

    """
    return float(eval(re.sub(r"(\d)\s*(?=[A-Za-z(])", r"\1*", formula), {"__builtins__": {}}, dict(values)))
