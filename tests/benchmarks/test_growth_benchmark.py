"""The benchmark of growth runs, and its bytes are those that the methods' delays predict."""

import dataclasses
from pathlib import Path

import pytest
import torch

from benchmarks import growth
from petra_core import methods
from reproduce.records.benchmarks import Benchmark, Series, read
from tests.reproduce.records.test_benchmark_records import benchmark as a_race

PETRA, DELAYED = methods.PETRA.title, methods.DELAYED_GRADIENTS.title


def test_quick_measures_every_axis_and_writes_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    options = f"--quick --threads 1 --methods PETRA DELAYED_GRADIENTS --record --records {tmp_path}"
    try:
        benchmark = growth.main(options.split())
    finally:
        torch.set_num_threads(threads)
    assert read(tmp_path / "benchmarks" / "growth.json") == benchmark
    assert {series.group for series in benchmark.series if series.at is not None} == set(growth.AXES)
    assert {series.quantity for series in benchmark.series if series.at is not None} == {growth.TIME, growth.BYTES}

    depths = growth.QUICK["J"]
    assert [at for at, _ in benchmark.curve("J", PETRA, growth.TIME)] == list(depths)
    held = dict(benchmark.curve("J", PETRA, growth.BYTES))
    assert len(set(held.values())) == 1, "what an inner stage holds does not depend on the delay"
    stashed = dict(benchmark.curve("J", DELAYED, growth.BYTES))
    assert stashed[depths[0]] < stashed[depths[1]] < stashed[depths[2]]
    assert "exponent" in capsys.readouterr().out


def grown(seconds, held) -> Benchmark:
    """Two rounds a depth, one percent apart."""
    times = [Series("J", PETRA, growth.TIME, "s", (0.995 * seconds(j), 1.005 * seconds(j)), at=j) for j in (4, 8, 16)]
    sizes = [Series("J", PETRA, growth.BYTES, "B", (held(j),), at=j) for j in (4, 8, 16)]
    return dataclasses.replace(a_race(), series=(*times, *sizes))


@pytest.mark.parametrize(
    ("seconds", "held", "straight", "linear", "flat"),
    [
        (lambda j: 1 + j, lambda j: 5e3, True, True, True),
        (lambda j: j**1.5, lambda j: 5e3, True, False, True),
        (lambda j: j**3, lambda j: 5e3, False, False, True),
        (lambda j: 2 * j, lambda j: 5e3 * j, True, True, False),
        (lambda j: 2 * j, lambda j: 5e3 * j**0.05, True, True, False),
    ],
)
def test_claims_about_growth_can_fail(seconds, held, straight, linear, flat) -> None:
    found = growth.complete(grown(seconds, held))
    assert [goal.holds(found.spread(goal).median) for goal in found.goals] == [straight, linear, flat]


def test_nothing_is_claimed_where_depth_was_not_varied() -> None:
    found = growth.complete(a_race())
    assert (found.goals, found.findings) == ((), ())
