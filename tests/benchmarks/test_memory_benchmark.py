"""Test the benchmark of memory: the largest batch is found exactly, and predictions are close to allocations."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import memory
from petra_core import MemoryReport, methods
from reproduce.records.benchmarks import LARGEST_FOUND, Series, read
from tests.fake_records import benchmark as a_race

CHAIN = memory.MemoryRun("chain4", width=8, size=16, batch=16, accumulation=1, method="PETRA", device="cpu", threads=1)


@pytest.mark.parametrize("answer", [0, 1, 2, 41, 97])
def test_largest_finds_limit_from_any_guess(answer: int) -> None:
    """`largest` finds the limit from any guess with fewer than 20 runs and repeats none."""
    for guess in (0, 1, 13, 40, 41, 90, 1000):
        asked = []
        assert memory.largest(lambda number: asked.append(number) or number <= answer, guess) == answer  # noqa: B023
        assert len(asked) == len(set(asked)) < 20, "every question takes a run"


def test_out_of_memory_batch_does_not_fit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The search tries 1/8 above the prediction. The device ran out of memory there, and all results were lost."""

    def allocated(run: memory.MemoryRun) -> tuple[Any, MemoryReport]:
        if run.batch > 41:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return SimpleNamespace(peak=1000 * run.batch), MemoryReport(())

    settings = {"limit": 10**9, "guess": 64, "device": torch.device("cpu")}
    assert memory.largest_batch(CHAIN, lambda run: allocated(run)[0].peak, **settings) == 41
    monkeypatch.setattr(memory, "measure_allocations", allocated)
    monkeypatch.setattr(memory, "growth_of_fresh_process", lambda *_: None)
    added: list[tuple[Any, ...]] = []
    recorder = SimpleNamespace(add=lambda *values, at: added.append((*values, at)))
    runs = [(batch, dataclasses.replace(CHAIN, batch=batch)) for batch in (40, 50)]
    memory.along(recorder, "batch", runs, [methods.PETRA])  # type: ignore[arg-type]  # a partial stand-in
    assert {at for *_, at in added} == {40}
    assert capsys.readouterr().out == "  batch 50, PETRA: does not fit\n"


@pytest.mark.parametrize("method", [methods.BACKPROPAGATION, methods.APPROXIMATE_INPUTS, methods.PETRA], ids=str)
def test_predicted_peak_is_near_allocated_peak(method: methods.Method) -> None:
    """The predicted peak is within 35 % of the allocated one, and PETRA's sum of parts within 25 %."""
    run = dataclasses.replace(CHAIN, method=method.name)
    allocations, report = memory.measure_allocations(run)
    assert allocations.peak == pytest.approx(memory.predict_peak(run), rel=0.35)  # without temporaries of operations
    assert allocations.peak > report.now("parameters", "optimizer", "inputs", "stashed_weights")
    if method is methods.PETRA:
        assert memory.sum_of_parts(report) < report.peak(), "the graphs of all stages but one are left out"
        assert 0.8 < allocations.peak / memory.sum_of_parts(report) < 1.25


def test_note_gives_size_of_cublas_workspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    account = SimpleNamespace(peak=1000, workspaces=67_000_000), MemoryReport(())
    monkeypatch.setattr(memory, "measure_allocations", lambda run: account)
    monkeypatch.setattr(memory, "sum_of_parts", lambda report: 990)
    recorder = SimpleNamespace(add=lambda *_: None, notes=[], comparisons=[])
    memory.parts_of_peak(recorder, CHAIN)  # type: ignore[arg-type]  # a partial stand-in
    (note,) = recorder.notes
    assert note.startswith("Not in PETRA's peak: 67.0 MB of cuBLAS workspaces")


def test_quick_measures_every_part_and_writes_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh, grown = memory.growth_of_fresh_process, []

    def once(*arguments: Any) -> int | None:
        """Start one process, and not one for every place on an axis."""
        if not grown:
            grown.append(fresh(*arguments))
        return grown[0]

    monkeypatch.setattr(memory, "growth_of_fresh_process", once)
    options = f"--quick --threads 1 --device cpu --methods PETRA --record --records {tmp_path}"
    benchmark = memory.main(options.split())
    assert read(tmp_path / "benchmarks" / "memory.json") == benchmark
    assert {series.group for series in benchmark.series} == {"batch", "depth", "k", "aim", "budget"}
    counts = {series.quantity for series in benchmark.series if series.at is not None}
    assert counts >= {"accounted peak", "allocated peak"}
    (finding,) = benchmark.findings
    assert finding.startswith("Memory: under 0.1 MB on one device the largest batch is ")


def test_finding_names_method_with_largest_batch() -> None:
    """The finding names the method with the largest batch, and PETRA's batch if it is smaller."""
    batches = {"PETRA": 38, "Delayed gradients": 0, "Backpropagation": 77}
    series = tuple(Series("budget", name, LARGEST_FOUND, "images", (n,)) for name, n in batches.items())
    (finding,) = memory.complete(dataclasses.replace(a_race(), series=series, setting={"budget": 64.0})).findings
    assert "under 64 MB on one device the largest batch is Backpropagation's, 77 images; PETRA's is 38" in finding
