"""Test the quarter of an hour on a GPU: no step is repeated, training outlives a call, and leftover time is used."""

import dataclasses
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from benchmarks import quarter_hour
from benchmarks.quarter_hour import Candidate, Step
from reproduce.cells.kinds import TrainingCell
from reproduce.grids import recipes
from reproduce.grids.grid import grid_of
from reproduce.records import benchmarks, speed
from reproduce.records.record import Record, scan
from tests import fake_records, processes
from tests.command_lines import check_module
from tests.processes import Popen, Start, wait_for

SMALL = ["--device", "cpu", "--scale", "smoke"]
PATIENT = ["--seconds", "3000", "--call-seconds", "2000"]  # a busy machine takes long to start Python
#: Trains as far as records show it: adds three epochs, and later the complete record.
TRAINING = """
import pathlib, shutil, signal, sys, time
made, root, pause, noted = sys.argv[1:]
signal.signal(signal.SIGINT, lambda *_: (pathlib.Path(noted + "-stopped").touch(), sys.exit(130)))
shutil.copytree(pathlib.Path(made, "begun"), root, dirs_exist_ok=True)
print(file=open(noted, "a"))
ends = time.time() + float(pause)
while time.time() < ends and not pathlib.Path(noted + "-continue").exists():
    time.sleep(0.05)
shutil.copytree(pathlib.Path(made, "whole"), root, dirs_exist_ok=True)
"""


def noting(folder: Path, name: str, then: str = "", seconds: float = 60) -> Step:
    """Make a step that adds a line to a file of its name in a folder, and then runs some code."""
    text = f"import os, sys, time; print(file=open(sys.argv[1], 'a')); {then}"
    return Step(name, seconds, [["python", "-ISc", text, str(folder / name)]])


def times(folder: Path, name: str) -> int:
    """Return how often the step ran."""
    file = folder / name
    return len(file.read_text().splitlines()) if file.exists() else 0


#: Cells by seed. A volume is copied as a whole, so cells that are trained in one call need separate volumes.
METHODS = {0: "PETRA", 1: "DSP", 2: "DELAYED_GRADIENTS", 3: "APPROXIMATE_INPUTS", 7: "PETRA"}


def long(seed: int) -> TrainingCell:
    """Return a cell of ten epochs."""
    cell = next(cell for cell in grid_of("smoke") if isinstance(cell, TrainingCell) and cell.model == "revnet18")
    return dataclasses.replace(cell, epochs=10, drops=(), seed=seed, method=METHODS[seed])


def record(cell: TrainingCell, root: Path, seconds: float, epochs: int) -> None:
    """Write a record with a number of epochs, each of a given duration. It is complete if these are all epochs."""
    fake_records.train(cell, root, 50.0, epochs=None if epochs == cell.epochs else epochs, seconds=seconds)


def trained(folder: Path, cell: TrainingCell, seconds: float = 0.01, pause: float = 0.0) -> Candidate:
    """Make a cell whose training is a record in a process that begins after a pause."""
    made, noted = folder / "made" / cell.name, folder / f"cell-{cell.seed}"
    if not made.exists():
        record(cell, made / "begun", seconds, 3)
        record(cell, made / "whole", seconds, cell.epochs)
    words = [made, folder / "hour" / "records", pause, noted]
    return Candidate(cell, ["python", "-ISc", TRAINING, *map(str, words)])


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that makes one call of the command, with these steps and cells, in this process."""

    def go(first: Sequence[Step], cells: Sequence[Candidate], last: Sequence[Step], *options: str) -> int:
        replace_plan(first, cells, last, monkeypatch.setattr)
        return quarter_hour.main([*SMALL, *PATIENT, "--output", str(tmp_path / "hour"), *options])

    return go


@pytest.fixture
def jump(monkeypatch: pytest.MonkeyPatch):
    """Return a function that advances the clock by a number of seconds as soon as a file exists."""

    def when_exists(file: Path, seconds: float) -> None:
        clock = SimpleNamespace(time=lambda: time.time() + seconds * file.exists(), sleep=time.sleep)
        monkeypatch.setattr(quarter_hour, "time", clock)

    return when_exists


def replace_plan(first, cells, last, replace=setattr) -> None:
    """Replace steps and cells, poll often, and leave out the committed records, which take a second to read."""
    for name, steps in {"first_steps": first, "leftovers": last}.items():
        replace(quarter_hour, name, lambda options, steps=steps: steps)
    replace(quarter_hour, "candidates", lambda options, how: cells)
    replace(quarter_hour, "POLL", 0.02)
    replace(quarter_hour, "DEFAULT_ROOT", "no-records")


def session(options: Sequence[str]) -> None:
    """Make a call whose steps are forked from this process, with cells of one epoch. The output is on stderr."""
    recipes.CHANGES["smoke"] |= {"epochs": 1, "drops": (), "width": 2, "batch_size": 512}
    quarter_hour.subprocess = SimpleNamespace(Popen=Popen, DEVNULL=subprocess.DEVNULL, STDOUT=subprocess.STDOUT)
    sys.stdout = sys.stderr
    sys.exit(quarter_hour.main(options))


@pytest.mark.slow
def test_small_session_passes_and_its_records_merge(tmp_path: Path, start: Start) -> None:
    """A small session passes all steps, and its archive can be merged."""
    output, bring, home = tmp_path / "hour", tmp_path / "bring", tmp_path / "home"
    options = [*SMALL, *PATIENT, "--output", str(output), "--bring", str(bring)]
    printed = start(session, options).stderr()
    assert "FAILED" not in printed
    assert "passed (" in printed
    records, problems = benchmarks.read_all(output / "records")
    assert not problems
    measured = ["backpropagation", "heuristics", "kernels", "streams", "tick"]
    assert [record.name for record in records] == [f"{name}-float32-cpu" for name in measured]
    archive = str(bring / quarter_hour.ARCHIVE)
    merged = processes.call("records", "merge", archive, "--records", home, code=0)
    assert merged.output.splitlines()[-1] == f"{2 + len(measured)} brought"
    trained_cells = {run.cell.to_dict()["timing"]: str(run.state) for run in scan(home).records}
    assert trained_cells == {"lockstep": "done", "1f1b": "done"}


NAMES = ("data", "correctness", "tick", "cell-0", "cell-1", "streams", "heuristics")


def run_hour(folder: Path, stopped: str) -> None:
    """Make a call in which one step runs until it is stopped, or in which a cell waits until it may continue."""

    def step(name: str) -> Step:
        return noting(folder, name, "time.sleep(600)" if name == stopped else "", 900)

    cells = [trained(folder, long(seed), pause=600 if f"cell-{seed}" == stopped else 0) for seed in (0, 1)]
    replace_plan([*map(step, NAMES[:3])], cells, [*map(step, NAMES[5:])])
    sys.exit(quarter_hour.main([*SMALL, *PATIENT, "--output", str(folder / "hour")]))


@pytest.mark.parametrize(
    ("stopped", "number"),
    [
        *((name, signal.SIGKILL) for name in ("data", "cell-0", "heuristics")),
        *((name, signal.SIGTERM) for name in ("tick", "cell-0")),
    ],
)
def test_stopped_session_repeats_no_finished_step(
    tmp_path: Path, start: Start, call, stopped: str, number: signal.Signals
) -> None:
    """After SIGKILL or SIGTERM in any step, the next call repeats only the step that was stopped."""
    process = start(run_hour, tmp_path, stopped)
    wait_for(lambda: times(tmp_path, stopped))
    process.send_signal(number)
    process.stderr(-9 if number == signal.SIGKILL else 143)
    (tmp_path / f"{stopped}-continue").touch()
    steps = {name: noting(tmp_path, name) for name in NAMES}
    cells = [trained(tmp_path, long(seed)) for seed in (0, 1)]
    assert call([steps[name] for name in NAMES[:3]], cells, [steps[name] for name in NAMES[5:]]) == 0
    again = {stopped: 2} if not stopped.startswith("cell") else {}  # training outlives the command
    assert {name: times(tmp_path, name) for name in NAMES} == dict.fromkeys(NAMES, 1) | again
    assert [str(Record.for_cell(long(seed), tmp_path / "hour" / "records").state()) for seed in (0, 1)] == [
        "done",
        "done",
    ]


def test_training_outlives_call_and_next_call_waits(tmp_path, call, jump, capsys) -> None:
    """Training continues after the end of a call, and the next call waits for it."""
    cells = [trained(tmp_path, long(0), pause=600)]
    jump(tmp_path / "cell-0", 700)
    ending = ["--call-seconds", str(quarter_hour.ENDING + 600)]
    assert call([], cells, [noting(tmp_path, "later")], *ending) == 0
    output = capsys.readouterr().out
    assert "continues as process" in output
    assert times(tmp_path, "later") == 0
    assert (tmp_path / "hour" / quarter_hour.ARCHIVE).exists()
    (tmp_path / "cell-0-continue").touch()
    assert call([], cells, [noting(tmp_path, "later")]) == 0
    assert f"training: {cells[0].cell.name}: done" in capsys.readouterr().out
    assert (times(tmp_path, "cell-0"), times(tmp_path, "later")) == (1, 1)


def test_next_cell_that_fits_is_trained(tmp_path, call, jump, capsys, monkeypatch) -> None:
    """The records show that the first cell takes too long; the first epochs of the second cell show the same."""
    jump(tmp_path / "cell-1", 10)  # epochs are looked at every five seconds
    record(long(7), tmp_path / "hour" / "records", 900.0, 10)
    where = speed.device({**fake_records.ENVIRONMENT, "device": "cpu"})
    narrow = [dataclasses.replace(long(seed), width=2 + 2 * seed) for seed in (1, 2)]  # without recorded epochs
    quick = [trained(tmp_path, narrow[0], seconds=900, pause=600), trained(tmp_path, narrow[1])]
    monkeypatch.setattr(quarter_hour, "how_trained", lambda *_: ([], where))
    assert call([], [trained(tmp_path, long(0)), *quick], []) == 0
    output = capsys.readouterr().out
    assert f"training: {long(0).name} needs 9061 s" in output
    assert f"training: {quick[0].cell.name}: it needs 6301 s more" in output
    assert f"training: {quick[1].cell.name}: done" in output
    assert [times(tmp_path, f"cell-{seed}") for seed in range(3)] == [0, 1, 1]
    assert (tmp_path / "cell-1-stopped").exists()
    assert call([], [trained(tmp_path, long(0)), *quick], []) == 0
    assert [times(tmp_path, f"cell-{seed}") for seed in range(3)] == [0, 1, 1], "a refused cell is not begun again"


def test_training_stops_when_time_is_used_up(tmp_path, call, jump, capsys) -> None:
    """When the time is used up, training receives SIGINT and later steps are skipped."""
    jump(tmp_path / "cell-0", 700)
    seconds = ["--seconds", str(quarter_hour.ENDING + 600)]
    assert call([], [trained(tmp_path, long(0), pause=600)], [noting(tmp_path, "later")], *seconds) == 0
    output = capsys.readouterr().out
    assert ": the time is used up" in output
    assert "later: skipped, because it takes up to 60 s" in output
    assert (tmp_path / "cell-0-stopped").exists()


def test_failed_steps_do_not_stop_the_others(tmp_path, call, capsys, monkeypatch) -> None:
    """After a failure or timeout of a step, the other steps run, and the exit code is 1."""
    steps = [noting(tmp_path, "correctness", "sys.exit(3)"), noting(tmp_path, "tick", "time.sleep(600)", seconds=1)]
    assert call(steps, [trained(tmp_path, long(0))], [noting(tmp_path, "later")]) == 1
    output = capsys.readouterr().out
    assert "correctness: FAILED: exit code 3; see logs/correctness.log" in output
    assert "tick: FAILED: not finished within 1 s" in output
    assert (times(tmp_path, "cell-0"), times(tmp_path, "later")) == (1, 1)
    broken = Candidate(long(3), ["python", "-ISc", "import sys; sys.exit('no')"])
    assert call(steps, [broken], []) == 1
    assert f"training: {long(3).name}: it ended without a result; see logs/training.log" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("failed", "words"),
    [
        ({}, ["--cuda-graphs", "19", "--compile"]),
        ({"correctness": "exit code 1"}, ["--compile"]),
        ({"tick": "exit code 1"}, ["--cuda-graphs", "19"]),
    ],
)
def test_training_uses_only_features_that_passed(tmp_path, failed, words) -> None:
    """Cells use CUDA graphs and compilation only if the steps that check them passed."""
    outcomes = {"correctness": "", "tick": "", **failed}
    given, where = quarter_hour.how_trained("cuda", "NVIDIA H200", outcomes)
    assert given == words
    assert (where.cuda_graphs, where.compiled) == (19 if "--cuda-graphs" in words else 0, "--compile" in words)
    assert quarter_hour.how_trained("cpu", "cpu", outcomes)[0] == []


def test_compiler_cache_is_split_and_restored(tmp_path, call, monkeypatch) -> None:
    """The compiler's cache is exported in parts of limited size and restored in a later session."""
    monkeypatch.setattr(quarter_hour, "PART", 1000)
    kernel = os.urandom(5000)  # incompressible
    folder = tmp_path / "hour" / "inductor"
    folder.mkdir(parents=True)
    (folder / "kernel").write_bytes(kernel)
    bring = tmp_path / "bring"
    assert call([], [], [], "--bring", str(bring)) == 0
    parts = sorted(bring.glob(f"{quarter_hour.CACHE}.*"))
    assert len(parts) > 5
    assert all(part.stat().st_size <= 1000 for part in parts)
    again = tmp_path / "again"
    found = Step("tick", 60, [["python", "-ISc", CACHED, str(tmp_path / "found")]])
    replace = ["--output", str(again), "--inductor", *map(str, reversed(parts))]
    assert call([found], [], [], *replace) == 0
    assert (tmp_path / "found").read_bytes() == kernel


CACHED = """
import os, shutil, sys
shutil.copy(os.path.join(os.environ["TORCHINDUCTOR_CACHE_DIR"], "kernel"), sys.argv[1])
"""


def test_archive_excludes_checkpoints(tmp_path, call) -> None:
    """The archive contains metrics, but no checkpoints, locks, temporary files or user names."""
    records = tmp_path / "hour" / "records" / "scale" / "cell"
    (records / "checkpoint").mkdir(parents=True)
    for name in ("metrics.jsonl", "checkpoint.pt", "checkpoint/rank-0.pt", "record.lock", "a.tmp"):
        (records / name).touch()
    assert call([], [], []) == 0
    with tarfile.open(tmp_path / "hour" / quarter_hour.ARCHIVE) as archive:
        assert archive.getnames() == ["records/scale/cell/metrics.jsonl", "state.json", "summary.txt"]
        assert {(file.uid, file.gid, file.uname, file.gname) for file in archive} == {(0, 0, "", "")}, "of no user"


def test_processes_share_gpu_through_mps(tmp_path, call, monkeypatch) -> None:
    """Commands of one step run concurrently with an MPS server, which is started before and stopped after them."""
    control = tmp_path / quarter_hour.MPS
    control.write_text(
        f'#!/bin/sh\necho "$1 $CUDA_MPS_PIPE_DIRECTORY" >> {tmp_path}/said\n[ $# = 1 ] || cat >> {tmp_path}/said\n'
    )
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    both = "open(sys.argv[1] + os.environ['CUDA_MPS_PIPE_DIRECTORY'][-3:] + sys.argv[2], 'w')\n"
    wait = "import os, sys, time\n" + both + "while len(os.listdir(os.path.dirname(sys.argv[1]))) < 2: time.sleep(0.01)"
    (tmp_path / "here").mkdir()
    lines = [["python", "-ISc", wait, str(tmp_path / "here" / "p"), copy] for copy in "12"]
    assert call([], [], [Step("mps", 60, lines)]) == 0
    assert sorted(file.name for file in (tmp_path / "here").iterdir()) == ["pmps1", "pmps2"]
    folder = tmp_path / "hour" / "mps"
    assert (tmp_path / "said").read_text().splitlines() == [f"-d {folder}", f" {folder}", "quit"]


def test_dry_run_prints_gpu_plan_without_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a GPU, --dry-run prints valid commands for one and creates no files."""
    options = ["--output", str(tmp_path / "hour"), "--source", str(tmp_path), "--unofficial", "a reason", "--dry-run"]
    assert quarter_hour.main(options) == 0
    assert not (tmp_path / "hour").exists()
    printed = capsys.readouterr().out.splitlines()
    lines = [shlex.split(line) for line in printed if line.startswith("    python -m ")]
    for _, _, module, *arguments in lines:
        if module == "pytest":
            assert (quarter_hour.ROOT / arguments[3]).exists()
            continue
        try:
            check_module([module, *arguments])
        except click.UsageError as error:
            raise AssertionError(f"{module} {arguments}: {error}") from error
    trained_cells = [words for words in lines if words[3:5] == ["run", "paper"]]
    assert all(words[-3:] == ["--cuda-graphs", "19", "--compile"] for words in trained_cells)
    names = [line for line in printed if line.startswith("cifar10-revnet18-w64-")]
    assert [name.removeprefix("cifar10-revnet18-w64-").rpartition("-")[0] for name in names] == [
        f"{cell}-s{seed}" for seed in (0, 1) for cell in ("petra-k1", "backpropagation-k1", "petra-k1-1f1b")
    ]
    assert names[0].endswith("2b959085d163"), "the cell that has a result"
