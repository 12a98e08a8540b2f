"""Test that comparisons can fail, since otherwise every other test would be worthless."""

import pytest
import torch

from tests.compare import assert_bitwise_equal, assert_close, relative_error

ONE = torch.ones(3, dtype=torch.float64)


def test_assertions_describe_differences() -> None:
    """Both assertions reject unequal values, and assert_close describes the difference."""
    for actual, expected, complaint in (
        (ONE + 1e-9, ONE, "relative error"),
        (ONE * torch.nan, ONE, "relative error nan"),
        (ONE.float(), ONE, "torch.float32 instead of torch.float64"),
        (ONE[:2], ONE, "instead of"),
        (None, ONE, "NoneType instead of a tensor"),
        ({"a": ONE}, {"b": ONE}, "keys differ"),
        ([ONE], [ONE, ONE], "1 items instead of 2"),
        ({"a": [ONE, ONE + 1]}, {"a": [ONE, ONE]}, r"value\['a'\]\[1\]"),
        (3, 4, "3 instead of 4"),
    ):
        with pytest.raises(AssertionError, match=complaint):
            assert_close(actual, expected)
        with pytest.raises(AssertionError):
            assert_bitwise_equal(actual, expected)


def test_close_uses_relative_error_and_bitwise_compares_bits() -> None:
    """assert_close scales by the largest expected value; assert_bitwise_equal distinguishes -0.0 from 0.0."""
    assert relative_error(torch.tensor([100.0, 1.0]), torch.tensor([100.0, 0.0])) == pytest.approx(0.01)
    assert_close({"a": (ONE + 1e-11, 7)}, {"a": (ONE, 7)})
    assert_close(ONE + 1e-4, ONE, tolerance=1e-3)
    assert_bitwise_equal([torch.tensor(torch.nan), torch.empty(0), 2], [torch.tensor(torch.nan), torch.empty(0), 2])
    with pytest.raises(AssertionError, match="bits differ"):
        assert_bitwise_equal(torch.tensor(0.0), torch.tensor(-0.0))
    with pytest.raises(AssertionError, match="bool instead of int"):
        assert_bitwise_equal(True, 1)
