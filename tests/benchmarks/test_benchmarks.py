"""Test that the benchmarks run and leave a record. A test does not judge the measured values."""

import argparse
import dataclasses
import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks import bdia, forward_gradients, memory, pipelining, recording, tick, timeline, timings
from benchmarks.arguments import network
from benchmarks.peers import __main__ as peers
from benchmarks.recording import Recorder, command
from petra_core import HeadStage, Pipeline, ReversibleStage, Stage, methods, models
from petra_core.devices import captured
from petra_core.devices.captured import CapturedSteps
from petra_core.prediction.partition import Cost
from reproduce.data.beton import RawImages
from reproduce.data.loader import BatchFormat, InMemory, Loader
from reproduce.grids.plans import bdia as bdia_cells
from reproduce.grids.plans import forward_gradients as forward_gradient_cells
from reproduce.modelling.simulation import Link
from reproduce.records.benchmarks import ALLOCATED, SIDE_BITS, read, read_all
from tests.conftest import ROOT
from tests.fake_cuda import SharedMemoryRecorder

TINY = ["--network", "chain2", "--width", "2", "--batch", "2", "--size", "8", "--threads", "1"]


@pytest.fixture
def computed() -> Iterator[set[torch.dtype]]:
    """Collect the dtypes in which convolutions compute."""
    dtypes: set[torch.dtype] = set()

    def note(module: nn.Module, inputs: object, output: Tensor) -> None:
        if isinstance(module, nn.Conv2d):
            dtypes.add(output.dtype)

    hook = nn.modules.module.register_module_forward_hook(note)
    yield dtypes
    hook.remove()


@pytest.mark.convolutions
def test_tick_compares_methods_in_pairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], computed: set[torch.dtype]
) -> None:
    """Each method is measured once, in pairs with an autograd step, and the record is written."""
    twice = ["--methods", "PETRA", "BACKPROPAGATION", "petra"]  # measured once: two runs are not one with more pairs
    options = ["--pairs", "3", *twice, "--precision", "bf16", "--record", "--records", str(tmp_path)]
    record = tick.main([*TINY, *options])
    assert read(tmp_path / "benchmarks" / "tick.json") == record
    compared = [(c.group.rsplit(", ", 1)[1], c.first, c.second) for c in record.comparisons]
    assert compared == [
        (methods.PETRA.title, "tick", "autograd step"),
        (methods.PETRA.title, "autograd step and a forward", "autograd step"),
        (methods.PETRA.title, "tick", "autograd step and a forward"),
        (methods.BACKPROPAGATION.title, "tick", "autograd step"),  # keeps its graphs and does not recompute
    ]
    assert all(len(record.ratios(comparison)) == 3 for comparison in record.comparisons)
    assert (record.setting["width"], record.setting["precision"]) == (2, "bf16")
    assert computed == {torch.bfloat16}, "on all sides"
    assert str(tmp_path) not in record.command
    assert "held between ticks, predicted: BACKPROPAGATION" in capsys.readouterr().out


@pytest.mark.convolutions
@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("float32", torch.float32)])
def test_tick_compares_with_another_method(
    tmp_path: Path, computed: set[torch.dtype], precision: str, dtype: torch.dtype
) -> None:
    """With --against, ticks of two methods are compared, both in the chosen precision."""
    options = ["--pairs", "2", "--against", "APPROXIMATE_INPUTS", "--precision", precision]
    tick.main([*TINY, *options, "--record", "tick-double", "--records", str(tmp_path)])
    record = read(tmp_path / "benchmarks" / "tick-double.json")
    assert record.title == "A tick against one of Approximate inputs"
    assert [(comparison.first, comparison.second) for comparison in record.comparisons] == [
        ("tick", "tick of Approximate inputs"),
        ("tick and its residual functions", "tick of Approximate inputs"),
        ("tick", "tick and its residual functions"),
    ]
    assert computed == {dtype}


def test_captured_tick_is_compared_with_every_rival(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was once compared only with backpropagation's tick, in as many streams, of which all but one waited."""
    modes: list[bool] = []

    def cuda(pipeline: Pipeline, *, streams: int) -> CapturedSteps:
        return CapturedSteps(pipeline, SharedMemoryRecorder())

    def timed(function: Callable[[], object], device: torch.device) -> float:
        modes.append(torch.are_deterministic_algorithms_enabled())
        function()
        # The order in a round is that of the contestants, and every other round runs backwards.
        return (4.0, 5.0, 2.0, 3.0, 3.0, 2.0, 5.0, 4.0)[len(modes) - 1]

    compiled: list[nn.Module] = []
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("reproduce.running.devices.take", lambda name: torch.device("cpu"))  # a stand-in for the GPU
    monkeypatch.setattr(captured, "cuda", cuda)
    monkeypatch.setattr(captured, "recorder", lambda device: SharedMemoryRecorder())
    monkeypatch.setattr(torch, "compile", lambda module, **_: compiled.append(module) or module)
    monkeypatch.setattr(tick, "time_call", timed)
    given = [*TINY, "--pairs", "2", "--device", "cuda", "--captured", "4", "--against", "BACKPROPAGATION"]
    record = tick.main([*given, "--record", "--records", str(tmp_path)])
    assert read(tmp_path / "benchmarks" / "tick.json") == record
    assert [(c.first, c.second) for c in record.comparisons] == [
        ("tick", "tick of Backpropagation"),
        ("tick", "autograd step"),
        ("tick", "compiled autograd step"),
    ]
    assert record.spread(record.comparisons[1]).median == 2.0
    assert len(compiled) == 1
    assert set(modes) == {True}
    assert not torch.are_deterministic_algorithms_enabled()
    assert (record.setting["precision"], record.setting["channels_last"]) == ("float32", True)


@pytest.mark.convolutions
def test_recorded_autograd_step_updates_as_plain_one() -> None:
    x, y = torch.randn(2, 3, 8, 8), torch.tensor([1, 2])
    weights = []
    for record in (None, SharedMemoryRecorder()):
        torch.manual_seed(0)
        stages = network("chain2", 2)
        step = tick.plain_step(stages, x, y, record=record)
        for _ in range(5 if record is None else 5 - tick.PLAIN_STEPS - 1):  # the recorder takes a step too
            step()
        weights.append([parameter.detach() for stage in stages for parameter in stage.parameters()])
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(one, other)


def test_recorded_autograd_step_keeps_weights_alive() -> None:
    """A CUDA graph has only their addresses. On the first GPU the memory was reused when the step was repeated."""
    stages = network("chain2", 2)
    weights = weakref.ref(next(stages[0].parameters()))
    step = tick.plain_step(stages, torch.randn(2, 3, 8, 8), torch.tensor([1, 2]), record=lambda work: lambda: None)
    del stages
    gc.collect()
    step()
    assert weights() is not None
    del step
    gc.collect()
    assert weights() is None


def test_records_option_expands_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder called `~` invites `rm -r ~`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    parser = argparse.ArgumentParser()
    recording.add_options(parser, "x")
    assert parser.parse_args(["--records=~/there"]).records == tmp_path / "there"
    with pytest.raises(SystemExit):
        parser.parse_args(["--records=~no-such-user/there"])
    for module in ("recording", "quarter_hour"):
        assert "type=Path" not in (ROOT / "benchmarks" / f"{module}.py").read_text(), "a path is of the type `path`"


def test_recorder_rejects_unwritable_folder(tmp_path: Path) -> None:
    """With --record, Recorder rejects a folder that cannot be written to."""
    parser = argparse.ArgumentParser()
    recording.add_options(parser, "x")
    (tmp_path / "file").touch()
    for given in (["--record", "--records", str(tmp_path / "file")], ["--record", "--records", "/proc/records"]):
        with pytest.raises(SystemExit, match=r"--records: nothing can be written to .*; name another folder"):
            Recorder("", "", "", parser.parse_args(given))
    Recorder("", "", "", parser.parse_args(["--records", str(tmp_path / "file")]))
    Recorder("", "", "", parser.parse_args(["--record", "--records", str(tmp_path / "new")]))


def test_command_omits_records_folder() -> None:
    """The recorded command line does not contain the option --records."""
    for words in (["--records", "/elsewhere"], ["--records=/elsewhere"]):
        assert command("benchmarks.tick", [*words, "--pairs", "2"]) == "python -m benchmarks.tick --pairs 2"


@pytest.mark.parametrize(
    ("again", "evaluates"),
    [
        (tick.forward_again, lambda stage: not isinstance(stage, HeadStage)),
        (tick.functions_again, lambda stage: isinstance(stage, ReversibleStage)),
    ],
)
def test_repeated_evaluations_keep_no_graph(
    again: Callable[[Sequence[Stage], Tensor], Callable[[], object]], evaluates: Callable[[Stage], bool]
) -> None:
    """The expected stages are evaluated again, and with gradients switched off."""
    stages = network("revnet18", 2)
    call = again(stages, torch.randn(2, 3, 8, 8))
    evaluated: list[tuple[Stage, bool]] = []
    for stage in stages:
        stage.function.register_forward_hook(lambda *_, stage=stage: evaluated.append((stage, torch.is_grad_enabled())))
    call()
    assert evaluated == [(stage, False) for stage in stages if evaluates(stage)]


def test_committed_findings_follow_from_values() -> None:
    """Findings and series of committed records equal those computed from their values."""
    scripts = {"memory": memory, "peers": peers}
    records, problems = read_all(ROOT / "reports" / "records")
    assert not problems
    for record in records:
        if script := scripts.get(record.name.partition("-")[0]):
            with_units = tuple(series for series in record.series if series.unit)
            completed = script.complete(dataclasses.replace(record, series=with_units, findings=()))
            assert (completed.findings, completed.series) == (record.findings, record.series)


def test_bdia_side_bits_take_one_bit_per_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The networks are of the published size except for the channels, which are 512 there."""
    as_published = bdia_cells.as_published
    assert {as_published(contestant).width for contestant in bdia_cells.PUBLISHED} == {512}
    monkeypatch.setattr(bdia_cells, "as_published", lambda c: dataclasses.replace(as_published(c), width=64))
    record = bdia.main(f"--batch 2 --rounds 1 --threads 1 --device cpu --record --records {tmp_path}".split())
    assert read(tmp_path / "benchmarks" / "bdia.json") == record
    values = {(series.name, series.quantity): series.values[0] for series in record.series}
    blocks, tokens, channels = 5, 64, 64  # the first of six blocks keeps its input
    assert values["BDIA-ViT", SIDE_BITS] == 2 * blocks * tokens * channels / 8
    assert values["ViT", SIDE_BITS] == values["RevViT", SIDE_BITS] == 0
    assert len(record.comparisons) == 4


def test_forward_gradients_compare_all_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ways of forward gradients and PETRA are compared with backpropagation, and jvp has a lower peak.

    The ways are those of the cells. One of each space and derivative is measured.
    """
    assert forward_gradients.WAYS is forward_gradient_cells.WAYS
    chosen = {(way.space, way.derivative): way for way in reversed(forward_gradients.WAYS)}
    assert len(chosen) == 4
    monkeypatch.setattr(forward_gradients, "WAYS", tuple(chosen.values()))

    def few_stages(_: int, *, num_classes: int, width: int, stem: str) -> list[Stage]:
        del stem
        return models.chain(1, num_classes=num_classes, channels=width)

    # PETRA's pipeline is filled while every operation is profiled.
    monkeypatch.setattr(models, "revnet", few_stages)
    record = forward_gradients.main(
        f"--batch 2 --width 4 --rounds 1 --threads 1 --device cpu --record --records {tmp_path}".split()
    )
    assert read(tmp_path / "benchmarks" / "forward-gradients.json") == record
    ways = {str(way) for way in forward_gradients.WAYS}
    assert {series.name for series in record.series} == {"Backpropagation", *ways, "PETRA"}
    assert {(comparison.first, comparison.second) for comparison in record.comparisons} == {
        (n, "Backpropagation") for n in {*ways, "PETRA"}
    }
    peaks = {series.name: series.values[0] for series in record.series if series.quantity == ALLOCATED}
    local = "local guess of the global target, activations"
    assert peaks[f"{local}, jvp"] < peaks[local]  # one block's graph at a time


@pytest.mark.skipif(find_spec("ffcv") is None, reason="FFCV is not installed")
def test_loaders_measure_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Black images in memory take the place of FFCV, for which Numba compiles for half a minute."""
    from benchmarks import loaders

    def through_ffcv(path: Path, workers: int, batch_format: BatchFormat = loaders.SMALL) -> Loader:
        shape = (loaders.BATCH, 3, batch_format.image_size, batch_format.image_size)
        images = RawImages(np.zeros(shape, np.uint8), np.zeros(loaders.BATCH, int))
        return Loader(InMemory(images, batch_format, augment=True), loaders.BATCH, seed=0)

    for name, value in {"through_ffcv": through_ffcv, "BATCH": 4, "WARM_UP": 1}.items():
        monkeypatch.setattr(loaders, name, value)
    few = "--workers 0 --pairs 1 --seconds 0.05 --images 40 --files 10 --widths 2 --threads 1"
    record = loaders.main(few.split())
    groups = [comparison.group.split(",")[0] for comparison in record.comparisons]
    assert groups == ["small", "memory", "jpeg", "share", "share"]
    assert all(record.spread(comparison).median > 0 for comparison in record.comparisons)


@pytest.mark.slow
@pytest.mark.convolutions
def test_pipelining_compares_petra_with_torch(tmp_path: Path) -> None:
    """PETRA is compared with all pipeline schedules of torch."""
    record = pipelining.main(["--quick", "--record", "mine", "--records", str(tmp_path)])
    assert read(tmp_path / "benchmarks" / "mine.json") == record
    assert {series.group for series in record.series} == {"chain3, width 2"}
    contestants = {contestant.name for contestant in pipelining.CONTESTANTS}
    assert {s.name for s in record.series if s.quantity == pipelining.THROUGHPUT} == contestants
    assert {c.second for c in record.comparisons if c.first == "PETRA"} == contestants - {"PETRA"}
    assert all(len(series.values) == 2 for series in record.series if series.quantity == pipelining.THROUGHPUT)
    assert "differ from plain autograd's by at most" in record.notes[0]


@pytest.mark.slow
def test_pipelining_rejects_wrong_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """If gradients differ from plain autograd's by more than the tolerance, ValueError is raised."""
    monkeypatch.setattr(pipelining, "TOLERANCE", -1.0)  # no error is as small as that
    with pytest.raises(ValueError, match=r"differ by .* from those of plain autograd"):
        pipelining.check_gradients(pipelining.PipeliningSetting("chain2", 2, 2, 8, 2), (2, 2))


@pytest.mark.slow
def test_timeline_compares_model_with_engine(tmp_path: Path) -> None:
    """The record has modelled and measured timelines with the same devices, stages and kinds of actions."""
    series = timeline.main(["--quick", "--record", "--records", str(tmp_path)]).series
    record = read(tmp_path / "benchmarks" / "timeline.json")  # the times of timelines are rounded in the file
    assert record.series == series
    places = [f"chain3, width 2, {m}, P = {p}" for p in (1, 2) for m in timeline.METHODS]
    assert [comparison.group for comparison in record.comparisons] == places
    title = f"chain3, width 2, {methods.PETRA}, P = 2"
    modelled, measured = (record.timelines[f"{title}, {which}"] for which in ("modelled", "measured"))
    assert modelled.devices == measured.devices == 2
    # The same stages on the same processes, with the same kinds of actions.
    assert {(e.device, *e.name[:2]) for e in modelled.events} == {(e.device, *e.name[:2]) for e in measured.events}


def test_predicted_pace_is_that_of_steady_state() -> None:
    """The end of a run, in which no micro-batch enters, once made one process look a third too fast."""
    costs = [Cost(1.0, 2.0, 0.5)] * 4
    for method in timeline.METHODS:
        assert timeline.predict_timeline(method, costs, (4,), Link())[1] == pytest.approx(4 * 3.5)


def test_timings_compare_lockstep_1f1b_and_merged_stages(tmp_path: Path) -> None:
    """All three timings are measured in pairs."""
    timings.main(["--quick", "--record", "--records", str(tmp_path)])
    record = read(tmp_path / "benchmarks" / "timings.json")
    (group,) = {series.group for series in record.series}
    assert group == "chain3, width 2, P = 2"
    assert {series.name: len(series.values) for series in record.series} == dict.fromkeys(
        (timings.LOCKSTEP, timings.ONE_F_ONE_B, timings.MERGED), 2
    )
    plain, merged = record.comparisons
    assert plain.title == "asynchronous 1F1B over lockstep"
    assert merged.first == timings.MERGED
    assert timings.vectors((2, 3)) == {
        timings.LOCKSTEP: (8, 6, 4, 2, 0),
        timings.ONE_F_ONE_B: (4, 3, 2, 1, 0),
        timings.MERGED: (1, 1, 0, 0, 0),
    }
