"""Test foreign records: no file of this machine gets into a page or record, and no value breaks anything else."""

import copy
import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from petra_core import methods
from reproduce.exhibits import benchmarks as benchmark_views
from reproduce.exhibits import provenance as provenance_view
from reproduce.grids import recipes
from reproduce.measures.complexity import measure_complexity
from reproduce.records import merging, reading, results, volumes
from reproduce.records.benchmarks import write as write_benchmark
from reproduce.records.frames import Frames
from reproduce.records.merging import Decision
from reproduce.records.record import Record, RecordError
from reproduce.records.results import Results
from tests import fake_records
from tests.fake_records import FAST, SLOW, snapshot
from tests.processes import call

CELL = recipes.cell("smoke")
OTHER = recipes.cell("smoke", seed=1)
SECRET = "what only this user may read"


@pytest.fixture
def foreign(tmp_path: Path) -> Record:
    """Return a complete record of someone else, with a patch."""
    return fake_records.in_folder(
        fake_records.train(CELL, tmp_path / "theirs", 90.0, code=fake_records.DIRTY, patch="-a\n+b\n")
    )


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret.txt"
    file.write_text(SECRET)
    return file


def edit(file: Path, **changes: Any) -> None:
    """Change values of a JSON file, or of its first entry if it has entries."""
    values = json.loads(file.read_text())
    (values["entries"][0] if "entries" in values else values).update(changes)
    file.write_text(json.dumps(values))


def merged(source: Path, root: Path) -> list[Decision]:
    return [decision for decision, _, _ in merging.merge(source, root)]


@pytest.mark.parametrize("name", ["../../../secret.txt", "{secret}", "diff-0.patch", "x/diff-1.patch", 7, None, "a\0b"])
def test_diff_of_a_record_must_be_a_file_of_that_record(
    tmp_path: Path, foreign: Record, secret: Path, name: Any
) -> None:
    """A diff that names a file outside its record is refused, and no content of that file is read."""
    edit(foreign.path / "code.json", diff=name.format(secret=secret) if isinstance(name, str) else name)
    with pytest.raises(
        RecordError, match=r"code\.json: is damaged: (diff is .* expected a name such as diff-1\.patch|the text)"
    ):
        foreign.read()
    assert merged(tmp_path / "theirs", tmp_path / "ours") == [Decision.UNREADABLE]
    read = results.read(tmp_path / "theirs")
    assert read.runs == ()
    assert SECRET not in str(read)


@pytest.mark.parametrize(
    "name",
    [
        *("live/diff-1.patch", "live/metrics.jsonl", "live/config.json", "live/result.json", "live/code.json"),
        *("smoke/training-digits-revnet18-petra.jsonl", "smoke/provenance.jsonl"),
    ],
)
@pytest.mark.parametrize("kind", ["a link", "a pipe"])
def test_record_consists_of_regular_files(tmp_path: Path, foreign: Record, secret: Path, name: str, kind: str) -> None:
    """A link may lead to any file of this machine, also to an endless one; a pipe may have no end."""
    file = foreign.path / Path(name).name
    if name.startswith("smoke"):
        foreign.publish()
        file = tmp_path / "theirs" / name
    file.unlink()
    if kind == "a pipe":
        os.mkfifo(file)
    else:
        file.symlink_to(secret)
    assert merged(tmp_path / "theirs", tmp_path / "ours") == [Decision.UNREADABLE]
    (problem,) = results.read(tmp_path / "theirs").problems
    assert f"{file}: cannot be read: it is a" in str(problem) or "is listed in code.json and cannot be read" in str(
        problem
    )
    assert SECRET not in str(problem)
    assert not list((tmp_path / "ours").glob("*/*"))


def test_unreadable_record_is_named_and_others_merged(
    tmp_path: Path, foreign: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder without permission, which `glob` leaves out."""
    closed = fake_records.in_folder(fake_records.train(OTHER, tmp_path / "theirs", 91.0)).path
    scandir = os.scandir

    def look(path: Any) -> Any:
        if str(path) == str(closed):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", look)
    decided = list(merging.merge(tmp_path / "theirs", tmp_path / "ours"))
    assert sorted(decision.name for decision, _, _ in decided) == ["BROUGHT", "UNREADABLE"]
    [(path, text)] = [(path, text) for decision, path, text in decided if decision.bad]
    assert path == closed
    assert "ermission" in text


ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 2.5, 1e308, 10**400, float("nan"), "", "x", "\ud800", "a\0b", "\x01", "$\\frac{$"),
    *([], {}, [[]], [None], {"x": None}, ["a"], [{"stage": "a"}], {"median": None}),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values within a JSON value; for a list, those of its first entry."""
    if path:
        yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, entry in entries:
        yield from places(entry, (*path, key))


def changed(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    new = copy.deepcopy(value)
    inner = new
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = odd
    return new


def changes(values: Any, odds: Sequence[Any] = ODD) -> Iterator[Any]:
    """Yield the value with each of its parts replaced by each invalid one."""
    for path in places(values):
        for odd in odds:
            yield changed(values, path, odd)


def show(read: Results, folder: Path) -> None:
    """Make everything that combines records: tables, the section Provenance, exported files, lines of a list."""
    problems = [str(problem) for problem in (*read.problems, *read.benchmark_problems)]
    "\n".join([*problems, *(f"{run.cell.name}: {run.state}" for run in read.runs)]).encode()
    frames = Frames(read)
    list(frames.export(folder))
    list(provenance_view.whole(frames))
    list(benchmark_views.whole(frames))


def show_together(variants: Sequence[Results], folder: Path) -> None:
    """Show all variants on one page."""
    together = Results(
        runs=tuple(
            dataclasses.replace(run, cell=dataclasses.replace(run.cell, seed=number))  # type: ignore[call-arg]  # all cells have a seed
            for number, read in enumerate(variants)
            for run in read.runs
        ),
        problems=tuple(problem for read in variants for problem in read.problems),
        benchmarks=(),
        benchmark_problems=(),
    )
    show(together, folder)


def rewrite(file: Path, text: str) -> None:
    """Replace a file. Some file systems write a truncated file to the disk as it is closed, for milliseconds."""
    file.unlink()
    file.write_text(text)


def assert_changes_break_nothing(root: Path, values: Any, write: Callable[[Any], object]) -> None:
    """Read and show the records below `root` after each change of these values, which `write` writes."""
    variants = [results.read(root)]
    assert len(variants[0].runs) == 1
    for odd in changes(values):
        write(odd)
        variants.append(results.read(root))
    assert any(read.problems for read in variants)
    show_together(variants, root.with_name("export"))


@pytest.mark.parametrize("name", ["config.json", "environment.json", "code.json", "result.json"])
def test_invalid_record_values_break_nothing_else(tmp_path: Path, name: str) -> None:
    """Test every field of every file of a measurement with every invalid value. Values of a training are below."""
    root, cell = tmp_path / "records", fake_records.complexity_cell(methods.PETRA)
    record = fake_records.begin(cell, root, code=fake_records.DIRTY, patch="-a\n+b\n")
    record.finish(measure_complexity(cell))
    file = fake_records.in_folder(record).path / name
    assert_changes_break_nothing(root, json.loads(file.read_text()), lambda odd: rewrite(file, json.dumps(odd)))


@pytest.mark.parametrize("part", ["cell", "epoch", "result", "environment", "code"])
def test_invalid_volume_values_break_nothing_else(tmp_path: Path, part: str) -> None:
    """Test every field of every line of a training with every invalid value, under the matching hash."""
    root = tmp_path / "records"
    fake_records.train(CELL, root, 90.0, code=fake_records.DIRTY, patch="-a\n+b\n")
    volume = volumes.path_of(CELL, root)
    provenance = volume.with_name(volumes.PROVENANCE)
    lines, entries = ([json.loads(line) for line in file.read_text().splitlines()] for file in (volume, provenance))
    target = next(line for line in (*lines, *entries) if line.get("t") == part or part in line)

    def text(line: dict[str, Any], odd: dict[str, Any]) -> str:
        values = odd if line is target else line
        return json.dumps({key: values[key] for key in values if key not in ("id", "run")}, separators=(",", ":"))[1:]

    def write(odd: dict[str, Any]) -> None:
        names = {entry["id"]: volumes._hash([text(entry, odd)]) for entry in entries}
        rewrite(provenance, "".join(f'{{"id":"{names[entry["id"]]}",{text(entry, odd)}\n' for entry in entries))
        if target is not lines[0]:
            lines[0].update({kind: [names[key] for key in first[kind]] for kind in ("environments", "codes")})
        block = [text(line, odd) for line in lines]
        start = f'{{"id":"{CELL.identity}","run":"{volumes._run_of(block)}",'
        rewrite(volume, "".join(f"{start}{line}\n" for line in block))
        volumes._READ.clear()  # files of equal size and time look unchanged

    first = copy.deepcopy(lines[0])
    write(target)
    assert_changes_break_nothing(root, {key: target[key] for key in target if key not in ("id", "run")}, write)


@pytest.mark.parametrize("lines", [[], [1], [0, 1, 2], [5], [1, 5], [0, 0], [5, 0], [0, 5]])
def test_invalid_volume_lines_are_named_despite_valid_hash(tmp_path: Path, lines: list[int]) -> None:
    """Lines that do not form one complete record are one problem, even if their hash matches."""
    fake_records.train(CELL, tmp_path, 90.0)
    volume = volumes.path_of(CELL, tmp_path)
    texts = [line.split(",", 2)[2] for line in volume.read_text().splitlines()]
    block = [texts[line] for line in lines] or ['"t":"cell"}']
    start = f'{{"id":"{CELL.identity}","run":"{volumes._run_of(dict.fromkeys(block))}",'
    volume.write_text("".join(f"{start}{line}\n" for line in block))
    read = results.read(tmp_path)
    assert read.runs == ()
    assert len(read.problems) == 1


UNPRINTABLE_NAME = os.fsdecode(b"\xff\x1b]0;owned\x07")


@pytest.mark.parametrize("what", ["a folder", "a volume", "a benchmark"])
def test_unprintable_name_breaks_nothing_else(tmp_path: Path, what: str) -> None:
    """Such as one that is not UTF-8, or that has an escape sequence of terminals."""
    root = tmp_path / "records"
    file = root / "smoke" / f"{UNPRINTABLE_NAME}.jsonl"
    if what == "a folder":
        file = root / "smoke" / UNPRINTABLE_NAME / "config.json"
    elif what == "a benchmark":
        file = root / "benchmarks" / f"{UNPRINTABLE_NAME}.json"
    file.parent.mkdir(parents=True)
    file.write_text("{\n")
    read = results.read(root)
    problems = (*read.problems, *read.benchmark_problems)
    texts = [
        *map(str, problems),
        *(problem.args[1] for problem in problems),
        *(problem.place for problem in read.problems),
    ]
    assert any("udcff" in words for words in texts)
    assert not any(reading.UNPRINTABLE.search(words) for words in texts)
    show(read, tmp_path / "export")
    done = call("records", "merge", root, "--records", tmp_path / "ours")
    assert not reading.UNPRINTABLE.search(done.output)


@pytest.mark.parametrize("end", [b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000, b"\xff", b"{}"])
@pytest.mark.parametrize("which", ["volume", "provenance"])
def test_trailing_garbage_in_a_volume_hides_no_record(tmp_path: Path, which: str, end: bytes) -> None:
    """Text without a newline is the rest of an interrupted append, or anything that somebody else wrote."""
    fake_records.train(CELL, tmp_path, 90.0)
    file = volumes.path_of(CELL, tmp_path)
    file = file if which == "volume" else file.with_name(volumes.PROVENANCE)
    with file.open("ab") as volume:
        volume.write(end)
    assert len(results.read(tmp_path).runs) == 1
    fake_records.train(OTHER, tmp_path, 91.0)  # an append continues after it
    assert len(results.read(tmp_path).runs) == 2


def test_invalid_benchmark_values_break_nothing_else(tmp_path: Path) -> None:
    """No invalid value in a benchmark record breaks reading or the report."""
    made = fake_records.benchmark(fake_records.FASTER)
    versions = {"contestants": f"{FAST}; {SLOW}", FAST: "1", SLOW: "2"}
    file = write_benchmark(dataclasses.replace(made, setting={**made.setting, **versions}), tmp_path)
    variants = [results.read(tmp_path)]
    for odd in changes(json.loads(file.read_text()), (*ODD, 10**7)):
        rewrite(file, json.dumps(odd))
        variants.append(results.read(tmp_path))
    kept = [read for read in variants if read.benchmarks]
    assert kept[0] == variants[0]
    for read in kept[:: len(kept) // 6]:  # drawing takes a second each
        show(read, tmp_path / "export")
    for problem in (problem for read in variants for problem in read.benchmark_problems):
        str(problem).encode()


def test_too_large_file_is_not_read(tmp_path: Path) -> None:
    """A file above the size limit raises a ValueError."""
    file = tmp_path / "metrics.jsonl"
    with file.open("wb") as large:
        large.truncate(reading.LARGEST_FILE + 1)
    with pytest.raises(ValueError, match=r"has 268,435,457 bytes, expected at most 268,435,456"):
        reading.read_file(file)


@pytest.mark.parametrize(
    "name", ["draft.tmp", "thesis.docx.tmp", "model.pt", "config.json.1.tmp.bak", "checkpoint/weights"]
)
def test_folder_of_other_files_is_not_changed(tmp_path: Path, name: str) -> None:
    """`train --output .` once deleted every *.tmp in it, and overwrote model.pt. A checkpoint's folder is removed."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    before = snapshot(tmp_path)
    first = Path(name).parts[0]
    with pytest.raises(RecordError, match=rf"is not a record .* contains .*{first}.* choose another folder"):
        Record(tmp_path, CELL).begin(fake_records.ENVIRONMENT, fake_records.CLEAN)
    done = call("train", "--dataset", "digits", "--output", tmp_path, code=2)
    assert "--output: " in done.stderr
    assert snapshot(tmp_path) == before


def test_only_temporary_files_of_this_program_are_removed(tmp_path: Path) -> None:
    """Only temporary files with the names that this program uses are removed. Other folders are harmless."""
    (tmp_path / "notes").mkdir()
    (tmp_path / "record.lease.break.12.0a1b").touch()  # from filelock; does not prevent a new record
    record = Record(tmp_path, CELL)
    record.begin(fake_records.ENVIRONMENT, fake_records.CLEAN)
    ours = ["config.json.12.tmp", "result.json.7.tmp", "diff-1.patch.5.tmp", "record.lease.0a1b.tmp"]
    ours += ["checkpoint.pt.3.tmp", "model.pt.3.tmp"]
    theirs = ["draft.tmp", "result.json.tmp", "x.12.tmp"]
    for name in (*ours, *theirs):
        (tmp_path / name).touch()
    record.begin(fake_records.ENVIRONMENT, fake_records.CLEAN)
    assert not [name for name in ours if (tmp_path / name).exists()]
    assert [name for name in theirs if (tmp_path / name).exists()] == theirs
