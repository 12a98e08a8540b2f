"""Test that the benchmark of PaReprop runs, leaves a record, and predicts the allocator's peak."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import pareprop as script
from petra_core.methods import BACKPROPAGATION, PAREPROP, REVERSIBLE_BACKPROPAGATION
from reproduce.exhibits import pareprop as exhibit
from reproduce.records.benchmarks import ALLOCATED, LARGEST_FOUND, THROUGHPUT, Benchmark, read
from tests import sections

TINY = "--networks revvit_micro2 --batches 2 --size 8 --length 8 --rounds 3 --budget 1 --threads 2 --device cpu"
RUN = script.ParepropRun("revvit_micro2", size=8, length=8, batch=16, method=PAREPROP)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    """Return a tiny run with predicted bytes in place of counted ones, which take long, read from its record."""
    root = tmp_path_factory.mktemp("records")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script, "measure_allocations", lambda run, device: script.predict_peak(run))
        record = script.main([*TINY.split(), "--find", "--record", "--records", str(root)])
    assert read(root / "benchmarks" / "pareprop.json") == record
    return record


def test_benchmark_measures_every_method(measured: Benchmark) -> None:
    assert {len(s.values) for s in measured.series if s.quantity == THROUGHPUT} == {3}
    assert len(measured.comparisons) == 3
    largest = {(s.name, s.quantity): s.values[0] for s in measured.series if s.group == "revvit_micro2"}
    assert len(largest) == 6
    assert all(value > 0 for value in largest.values())


def test_oversized_batches_are_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The largest of three batches ran out of memory, and the times of the others were lost with it."""

    def stepping(run: script.ParepropRun, device: torch.device, *, side_by_side: bool = True) -> Any:
        if run.batch > (2 if run.method is BACKPROPAGATION else 4):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return lambda: None

    monkeypatch.setattr(script, "stepping", stepping)
    monkeypatch.setattr(script, "predict_peak", lambda run: 100_000 * run.batch)  # 10 samples are predicted to fit
    words = TINY.replace("--batches 2", "--batches 2 4") + f" --find --record --records {tmp_path}"
    record = script.main(words.split())
    fits = {(s.group, s.name) for s in record.series if s.quantity == ALLOCATED}
    two, four = (f"revvit_micro2, batch {batch}" for batch in (2, 4))
    assert fits == {*((two, m.title) for m in script.CONTESTANTS), *((four, m.title) for m in script.CONTESTANTS[1:])}
    assert {s.group for s in record.series if s.quantity == THROUGHPUT} == {two}
    assert {s.values[0] for s in record.series if s.quantity == LARGEST_FOUND} == {2, 4}
    assert record.notes == (f"{four}: not timed, because the networks of all methods do not fit in memory together.",)
    page = sections.of_benchmarks(exhibit.EXHIBIT, record)
    rows = sections.table(page, "pareprop-throughput").rows
    assert [row[1].text for row in rows] == ["2", "4"]
    assert {entry.text for entry in rows[1]} >= {"not timed", "does not fit"}


def test_allocator_retries_invalidate_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the allocator had to release and allocate again, timing raises MemoryError."""
    asked = iter([3, 4])
    monkeypatch.setattr(script, "stepping", lambda run, device: lambda: None)
    monkeypatch.setattr(script, "retries", lambda device: next(asked))
    with pytest.raises(MemoryError, match="released and allocated again"):
        script.time_rounds(RUN, torch.device("cpu"), threads=2, rounds=1)


@pytest.mark.parametrize("method", script.CONTESTANTS, ids=str)
def test_predicted_peak_is_near_allocated_peak(method: Any) -> None:
    """The predicted peak is within 25 % of the allocated one."""
    run = dataclasses.replace(RUN, method=method)
    assert script.measure_allocations(run, torch.device("cpu")) == pytest.approx(script.predict_peak(run), rel=0.25)


def test_second_graph_and_largest_batch_are_predicted() -> None:
    """PaReprop's predicted peak includes a second graph, and by_a_line finds the batch for a limit."""
    plain = dataclasses.replace(RUN, method=REVERSIBLE_BACKPROPAGATION)
    assert script.predict_peak(plain) < script.predict_peak(RUN)
    limit = script.predict_peak(dataclasses.replace(RUN, batch=37))
    assert abs(script.by_a_line(RUN, limit) - 37) <= 1
