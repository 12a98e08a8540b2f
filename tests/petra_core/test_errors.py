"""Test that checks of numbers return valid values, and that their errors name the value and the valid range."""

import math
import re

import pytest

from petra_core.errors import check_int, check_number


def test_checks_return_valid_values():
    """check_int and check_number return valid values, the latter as floats."""
    assert check_int("width", 2, 2) == 2
    assert type(check_number("rate", 0)) is float
    assert check_number("rate", 7) == 7


@pytest.mark.parametrize(
    ("check", "error", "message"),
    [
        (lambda: check_int("width", 1, 2), ValueError, "width must be at least 2, got 1"),
        (lambda: check_int("width", True, 2), TypeError, "width must be an int of at least 2, got True"),
        (lambda: check_int("width", 2.0, 2), TypeError, "width must be an int of at least 2, got 2.0"),
        (lambda: check_int("width", "2", 2), TypeError, "width must be an int of at least 2, got '2'"),
        (lambda: check_number("rate", -0.1), ValueError, "rate must be at least 0 and finite, got -0.1"),
        (lambda: check_number("rate", math.inf), ValueError, "rate must be at least 0 and finite, got inf"),
        (lambda: check_number("rate", math.nan), ValueError, "rate must be at least 0 and finite, got nan"),
        (lambda: check_number("rate", 1.0, below=1.0), ValueError, "rate must be at least 0 and below 1, got 1.0"),
        (lambda: check_number("rate", True), TypeError, "rate must be a number, got True"),
        (lambda: check_number("rate", "0.1"), TypeError, "rate must be a number, got '0.1'"),
    ],
)
def test_checks_reject_invalid_values(check, error, message):
    """Errors about invalid values contain the name, the valid range and the value."""
    with pytest.raises(error, match=re.escape(message)):
        check()
