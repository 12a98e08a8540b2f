"""Test that checks of numbers return valid values, and the message of every wrong call of the engine."""

import pytest

from petra_core.errors import check_int, check_number
from tests.messages import read
from tests.petra_core.errors import FILE, message_of

MESSAGES = read(FILE)


def test_checks_return_valid_values():
    """check_int and check_number return valid values, the latter as floats."""
    assert check_int("width", 2, 2) == 2
    assert type(check_number("rate", 0)) is float
    assert check_number("rate", 7) == 7


@pytest.mark.filterwarnings("ignore:`torch.jit.trace(_method)?` is deprecated")
@pytest.mark.parametrize("case", MESSAGES)
def test_wrong_call_message(case: str) -> None:
    """`python -m tests.petra_core.errors` rewrites the messages if a difference is intended."""
    assert message_of(case) == MESSAGES[case], f"run `python -m tests.petra_core.errors` and review {FILE.name}"
