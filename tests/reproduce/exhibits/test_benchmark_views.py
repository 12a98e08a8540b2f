"""Test the views of benchmark records: ratios, missed and reached aims, failed contestants, curves."""

import dataclasses
from functools import partial
from typing import Any

import pytest

from petra_core import methods
from reproduce.exhibits import benchmarks
from reproduce.presentation.content import Figure, Role, Section, Table
from reproduce.records.benchmarks import Benchmark, Comparison, Goal, Series
from tests import sections
from tests.fake_records import PATCH
from tests.reproduce.records.test_benchmark_records import FAST, FASTER, MEMORY, RATE, SLOW, benchmark

DELAYED, PETRA = methods.DELAYED_GRADIENTS.title, methods.PETRA.title

rendered = partial(sections.of_benchmarks, benchmarks.EXHIBIT)


def tables(shown_section: Section) -> dict[str, Table]:
    return {table.key.removeprefix("benchmark-"): table for table in sections.tables(shown_section)}


def texts(table: Table) -> list[list[str]]:
    return [[entry.text for entry in row] for row in table.rows]


def with_series(*series: Series, **setting: Any) -> Benchmark:
    return dataclasses.replace(benchmark(), series=series, timelines={}, setting=setting)


def test_view_shows_median_ratio_and_reached_aim() -> None:
    """The view of a benchmark contains the median ratio, its aim, the environment and the patch."""
    section = rendered(benchmark(FASTER, Comparison("track", RATE, SLOW, FAST), patch=PATCH))
    table = tables(section)["race"]
    first, second = texts(table)
    assert first == ["track", "fast over slow", RATE, "3.000 (2.500 to 3.500)", "3", "at least 2.5: holds"]
    assert second[3].startswith("0.333 (")
    assert "laps 3" in table.caption
    weather, where, again = table.notes
    assert (weather, again) == ("It rained.", "Again: python -m benchmarks.race --laps 3")
    assert where.startswith("Run on 2026-01-02: device cpu, processor A Processor with <angle> brackets, cores")
    assert where.endswith("load 0.50 before, 1.50 after; commit 0123456789ab.")
    assert [(finding.text, finding.role) for finding in section.findings] == [
        ("Benchmarks: race: 1 aim reached.", Role.GOOD)
    ]
    assert any(isinstance(block, Figure) and "F3" in block.svg for block in section.blocks)
    (patch,) = section.folded
    assert patch.text == PATCH  # type: ignore[union-attr]  # a Listing


def test_view_names_the_gpu() -> None:
    """The caption of a benchmark that ran on a GPU names the GPU."""
    record = benchmark(FASTER)
    on_gpu = dataclasses.replace(record, environment={**record.environment, "device": "NVIDIA H200"})
    section = rendered(on_gpu)
    assert tables(section)["race"].caption.startswith("A race (NVIDIA H200): measured ratios")


def test_records_of_one_benchmark_are_explained_once() -> None:
    """The second record of the same benchmark refers to the explanation of the first."""
    section = rendered(benchmark(FASTER), benchmark(FASTER, name="race-night"))
    paragraphs = [block for block in section.blocks if isinstance(block, str)]
    assert "A race. Two run." in paragraphs
    assert "A race, recorded as race-night: as explained above under “A race”." in paragraphs


def test_missed_aim_is_an_alert_and_script_findings_are_kept() -> None:
    """A missed aim is a finding with tone ALERT, and findings of the script are reported."""
    missed = Comparison("track", RATE, FAST, SLOW, low=5)
    record = dataclasses.replace(benchmark(FASTER, missed), findings=("Ahead of ours: a horse.",))
    first, second = rendered(record).findings
    assert first.role is Role.ALERT
    assert "1 of 2 aims not reached. track: fast over slow, throughput, 3.000 instead of at least 5." in first.text
    assert second.text == "Benchmarks: race: Ahead of ours: a horse."


def test_aims_may_apply_to_values() -> None:
    """An aim may apply to a measured value, not only to a ratio."""
    goals = (Goal("track", MEMORY, FAST, high=4), Goal("track", RATE, FAST, low=20))
    section = rendered(dataclasses.replace(benchmark(), goals=goals))
    first, second = texts(tables(section)["race"])
    assert first == ["track", FAST, MEMORY, "5 MB", "1", "at most 4: does not hold"]
    assert second == ["track", FAST, RATE, "300 (160 to 350) laps/s", "3", "at least 20: holds"]
    [finding] = section.findings
    assert finding.role is Role.ALERT
    assert "1 of 2 aims not reached. track: fast, memory, 5 MB instead of at most 4 MB." in finding.text


def test_curves_are_drawn_with_setting() -> None:
    """Series over a size are drawn as curves, and the setting is stated."""
    held = [Series("J", PETRA, "bytes", "B", (5e6,), at=j) for j in (4, 8, 16)]
    held += [Series("J", DELAYED, "bytes", "B", (1e6 * j,), at=j) for j in (4, 8, 16)]
    section = rendered(with_series(*held, laps=3))
    (figure,) = (block for block in section.blocks if isinstance(block, Figure))
    assert f"{PETRA} from 5 to 5" in figure.description
    assert f"{DELAYED} from 4 to 16" in figure.description
    assert any(
        isinstance(block, str) and block.startswith("Setting: laps 3. It rained. Run") for block in section.blocks
    )


def test_failed_and_absent_contestants_have_rows() -> None:
    """Contestants that failed or were not installed have a row with the reason."""
    names = {"autograd": "torch 2", "broken": "3.1: failed with OSError: no", "absent": "not installed"}
    record = with_series(
        Series("chain", "autograd", "error", "relative", (1.25e-7,)),
        Series("chain", "autograd", "time", "s", (0.010, 0.020, 0.015)),
        Series("chain", "autograd", "peak", "B", (6.3e7,)),
        Series("chain", "broken", "peak", "B", (0.0,)),
        contestants="; ".join(names),
        **names,
    )
    table = tables(rendered(record))["race-table"]
    assert [column.name for column in table.columns][3:] == ["time, ms", "peak, MB", "error, relative"]
    assert texts(table) == [
        ["chain", "autograd", "torch 2", "15", "63", "1.25e-07"],
        ["chain", "broken", "3.1: failed with OSError: no", "not measured", "0", "not measured"],
        ["chain", "absent", "not installed", *["not measured"] * 3],
    ]


def test_series_without_comparison_are_tabulated() -> None:
    """A series that is not compared is in a table of values."""
    record = with_series(*(Series("budget", name, "largest batch", "images", (n,)) for name, n in ((PETRA, 49),)))
    assert texts(tables(rendered(record))["race-table"]) == [["budget", PETRA, "49"]]


@pytest.mark.filterwarnings("error")
def test_report_states_that_no_benchmark_is_recorded() -> None:
    section = rendered()
    assert section.blocks[-1] == "No benchmark has been recorded yet."
    assert not section.findings
