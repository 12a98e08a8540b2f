"""Test the message of every wrong command line and of every wrong setting of a cell."""

import pytest

from tests.messages import read
from tests.reproduce.errors import FILE, message_of

MESSAGES = read(FILE)


@pytest.mark.parametrize("case", MESSAGES)
def test_wrong_input_message(case: str) -> None:
    """`python -m tests.reproduce.errors` rewrites the messages if a difference is intended."""
    assert message_of(case) == MESSAGES[case], f"run `python -m tests.reproduce.errors` and review {FILE.name}"
