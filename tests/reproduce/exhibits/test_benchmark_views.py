"""What the report says of growth, memory and peers follows from the records, and can come out against us."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from petra_core import methods
from reproduce.exhibits import benchmark_growth, benchmark_memory, benchmark_peers, benchmark_tick, benchmarks
from reproduce.modelling.slopes import line, power_law
from reproduce.records.benchmarks import Benchmark, Comparison, Series
from reproduce.records.results import Results
from reproduce.show.content import Figure, Table, Tone
from tests.reproduce.records.test_benchmark_records import benchmark

PETRA, DELAYED = methods.PETRA.title, methods.DELAYED_GRADIENTS.title
DEPTHS = (4, 8, 16, 32)


def with_series(name: str, *series: Series, **setting: str | float) -> Benchmark:
    return dataclasses.replace(benchmark(), name=name, series=series, timelines={}, setting=setting)


def growth(seconds, held) -> Benchmark:
    """Two rounds a depth, one percent apart."""
    return with_series(
        "growth",
        *(
            Series("J", PETRA, benchmark_growth.TIME, "s", (0.995 * seconds(j), 1.005 * seconds(j)), at=j)
            for j in DEPTHS
        ),
        *(Series("J", PETRA, benchmark_growth.BYTES, "B", (held(j),), at=j) for j in DEPTHS),
        *(Series("J", DELAYED, benchmark_growth.BYTES, "B", (1e4 * j,), at=j) for j in DEPTHS),
    )


def test_an_exponent_has_an_interval_that_holds_it() -> None:
    x, noise = (2, 4, 8, 16, 32), (1.02, 0.97, 1.01, 0.98, 1.03)
    y = [3 * a**1.5 * e for a, e in zip(x, noise, strict=True)]
    law = power_law(list(zip(x, y, strict=True)))
    expected = stats.linregress(np.log(x), np.log(y))
    factor = stats.t.ppf(0.975, len(x) - 2)
    assert (law.exponent, law.half_width) == pytest.approx((expected.slope, factor * expected.stderr))
    assert abs(law.exponent - 1.5) < law.half_width < 0.1
    assert power_law([(1, 5.0), (2, 20.0)]) == dataclasses.replace(law, exponent=pytest.approx(2), half_width=None)
    flat = power_law([(x, 7.0) for x in DEPTHS])
    assert (flat.exponent, flat.half_width) == pytest.approx((0, 0), abs=1e-12)


def test_a_straight_line_with_a_fixed_cost_has_an_exponent_below_one() -> None:
    points = [(x, 10 + 2.0 * x) for x in DEPTHS]
    found = line(points)
    assert (found.intercept, found.slope, found.explained) == pytest.approx((10, 2, 1))
    assert power_law(points).exponent < 0.9
    assert line([(x, x**3) for x in DEPTHS]).explained < 0.99
    assert line([(x, 4.0) for x in DEPTHS]).explained == 1


@pytest.mark.parametrize("points", [[], [(2, 1.0), (2, 2.0)], [(0, 1.0), (1, 1.0)], [(1, 0.0), (2, 1.0)]])
def test_growth_needs_two_places_and_positive_numbers(points) -> None:
    with pytest.raises(ValueError, match=r"growth|power law"):
        power_law(points)


@pytest.mark.parametrize(
    ("seconds", "held", "linear", "flat"),
    [
        (lambda j: 1 + j, lambda j: 5e3, True, True),
        (lambda j: j**1.5, lambda j: 5e3, False, True),
        (lambda j: 2 * j, lambda j: 5e3 * j, True, False),
        (lambda j: 2 * j, lambda j: 5e3 * j**0.05, True, False),
    ],
)
def test_claims_about_growth_can_fail(seconds, held, linear, flat) -> None:
    found = benchmark_growth.findings(growth(seconds, held))
    assert [finding.tone is Tone.GOOD for finding in found] == [linear, flat]


def test_the_section_has_the_curves_and_fits_of_growth() -> None:
    made = growth(lambda j: 1 + j, lambda j: 5e3)
    section = benchmarks.section(Results((), (), benchmarks=(made,)))
    (figure,) = (block for block in section.blocks if isinstance(block, Figure))
    assert "stages J" in figure.description
    assert figure.svg.count("<path") > 10
    (table,) = (block for block in section.blocks if isinstance(block, Table))
    by_method = {(row[0].text.split(",")[0], row[1].text): row[7].value for row in table.rows}
    assert by_method[benchmark_growth.BYTES, DELAYED] == pytest.approx(1)
    assert all(finding.text.startswith("Benchmarks: Growth: ") for finding in section.findings)


def test_the_largest_batches_are_told_even_where_another_fits_more() -> None:
    series = [
        Series("budget", name, quantity, "images", (value,))
        for name, foretold, found in ((PETRA, 40, 38), (DELAYED, 20, 0), (methods.BACKPROPAGATION.title, 70, 77))
        for quantity, value in ((benchmark_memory.FORETOLD, foretold), (benchmark_memory.FOUND, found))
    ]
    there = Series("budget", PETRA, benchmark_memory.THERE, "B", (6.3e7,))
    curve = [Series("batch", PETRA, "allocated peak", "B", (1e6 * b,), at=b) for b in (8, 16)]
    made = with_series("memory", *series, there, *curve, budget=64.0, network="revnet18", width=16, size=16)
    figure, table = benchmark_memory.blocks(made)
    assert isinstance(figure, Figure)
    assert [[entry.text for entry in row] for row in table.rows][:2] == [
        ["PETRA", "40", "38", "63.00"],
        ["Delayed gradients", "20", "0", "no batch fits"],
    ]
    (finding,) = benchmark_memory.findings(made)
    assert "Backpropagation's, 77 images; PETRA's is 38" in finding.text


def test_peers_that_are_ahead_failed_or_were_not_there_are_said_to_be() -> None:
    def of(name: str, seconds: float, updates: float) -> list[Series]:
        return [
            Series("chain", name, "time of a step", "s", (seconds,)),
            Series("chain", name, "gradient error, float64", "relative", (0.0,)),
            Series("chain", name, "BatchNorm updates", "a step", (updates,)),
        ]

    names = ("autograd", "fast", "broken", "absent", "ours, PETRA")
    made = with_series(
        "peers",
        *of("autograd", 0.010, 1),
        *of("fast", 0.015, 2),
        *of("ours, PETRA", 0.020, 1),
        **dict(
            zip(names, ("torch 2", "1.0", "3.1: failed with OSError: no", "not installed", "this project"), strict=True)
        ),
        **dict.fromkeys(("size", "batch"), 8),
        contestants="; ".join(names),
    )
    ahead, table = benchmark_peers.blocks(made)
    rows = {row[1].text: [entry.text for entry in row[2:4]] for row in table.rows}
    assert rows["broken"][0] == "3.1: failed with OSError: no"
    assert rows["absent"][0] == "not installed"
    assert rows["fast"] == ["1.0", "15.0"]
    assert ahead == "Ahead of ours, PETRA, of whose value they need: chain, time: fast (0.75)."
    first, finding = benchmark_peers.findings(made)
    assert first.text == ahead
    assert finding.text.endswith("More than one BatchNorm update a step: fast (2).")


def a_tick(other: str, limit: str, seconds: tuple[float, float, float], aim: float) -> Benchmark:
    """Of tick, its rival and what is between them; three rounds, of which the second is twice as slow for all."""
    series = [
        Series("net", name, "time", "s", (value, 2 * value, value))
        for name, value in zip((benchmark_tick.TICK, other, limit), seconds, strict=True)
    ]
    return dataclasses.replace(
        with_series("tick-mine", *series),
        comparisons=(
            Comparison("net", "time", benchmark_tick.TICK, other, high=aim),
            Comparison("net", "time", limit, other),
            Comparison("net", "time", benchmark_tick.TICK, limit),
        ),
    )


def test_a_tick_is_told_beside_what_it_has_to_evaluate() -> None:
    plain, with_forward = benchmark_tick.PLAIN, benchmark_tick.PLAIN_AND_FORWARD
    [missed] = benchmark_tick.findings(a_tick(plain, with_forward, (1.30, 1.0, 1.32), aim=1.25))
    assert "give a ratio of 1.320 to one autograd step; the tick has 1.300" in missed.text
    assert "The aim of at most 1.25 is out of reach" in missed.text
    [slow] = benchmark_tick.findings(a_tick(plain, with_forward, (1.30, 1.0, 1.20), aim=1.25))
    assert "is within reach" in slow.text
    double, twice = "tick of Approximate inputs", benchmark_tick.TICK_AND_FUNCTIONS
    [found] = benchmark_tick.findings(a_tick(double, twice, (0.9, 1.0, 1.2), aim=0.85))
    assert "give a ratio of 0.750 to one tick of Approximate inputs; the tick has 0.900" in found.text
    assert "is within reach" in found.text


def test_what_was_not_measured_beside_a_tick_is_not_told() -> None:
    whole = a_tick(benchmark_tick.PLAIN, benchmark_tick.PLAIN_AND_FORWARD, (1.30, 1.0, 1.32), aim=1.25)
    assert benchmark_tick.findings(dataclasses.replace(whole, comparisons=whole.comparisons[:1])) == []
    assert benchmark_tick.findings(dataclasses.replace(whole, comparisons=whole.comparisons[1:])) == []
