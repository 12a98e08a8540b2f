"""Compare values in tests, with the tolerances in one place.

Element-by-element relative errors are meaningless if the expected value is almost zero, and absolute errors for a
gradient of 1e-6. `assert_close` measures the largest deviation of a tensor relative to its largest expected magnitude.
Values may be nested in tuples, lists and mappings; a failure names the place.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

# Exactness is claimed in float64. Comparisons of narrower types only detect gross errors.
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return the largest deviation relative to the largest expected magnitude, or absolute if that is zero."""
    if expected.numel() == 0:
        return 0.0
    deviation = (actual.double() - expected.double()).abs().max().item()
    scale = expected.double().abs().max().item()
    return deviation / scale if scale > 0 else deviation


def assert_close(actual: Any, expected: Any, tolerance: float | None = None) -> None:
    """Assert equality up to `tolerance`, by default that of the dtype in `TOLERANCES`. Compare other leaves by ==."""
    for place, a, e in _pairs(actual, expected, "value"):
        if not isinstance(e, Tensor):
            assert a == e, f"{place}: {a!r} instead of {e!r}"
            continue
        allowed = TOLERANCES.get(e.dtype, 0.0) if tolerance is None else tolerance
        error = relative_error(a, e)
        # Written so that a not-a-number fails too.
        assert error <= allowed, f"{place}: relative error {error:.3g}, allowed {allowed:.3g}"


def assert_bitwise_equal(actual: Any, expected: Any) -> None:
    """Assert equal bits: not-a-number equals itself, 0.0 differs from -0.0. Compare other leaves by type and ==."""
    for place, a, e in _pairs(actual, expected, "value"):
        if isinstance(e, Tensor):
            assert _bits(a).equal(_bits(e)), f"{place}: bits differ, relative error {relative_error(a, e):.3g}"
        else:
            assert type(a) is type(e), f"{place}: {type(a).__name__} instead of {type(e).__name__}"
            assert a == e, f"{place}: {a!r} instead of {e!r}"


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def _pairs(actual: Any, expected: Any, place: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield the leaves of two nested values in pairs, after checking that structure, dtypes and shapes agree."""
    if isinstance(expected, Tensor):
        assert isinstance(actual, Tensor), f"{place}: {type(actual).__name__} instead of a tensor"
        assert actual.dtype == expected.dtype, f"{place}: {actual.dtype} instead of {expected.dtype}"
        assert actual.shape == expected.shape, f"{place}: {tuple(actual.shape)} instead of {tuple(expected.shape)}"
        yield place, actual.detach().cpu(), expected.detach().cpu()
    elif isinstance(expected, Mapping):
        assert isinstance(actual, Mapping), f"{place}: {type(actual).__name__} instead of a mapping"
        assert actual.keys() == expected.keys(), f"{place}: keys differ in {set(actual) ^ set(expected)}"
        for key in expected:
            yield from _pairs(actual[key], expected[key], f"{place}[{key!r}]")
    elif isinstance(expected, tuple | list):
        assert isinstance(actual, tuple | list), f"{place}: {type(actual).__name__} instead of a sequence"
        assert len(actual) == len(expected), f"{place}: {len(actual)} items instead of {len(expected)}"
        for number, (a, e) in enumerate(zip(actual, expected, strict=True)):
            yield from _pairs(a, e, f"{place}[{number}]")
    else:
        yield place, actual, expected
