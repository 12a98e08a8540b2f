"""Test that exponents and straight lines are least-squares fits with intervals."""

import pytest

from benchmarks.slopes import growth

PLACES = (4, 8, 16, 32)


def test_growth_interval_contains_exponent() -> None:
    """The interval of a noisy power law contains its exponent; two points give no interval."""
    noise = (1.02, 0.97, 1.01, 0.98)
    slope = growth(PLACES, [3 * x**1.5 * e for x, e in zip(PLACES, noise, strict=True)])
    assert slope.half_width is not None
    assert abs(slope.exponent - 1.5) < slope.half_width < 0.1
    two = growth((1, 2), (5.0, 20.0))
    assert (two.exponent, two.half_width, two.words(2)) == (pytest.approx(2), None, "2.00")


def test_growth_detects_lines_and_rejects_invalid_data() -> None:
    flat = growth(PLACES, [7.0] * 4)
    assert (flat.exponent, flat.half_width, flat.straight) == (0, 0, 1)
    assert flat.words() == "0.000 ± 0.000"
    slope = growth(PLACES, [10 + 2.0 * x for x in PLACES])  # with a fixed cost
    assert slope.straight == pytest.approx(1)
    assert slope.exponent < 0.9
    assert growth(PLACES, [x**3 for x in PLACES]).straight < 0.99
    for places, values in (([], []), ([2, 2], [1.0, 2.0]), ([0, 1], [1.0, 1.0]), ([1, 2], [0.0, 1.0])):
        with pytest.raises(ValueError, match=r"growth|power law"):
            growth(places, values)
