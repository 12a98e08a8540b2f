"""Tests do not depend on those that run before them in the same process."""

import pytest
import torch

pytest_plugins = ["pytester"]

TESTS = """
import pytest
import torch

@pytest.fixture(scope="module")
def seen():
    return torch.get_num_threads()

def test_that_calls_a_command():
    torch.set_num_threads(2)

def test_after_it(seen):
    assert (seen, torch.get_num_threads()) == (1, 1)
"""


def test_threads_that_a_command_takes_are_not_left_to_the_next_test(pytester: pytest.Pytester):
    pytester.makepyfile(TESTS)
    pytester.runpytest_inprocess("-p", "tests.conftest").assert_outcomes(passed=2)
    assert torch.get_num_threads() == 1
