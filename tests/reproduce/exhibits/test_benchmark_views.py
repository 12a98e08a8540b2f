"""Test the views of benchmark records: ratios, failed contestants, curves."""

import dataclasses
from pathlib import Path

from petra_core import methods
from reproduce.exhibits import benchmarks, schedules
from reproduce.presentation.content import Figure
from reproduce.records.benchmarks import Comparison, Series, write
from tests import sections
from tests.fake_records import ENVIRONMENT, FAST, FASTER, PATCH, RATE, SLOW, benchmark

DELAYED, PETRA = methods.DELAYED_GRADIENTS.title, methods.PETRA.title


@sections.situation(benchmarks.EXHIBIT)
def ratios_on_two_devices(root: Path) -> None:
    """The second record of a benchmark refers to the first, and names its GPU. A long finding is cut."""
    write(benchmark(FASTER, Comparison("track", RATE, SLOW, FAST), patch=PATCH), root)
    again = dataclasses.replace(
        benchmark(FASTER, name="race-night"),
        findings=("Ahead of ours: a horse; a hare; a dog; a cat; a snail.",),
        environment={**ENVIRONMENT, "device": "NVIDIA H200"},
    )
    write(again, root)


@sections.situation(benchmarks.EXHIBIT)
def curves_and_tables_without_comparisons(root: Path) -> None:
    """Series over a size are curves, others a table, in which failed and absent contestants have rows."""
    held = [Series("J", PETRA, "bytes", "B", (5e6,), at=j) for j in (4, 8, 16)]
    held += [Series("J", DELAYED, "bytes", "B", (1e6 * j,), at=j) for j in (4, 8, 16)]
    names = {"autograd": "torch 2", "broken": "3.1: failed with OSError: no", "absent": "not installed"}
    compared = (
        Series("chain", "autograd", "error", "relative", (1.25e-7,)),
        Series("chain", "autograd", "time", "s", (0.010, 0.020, 0.015)),
        Series("chain", "autograd", "peak", "B", (6.3e7,)),
        Series("chain", "broken", "peak", "B", (0.0,)),
    )
    budget = Series("budget", PETRA, "largest batch", "images", (49,))
    for name, series, setting in (
        ("held", held, {"laps": 3}),
        ("peers", compared, {"contestants": "; ".join(names), **names}),
        ("budget", [budget], {}),
    ):
        record = dataclasses.replace(benchmark(name=name), title=name, command=f"python -m benchmarks.{name}")
        write(dataclasses.replace(record, series=tuple(series), timelines={}, setting=setting), root)


@sections.situation(benchmarks.EXHIBIT)
def no_benchmark(root: Path) -> None:
    """The section states that no benchmark is recorded."""


def test_timelines_of_benchmarks_are_drawn() -> None:
    section = sections.of_benchmarks(benchmarks.EXHIBIT, benchmark())
    assert any(isinstance(block, Figure) and "F3" in block.svg for block in section.blocks)


def test_schedules_draw_both_timings_and_every_other_schedule() -> None:
    rendered = sections.of_benchmarks(schedules.EXHIBIT)
    drawn = [block for block in rendered.blocks if isinstance(block, Figure)]
    assert len(drawn) == 1 + len(schedules.OTHERS)
    assert all(f"PETRA, {timing}" in drawn[0].svg for timing in schedules.TIMINGS)
    assert "With 4 stages, 6 later micro-batches" in rendered.sentence
    for figure in drawn:
        assert "F1 of stage 3: " in figure.svg
        assert "devices are idle for" in figure.caption
