"""Test that checks of numbers return valid values. Their errors are in errors.txt."""

from petra_core.errors import check_int, check_number


def test_checks_return_valid_values():
    """check_int and check_number return valid values, the latter as floats."""
    assert check_int("width", 2, 2) == 2
    assert type(check_number("rate", 0)) is float
    assert check_number("rate", 7) == 7
