"""Test the published formulas, evaluated as they are printed."""

import pytest

from reproduce import published
from reproduce.modelling.formula import evaluate

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
