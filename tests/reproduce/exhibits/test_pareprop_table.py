"""Test the table of PaReprop: published gains are in the rows of their networks, and marked."""

import dataclasses
from functools import partial

import pytest

from reproduce.exhibits import pareprop
from reproduce.presentation.content import Role
from reproduce.published import Mark
from reproduce.records.benchmarks import Benchmark, read
from tests.fake_records import benchmark
from tests.golden.dump import COMMITTED
from tests.sections import entries, of_benchmarks, table, tables

rendered = partial(of_benchmarks, pareprop.EXHIBIT)


def test_pareprop_without_record_is_marked_missing() -> None:
    """Without a benchmark record, only the published table is made, and the finding has tone MISSING."""
    section = rendered(benchmark())  # a record of another benchmark
    assert [block.key for block in tables(section)] == ["pareprop-published"]
    assert section.findings[0].role is Role.MISSING


def benchmark_of(network: str) -> Benchmark:
    """Return the committed record with another network in place of its first one."""
    record = read(COMMITTED / "benchmarks" / "pareprop.json")
    series, comparisons = (
        tuple(dataclasses.replace(one, group=one.group.replace("revvit_micro,", f"{network},")) for one in parts)
        for parts in (record.series, record.comparisons)
    )
    return dataclasses.replace(record, series=series, comparisons=comparisons)


@pytest.mark.parametrize(
    ("network", "entry", "mark"),
    [
        ("revswin_tiny", "+4.8", Mark.SECOND_HAND),
        ("revswin_giga", "\N{EN DASH}", None),
        ("revvit_base", "about equal", Mark.SECOND_HAND),
        ("revroberta_base", "unknown", Mark.UNKNOWN),
    ],
)
def test_published_gain_appears_only_for_its_size(network: str, entry: str, mark: Mark | None) -> None:
    """A published gain is in the row of a network only if it holds for that size."""
    gain = entries(table(rendered(benchmark_of(network)), "pareprop-throughput"), network)[pareprop.GAIN, "published"]
    assert (gain.text, gain.mark) == (entry, mark)


def test_batches_not_searched_are_marked_not_run() -> None:
    record = benchmark_of("revvit_micro")
    series = tuple(one for one in record.series if one.quantity != "largest batch, found")
    (row, *_) = table(rendered(dataclasses.replace(record, series=series)), "pareprop-batches").rows
    assert [entry.text for entry in row[-3:]] == ["not run"] * 3
