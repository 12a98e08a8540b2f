"""Test the message of every wrong call of the engine."""

import pytest

from tests.messages import read
from tests.petra_core.errors import FILE, message_of

MESSAGES = read(FILE)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace(_method)?` is deprecated")
@pytest.mark.parametrize("case", MESSAGES)
def test_wrong_call_message(case: str) -> None:
    """`python -m tests.petra_core.errors` rewrites the messages if a difference is intended."""
    assert message_of(case) == MESSAGES[case], f"run `python -m tests.petra_core.errors` and review {FILE.name}"
