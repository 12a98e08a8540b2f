"""Checks of numbers: what passes comes back, what does not is named with its value and what is allowed."""

import math
import re

import pytest

from petra_core.arguments import check_int, check_number


@pytest.mark.parametrize("value", [2, 3, 10**9])
def test_an_int_in_range_comes_back(value):
    assert check_int("width", value, 2) is value


@pytest.mark.parametrize("value", [1, 0, -7])
def test_an_int_out_of_range(value):
    with pytest.raises(ValueError, match=rf"^width must be at least 2, got {value}$"):
        check_int("width", value, 2)


@pytest.mark.parametrize("value", [True, 2.0, "2", None])
def test_not_an_int(value):
    with pytest.raises(TypeError, match=re.escape(f"width must be an int of at least 2, got {value!r}")):
        check_int("width", value, 2)


@pytest.mark.parametrize("value", [0, 0.5, 7])
def test_a_number_in_range_comes_back_as_a_float(value):
    checked = check_number("rate", value)
    assert checked == value
    assert type(checked) is float


@pytest.mark.parametrize(
    ("value", "limits", "allowed"),
    [
        (-0.1, {}, "at least 0 and finite"),
        (math.inf, {}, "at least 0 and finite"),
        (math.nan, {}, "at least 0 and finite"),
        (1.0, {"below": 1.0}, "at least 0 and below 1"),
        (0.4, {"minimum": 0.5}, "at least 0.5 and finite"),
    ],
)
def test_a_number_out_of_range(value, limits, allowed):
    with pytest.raises(ValueError, match=re.escape(f"rate must be {allowed}, got {value}")):
        check_number("rate", value, **limits)


@pytest.mark.parametrize("value", [True, "0.1", None])
def test_not_a_number(value):
    with pytest.raises(TypeError, match=re.escape(f"rate must be a number, got {value!r}")):
        check_number("rate", value)
