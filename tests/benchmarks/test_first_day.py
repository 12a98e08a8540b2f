"""The first day: what was done stays done, what is wrong ends it, and what it leaves can be taken home."""

import contextlib
import dataclasses
import os
import shlex
import signal
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks import first_day
from benchmarks.first_day import Command, Step
from reproduce.commands.cli import main as reproduce
from reproduce.records import benchmarks
from reproduce.records.benchmarks import Benchmark, Comparison, Series
from reproduce.records.record import scan
from tests.processes import Command as Process
from tests.processes import wait_for
from tests.reproduce.records.test_benchmark_records import benchmark
from tests.test_docs import check_module

SMALL = ["--device", "cpu", "--scale", "smoke"]
#: Trains until it is told to stop, or to its end if it was begun before.
TRAINING = """
import pathlib, signal, sys, time
file = pathlib.Path(sys.argv[1])
if file.exists():
    sys.exit()
signal.signal(signal.SIGINT, lambda *_: (file.write_text("saved"), sys.exit(130)))
pathlib.Path(sys.argv[2]).touch()
time.sleep(600)
"""


def script(text: str, *arguments: object) -> Command:
    return Command(["python", "-c", text, *map(str, arguments)])


def noting(folder: Path, name: str, then: str = "") -> Command:
    """Adds a line to the file of this name in a folder, and does something then."""
    return script(f"import sys, time; print(file=open(sys.argv[1], 'a')); {then}", folder / name)


def times(folder: Path, name: str) -> int:
    """How often that was done."""
    file = folder / name
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A day of these steps and this training, in this process."""

    def go(steps: Sequence[Step], *options: str, training: Command | None = None) -> int:
        monkeypatch.setattr(first_day, "plan", lambda options: steps)
        monkeypatch.setattr(first_day, "training", lambda options: [] if training is None else [training])
        return first_day.main([*SMALL, "--output", str(tmp_path / "day"), *options])

    return go


@pytest.mark.slow
def test_the_whole_day_in_small_and_what_it_leaves_is_merged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, home = tmp_path / "day", tmp_path / "home"
    assert first_day.main([*SMALL, "--output", str(output)]) == 0, capsys.readouterr().out
    said = capsys.readouterr().out
    assert "FAILED" not in said
    assert "not done" not in said
    assert "in 2 of 2 places" in said or "in 1 of 2 places" in said or "in 0 of 2 places" in said
    records, problems = benchmarks.read_all(output / "records")
    assert not problems
    measured = ["memory", "pareprop-revvit-micro", "tick-w2-b2-bf16", "tick-w2-b2-float32"]
    assert [record.name for record in records] == [f"{name}-cpu" for name in measured]
    merged = CliRunner().invoke(
        reproduce, ["records", "merge", str(output / first_day.ARCHIVE), "--records", str(home)]
    )
    assert merged.exit_code == 0, merged.output
    assert merged.output.splitlines()[-1] == f"{1 + len(measured)} brought"
    assert [str(run.state) for run in scan(home).records] == ["done"]
    assert first_day.main([*SMALL, "--output", str(output)]) == 0
    assert capsys.readouterr().out.count(" ...") == 1, "nothing is done twice, and training says that it is done"


def test_the_day_for_a_gpu_can_be_looked_at_without_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "day"
    options = ["--output", str(output), "--source", str(tmp_path), "--unofficial", "a reason", "--jobs", "2"]
    assert first_day.main([*options, "--dry-run"]) == 0
    assert not output.exists()
    printed = capsys.readouterr().out
    lines = [shlex.split(line) for line in printed.splitlines() if line.startswith("    python -m ")]
    for _, _, module, *arguments in lines:
        if module in ("pytest",):
            assert (first_day.ROOT / arguments[3]).exists()
            continue
        try:
            check_module([module, *arguments])
        except click.UsageError as error:
            raise AssertionError(f"{module} {arguments}: {error}") from error
    trained = [words for words in lines if words[3:5] == ["run", "paper"]]
    assert [words[words.index("--tables") + 1] for words in trained] == ["length", "table2"]
    assert all(words[words.index("--precision") :][:2] == ["--precision", "tf32"] for words in trained)
    ticks = [words for words in lines if "benchmarks.tick" in words]
    places = [words[words.index("--width") : words.index("--captured")] for words in ticks if "--compile" not in words]
    assert places[0] == ["--width", "64", "--batch", "64", "--precision", "tf32"]
    assert len(places) == len({tuple(place) for place in places}) == 24
    assert [words[words.index("--width") : words.index("--captured")] for words in ticks if "--compile" in words] == [
        places[0]
    ]


def test_without_data_or_graphs_or_sections_there_is_less(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*options: str) -> str:
        assert first_day.main(["--output", str(tmp_path), "--dry-run", *options]) == 0
        return capsys.readouterr().out

    assert "no cell is trained" in shown()
    assert "captured" in shown()
    assert "captured" not in shown("--cuda-graphs", "0")
    only = shown("--only", "memory", "training", "--source", str(tmp_path))
    assert [line.partition(":")[0] for line in only.splitlines() if line[0] != " "] == [
        "training",
        "memory",
        "training",
    ]


def test_what_is_wrong_ends_the_day_with_what_it_means(tmp_path, day, capsys) -> None:
    steps = [
        Step("correctness", "good", 60, [noting(tmp_path, "good")], "it is bad"),
        Step("correctness", "bad", 60, [script("import sys; print('why'); sys.exit(3)")], "Do not trust it."),
        Step("map", "tick", 60, [noting(tmp_path, "tick")]),
    ]
    assert day(steps, training=noting(tmp_path, "training")) == 1
    said = capsys.readouterr().out
    assert "bad FAILED: exit code 3: why; see " in said
    assert "The day ends here. Do not trust it." in said
    assert "map: tick: not done" in said
    steps[1] = Step("correctness", "bad", 60, [noting(tmp_path, "mended")], "Do not trust it.")
    assert day(steps, training=noting(tmp_path, "training")) == 0
    assert [times(tmp_path, name) for name in ("good", "mended", "tick", "training")] == [1, 1, 1, 1]
    assert "Not" not in capsys.readouterr().out


def test_a_measurement_that_fails_is_named_and_the_day_goes_on(tmp_path, day, capsys) -> None:
    steps = [
        Step("map", "late", 0.5, [noting(tmp_path, "late", "time.sleep(600)")]),
        Step("map", "rude", 60, [Command(["python", "-c", "print('it is bad: 7')"], never="is bad:")]),
        Step("memory", "good", 60, [noting(tmp_path, "good")]),
    ]
    for _ in range(2):
        assert day(steps, training=noting(tmp_path, "training")) == 0
    said = capsys.readouterr().out
    assert "map: late: FAILED: not done in 0 s" in said
    assert "map: rude: FAILED: it is bad: 7" in said
    assert [times(tmp_path, name) for name in ("late", "good", "training")] == [1, 1, 2]


def test_what_is_to_be_stopped_half_way_is_stopped_there(tmp_path, day) -> None:
    saved, begun = tmp_path / "saved", tmp_path / "begun"
    stopped = script(TRAINING, saved, begun)._replace(until=begun)
    assert day([Step("correctness", "resume", 60, [stopped, script(TRAINING, saved, begun)], "bad")]) == 0
    assert saved.read_text() == "saved"


def test_what_ended_before_it_was_stopped_proves_nothing(tmp_path, day, capsys) -> None:
    never = script("pass")._replace(until=tmp_path / "never")
    assert day([Step("correctness", "resume", 60, [never, script("pass")], "bad")]) == 1
    assert "resume FAILED: it ended before it could be stopped" in capsys.readouterr().out


def test_a_call_trains_until_its_end_and_the_next_one_goes_on(tmp_path, day, capsys, monkeypatch) -> None:
    monkeypatch.setattr(first_day, "GRACE", 8.0)
    monkeypatch.setattr(first_day, "WORTHWHILE", 0.0)
    saved = tmp_path / "saved"
    train = script(TRAINING, saved, tmp_path / "begun")
    steps = [
        Step("correctness", "right", 5, [noting(tmp_path, "right")], "bad"),
        Step("map", "long", 15, [noting(tmp_path, "long")]),
    ]
    assert day(steps, "--call-minutes", "0.25", training=train) == 0
    said = capsys.readouterr().out
    assert "map: long waits for the next call" in said
    assert "training: stopped and saved" in said
    assert saved.read_text() == "saved"
    assert day(steps, training=train) == 0
    assert "every cell has a result" in capsys.readouterr().out
    assert [times(tmp_path, name) for name in ("right", "long")] == [1, 1]


def test_a_section_takes_no_more_than_its_share_and_a_folder_is_of_one_day(tmp_path, day, monkeypatch, capsys) -> None:
    monkeypatch.setattr(first_day, "SHARES", {"map": 0.0})
    steps = [Step("map", name, 5, [noting(tmp_path, name)]) for name in ("one", "two")]
    assert day([*steps, Step("memory", "three", 5, [noting(tmp_path, "three")])]) == 0
    assert [times(tmp_path, name) for name in ("one", "two", "three")] == [1, 0, 1]
    assert "map: two: not done" in capsys.readouterr().out
    long = [Step("correctness", "long", 600, [noting(tmp_path, "long")], "bad")]
    assert day(long, "--minutes", "5", training=noting(tmp_path, "training")) == 1
    assert "long takes up to 600 s: give it more time" in capsys.readouterr().out
    assert times(tmp_path, "training") == 0
    state = tmp_path / "day" / "state.json"
    state.write_text(state.read_text().replace("smoke", "day"))
    with pytest.raises(SystemExit):
        day([])
    assert "has a day of" in capsys.readouterr().err


def run_day(folder: Path, output: Path) -> None:
    """A day whose second step lasts until it is killed."""
    first_day.plan = lambda options: [
        Step("correctness", "one", 60, [noting(folder, "one")], "bad"),
        Step("map", "two", 600, [noting(folder, "two", f"print({os.getpid()}); time.sleep(600)")]),
    ]
    first_day.training = lambda options: []
    sys.exit(first_day.main([*SMALL, "--output", str(output)]))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_stopped_in_any_way_what_was_finished_stays(tmp_path, day, number) -> None:
    with contextlib.closing(Process(run_day, tmp_path, tmp_path / "day")) as process:
        wait_for(lambda: times(tmp_path, "two"))
        process.send_signal(number)
        process.said()
        assert process.returncode == (-9 if number == signal.SIGKILL else 130)
    assert (tmp_path / "day" / first_day.ARCHIVE).exists()
    steps = [
        Step("correctness", "one", 60, [noting(tmp_path, "one")], "bad"),
        Step("map", "two", 60, [noting(tmp_path, "two")]),
    ]
    assert day(steps) == 0
    assert [times(tmp_path, name) for name in ("one", "two")] == [1, 2]


def test_what_is_too_large_is_left_out_of_the_archive_and_named(tmp_path, day, monkeypatch, capsys) -> None:
    monkeypatch.setattr(first_day, "FILE_LIMIT", 5_000)
    monkeypatch.setattr(first_day, "ARCHIVE_LIMIT", 11_000)
    records = tmp_path / "day" / "records" / "scale" / "cell"
    records.mkdir(parents=True)
    for name, size in (("metrics.jsonl", 3_000), ("code.json", 4_000), ("more.json", 4_900), ("checkpoint.pt", 6_000)):
        (records / name).write_bytes(bytes(size))
    (records / "record.lock").touch()
    assert day([]) == 0
    with tarfile.open(tmp_path / "day" / first_day.ARCHIVE) as archive:
        names = archive.getnames()
    inside = "records/scale/cell"
    assert names == ["state.json", f"{inside}/metrics.jsonl", f"{inside}/code.json", "summary.txt"]
    said = capsys.readouterr().out
    assert f"Not in the archive, too large: {inside}/checkpoint.pt, 0.0 MB" in said
    assert f"Not in the archive, too large: {inside}/more.json, 0.0 MB" in said
    assert (records / "checkpoint.pt").exists()


def test_the_map_has_the_fastest_rival() -> None:
    """And says where PETRA is slower, which nobody had asked for."""
    at = {"captured": 4, "against": "plain, compiled"}

    def place(batch: int, petra: float) -> Benchmark:
        seconds = {"tick": petra, "plain": 3.0, "compiled": 2.0, "limit": 1.0}
        return dataclasses.replace(
            benchmark(),
            setting=at
            | {"network": "revnet18", "width": 64, "batch": batch, "precision": "tf32", "compile": batch == 16},
            series=tuple(Series("all", name, "time", "s", (value, value)) for name, value in seconds.items()),
            comparisons=tuple(
                Comparison("all", "time", *pair)
                for pair in (("tick", "plain"), ("tick", "compiled"), ("limit", "compiled"), ("tick", "limit"))
            ),
        )

    _, slower, faster, last = first_day.map_lines([place(64, 2.8), place(16, 1.5)])
    assert slower.endswith("1.400 (1.400 to 1.400), against compiled")
    assert faster.endswith("batch 16, tf32, compiled: 0.750 (0.750 to 0.750), against compiled")
    assert "slower in 1 of 2 places" in last


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--device", "cpu"], "--scale day is for a GPU"),
        ([*SMALL, "--cuda-graphs", "4"], "is for a GPU"),
        (["--device", "gpu"], "there is no device 'gpu'"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, capsys, options, words) -> None:
    with pytest.raises(SystemExit):
        first_day.main([*options, "--output", str(tmp_path / "day")])
    assert words in capsys.readouterr().err
    assert not (tmp_path / "day").exists()
