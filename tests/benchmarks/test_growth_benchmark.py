"""The benchmark of growth runs, and its bytes are those that the methods' delays predict."""

from pathlib import Path

import pytest
import torch

from benchmarks import growth
from petra_core import methods
from reproduce.exhibits import benchmark_growth
from reproduce.records.benchmarks import read

PETRA, DELAYED = methods.PETRA.title, methods.DELAYED_GRADIENTS.title


def test_quick_measures_every_axis_and_writes_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    options = f"--quick --threads 1 --methods PETRA DELAYED_GRADIENTS --record --records {tmp_path}"
    try:
        benchmark = growth.main(options.split())
    finally:
        torch.set_num_threads(threads)
    assert read(tmp_path / "benchmarks" / "growth.json") == benchmark
    assert {series.group for series in benchmark.series} == set(growth.AXES)
    assert {series.quantity for series in benchmark.series} == {growth.TIME, growth.BYTES}

    depths = growth.QUICK["J"]
    assert [at for at, _ in benchmark.curve("J", PETRA, growth.TIME)] == list(depths)
    held = dict(benchmark.curve("J", PETRA, growth.BYTES))
    assert len(set(held.values())) == 1, "what an inner stage holds does not depend on the delay"
    stashed = dict(benchmark.curve("J", DELAYED, growth.BYTES))
    assert stashed[depths[0]] < stashed[depths[1]] < stashed[depths[2]]
    assert benchmark_growth.blocks(benchmark)
    assert "exponent" in capsys.readouterr().out
