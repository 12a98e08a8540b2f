"""Checks of numbers: what passes comes back, what does not is named with its value and what is allowed."""

import math
import re

import pytest

from petra_core.arguments import check_int, check_number


def test_what_is_in_range_comes_back_a_number_as_a_float():
    assert check_int("width", 2, 2) == 2
    assert type(check_number("rate", 0)) is float
    assert check_number("rate", 7) == 7


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (1, ValueError, "width must be at least 2, got 1"),
        (True, TypeError, "width must be an int of at least 2, got True"),
        (2.0, TypeError, "width must be an int of at least 2, got 2.0"),
        ("2", TypeError, "width must be an int of at least 2, got '2'"),
    ],
)
def test_what_is_no_int_in_range(value, error, message):
    with pytest.raises(error, match=re.escape(message)):
        check_int("width", value, 2)


@pytest.mark.parametrize(
    ("value", "limits", "error", "message"),
    [
        (-0.1, {}, ValueError, "rate must be at least 0 and finite, got -0.1"),
        (math.inf, {}, ValueError, "rate must be at least 0 and finite, got inf"),
        (math.nan, {}, ValueError, "rate must be at least 0 and finite, got nan"),
        (1.0, {"below": 1.0}, ValueError, "rate must be at least 0 and below 1, got 1.0"),
        (0.4, {"minimum": 0.5}, ValueError, "rate must be at least 0.5 and finite, got 0.4"),
        (True, {}, TypeError, "rate must be a number, got True"),
        ("0.1", {}, TypeError, "rate must be a number, got '0.1'"),
    ],
)
def test_what_is_no_number_in_range(value, limits, error, message):
    with pytest.raises(error, match=re.escape(message)):
        check_number("rate", value, **limits)
