"""Test measurements in the units of Table 1: on a chain of equal stages they follow the published formulas."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from petra_core import methods
from petra_core.methods import Method
from reproduce import published
from reproduce.cells.base import Cell
from reproduce.measures.complexity import measure_complexity
from reproduce.modelling.complexity import PUBLISHED_NAMES, Measured, evaluate, formulas, read_measured
from reproduce.records.record import State, Status
from reproduce.records.results import Run
from tests import fake_records

GRIDS = [(2, 1), (3, 1), (3, 4)]  # inner stages, k
STREAM = 2 * 4 * 4 * 4 * 4  # batch 2, 4 channels, 4x4 pixels after the stem's stride, float32


@cache
def run(method: Method, depth: int, k: int) -> Run[Cell]:
    cell = replace(fake_records.complexity_cell(method, k), model=f"chain{depth}")
    return Run(cell, State(Status.DONE, result=measure_complexity(cell)))


def one(method: Method, depth: int, k: int, changes: Mapping[str, Any] | None = None) -> Measured:
    """Return the measurement, with some entries of its result changed."""
    alone = run(method, depth, k)
    exact = run(methods.BACKPROPAGATION, depth, k)
    both = read_measured(
        [exact, replace(alone, state=replace(alone.state, result={**alone.result, **(changes or {})}))]
    )
    return next(m for m in both if m.method is method)


@pytest.mark.parametrize(("depth", "k"), GRIDS)
@pytest.mark.parametrize("method", PUBLISHED_NAMES, ids=str)
def test_measurements_equal_the_formulas_of_table1(method: Method, depth: int, k: int) -> None:
    """Activations, weight copies, messages, FLOPs and forwards equal the formulas; the head reconstructs nothing."""
    m = one(method, depth, k)
    assert m.stream == STREAM
    assert m.place == {"J": depth + 2, "k": k}
    for stage in m.inner:
        values = m.values(stage)
        assert values["activations"] == m.formula("activations", stage)
        assert values["copies"] == math.ceil(m.formula("copies", stage))
        assert values["down"] == m.formula("down", stage)
    assert m.values()["flops"] == m.formula("flops")
    assert m.values()["executed"] == m.formula("executed") - (method is methods.REVERSIBLE_BACKPROPAGATION)
    assert m.result["ticks_per_micro_batch"] == (1 if method.pipelined else 2 * m.place["J"] - 1)
    assert m.holds


@pytest.mark.parametrize("method", methods.PAPER, ids=str)
def test_messages_are_two_streams_or_four_with_inputs(method: Method) -> None:
    """A message contains two streams, and four on the way down if the method returns inputs."""
    m = one(method, 3, 1)
    assert {m.values(stage)["up"] for stage in m.inner} == {2}
    assert {m.values(stage)["down"] for stage in m.inner} == {4 if method.reconstructs else 2}
    assert m.result["rows"][0]["message_up"] is None
    assert m.result["rows"][-1]["message_down"] is None


def test_copies_are_not_rounded_and_unpublished_has_no_formula() -> None:
    """Formulas are not rounded, and a method that the paper lacks has none."""
    assert [one(methods.DELAYED_GRADIENTS, 3, k).formula("copies") for k in (1, 4)] == [6, 1.5]
    assert methods.APPROXIMATE_INPUTS not in formulas()
    with pytest.raises(KeyError):
        one(methods.APPROXIMATE_INPUTS, 3, 1).formula("copies")


@pytest.mark.parametrize("kind", ["inputs", "stashed_weights"])
def test_deviation_at_one_stage_is_detected(kind: str) -> None:
    """A deviation from a formula at one stage, or in the FLOPs, is detected."""
    rows = [dict(row) for row in run(methods.DSP, 3, 1).result["rows"]]
    rows[3][kind] += rows[3]["parameters"]
    assert not one(methods.DSP, 3, 1, {"rows": rows}).holds
    assert not one(methods.DSP, 3, 1, {"stage_flops": 1.0}).holds


def test_measurements_are_ordered_and_need_backpropagation() -> None:
    """Measurements are ordered by J, k and method, and need backpropagation at the same J and k."""
    runs = [run(method, depth, k) for depth, k in reversed(GRIDS) for method in reversed(methods.PAPER)]
    in_order = read_measured(runs)
    assert [(*m.place.values(), m.method) for m in in_order] == [(d + 2, k, m) for d, k in GRIDS for m in methods.PAPER]
    (exact,) = read_measured([run(methods.PETRA, 3, 1), run(methods.BACKPROPAGATION, 3, 4)])
    assert exact.method is methods.BACKPROPAGATION


VALUES = {"J": 10.0, "j": 3.0, "k": 4.0, "FG": 100.0}


@pytest.mark.parametrize(
    ("text", "value"), [("FG", 100.0), ("3J", 30.0), ("2(J-j)*FG", 1400.0), ("2 (J - j) / k + 1.5", 5.0)]
)
def test_evaluate_gives_the_value(text: str, value: float) -> None:
    assert evaluate(text, VALUES) == value


def test_every_published_formula_has_a_value() -> None:
    for row in published.read("table1_complexity"):
        for column, text in row.fields.items():
            if column != "method":
                assert evaluate(text, VALUES) >= 0
