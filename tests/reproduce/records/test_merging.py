"""Test merging: no finished record is lost, no valid record is overwritten, and a kill is harmless."""

import dataclasses
import errno
import json
import multiprocessing
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from petra_core import methods
from reproduce.commands.cli import main
from reproduce.grids import recipes
from reproduce.measures.complexity import measure_complexity
from reproduce.records import benchmarks, locks, merging, results, volumes
from reproduce.records.merging import Decision, merge
from reproduce.records.record import Record, Status, scan
from reproduce.records.storage import StorageFullError
from tests.fake_records import DIRTY, PATCH, begin, complexity_cell, in_folder, train, unpack
from tests.processes import FORKED, ROOT
from tests.reproduce.records.test_benchmark_records import benchmark
from tests.reproduce.records.test_records import snapshot

CELL = recipes.cell("smoke")


@pytest.fixture
def here(tmp_path):
    return tmp_path / "here"


@pytest.fixture
def there(tmp_path):
    return tmp_path / "there"


def partial(root, epochs, checkpoint=b"checkpoint", cell=CELL):
    record = train(cell, root, 95.0, epochs=epochs)
    if checkpoint:
        record.checkpoint.write_bytes(checkpoint)
    return record


def shared(root, epochs):
    """Write a record of several processes, each of which wrote a part of the checkpoint."""
    record = partial(root, epochs, b"")
    record.shards.mkdir()
    for number in range(2):
        (record.shards / f"part-{number}").write_bytes(b"part of epoch %d" % epochs)
    return record


def failed(root, reason, epochs=1):
    record = train(CELL, root, 95.0, epochs=epochs)
    record.fail(reason, "words")
    return record


def decisions(there, here, **options):
    return [decision for decision, *_ in merge(there, here, **options)]


@pytest.mark.parametrize(
    "make",
    [
        lambda root: train(CELL, root, 95.0),
        lambda root: partial(root, 2),
        lambda root: shared(root, 2),
        lambda root: failed(root, "diverged"),
    ],
)
def test_missing_record_is_copied_completely(there, here, make):
    """A record that the destination lacks is copied completely, without temporary files."""
    make(there)
    before = snapshot(there)
    interrupted = Record.for_cell(CELL, there).path / "result.json.123.tmp"
    interrupted.parent.mkdir(parents=True, exist_ok=True)
    interrupted.write_bytes(b"half of it")
    assert decisions(there, here) == [Decision.BROUGHT]
    assert snapshot(here) == before
    interrupted.unlink()
    assert snapshot(there) == before
    assert not list(here.glob(".merge-*"))


@pytest.mark.parametrize(
    ("theirs", "ours", "decision"),
    [
        (lambda root: train(CELL, root, 95.0), lambda root: partial(root, 3), Decision.REPLACED),
        (lambda root: train(CELL, root, 95.0), lambda root: failed(root, "out of memory"), Decision.REPLACED),
        (lambda root: partial(root, 2), lambda root: failed(root, "out of memory"), Decision.REPLACED),
        (lambda root: failed(root, "diverged"), lambda root: partial(root, 3), Decision.REPLACED),
        (lambda root: failed(root, "diverged", 0), lambda root: partial(root, 1), Decision.REPLACED),  # no metrics left
        (lambda root: partial(root, 1), lambda root: partial(root, 3, b""), Decision.REPLACED),
        (lambda root: partial(root, 0), lambda root: begin(CELL, root), Decision.REPLACED),
        (lambda root: shared(root, 3), lambda root: partial(root, 1), Decision.REPLACED),
        (lambda root: partial(root, 3), lambda root: shared(root, 1), Decision.REPLACED),
        (lambda root: partial(root, 2), lambda root: shared(root, 3), Decision.KEPT),
        (lambda root: partial(root, 2), lambda root: partial(root, 2), Decision.KEPT),
        (lambda root: partial(root, 3), lambda root: train(CELL, root, 95.0), Decision.KEPT),
        (lambda root: partial(root, 3), lambda root: failed(root, "diverged"), Decision.KEPT),
        (lambda root: train(CELL, root, 95.0), lambda root: train(CELL, root, 95.0), Decision.SAME),
    ],
)
def test_more_complete_record_replaces_less_complete(there, here, theirs, ours, decision):
    """A finished record replaces a partial one, and a partial one with more epochs one with fewer."""
    theirs(there)
    ours(here)
    before = snapshot(here)
    assert decisions(there, here, dry_run={}) == [decision]
    assert snapshot(here) == before
    assert decisions(there, here) == [decision]
    assert snapshot(here) == (snapshot(there) if decision is Decision.REPLACED else before)
    assert decisions(there, here) != [Decision.REPLACED], "once is enough"


@pytest.mark.parametrize("make", [lambda root: train(CELL, root, 96.0), lambda root: failed(root, "diverged")])
def test_different_results_conflict_and_both_are_kept(there, here, make):
    """Two different results of a cell are a conflict, and neither side changes."""
    train(CELL, there, 95.0)
    make(here)
    before = snapshot(there), snapshot(here)
    [(decision, _, detail)] = merge(there, here)
    assert decision is Decision.CONFLICT
    assert str(Record.for_cell(CELL, here).read().place) in detail
    assert (snapshot(there), snapshot(here)) == before


@pytest.mark.parametrize("make", [lambda root: train(CELL, root, 96.0), lambda root: failed(root, "diverged")])
def test_replace_exchanges_different_results_and_keeps_the_old_one(there, here, make):
    """With `replace` the other result is used, and the old one moves to a folder of records that counts nowhere."""
    train(CELL, there, 95.0)
    make(here)
    before = snapshot(here)
    assert decisions(there, here, replace=True, dry_run={}) == [Decision.EXCHANGED]
    assert snapshot(here) == before
    old = Record.for_cell(CELL, here).read().state
    assert decisions(there, here, replace=True) == [Decision.EXCHANGED]
    assert decisions(there, here, replace=True) == [Decision.SAME]
    contents = results.read(here)
    assert not contents.problems
    assert [run.state.reached for run in contents.runs] == ["95.00 %"]
    assert [run.state for run in contents.replaced] == [old]
    assert [run.state for run in scan(here / volumes.REPLACED).records] == [old]


def test_replace_brings_equal_result_of_other_code(there, here):
    """With `replace` an equal result of other code is used, since the code of the old one may be unknown."""
    for root, commit in ((here, "a" * 40), (there, "b" * 40)):
        train(CELL, root, 95.0, code={"version": "0.1.0", "commit": commit, "clean": True, "untracked": []})
    assert decisions(there, here) == [Decision.SAME]
    assert decisions(there, here, replace=True) == [Decision.EXCHANGED]
    assert [run.codes[0]["commit"] for run in scan(here).records] == ["b" * 40]


def test_killed_exchange_leaves_one_result_and_can_be_repeated(there, here, monkeypatch):
    """A kill before the last write leaves the old result in use, and the same merge completes the exchange."""
    train(CELL, there, 95.0)
    train(CELL, here, 96.0)

    def kill(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(volumes, "write_atomically", kill)
        with pytest.raises(KeyboardInterrupt):
            decisions(there, here, replace=True)
    assert [run.state.reached for run in scan(here).records] == ["96.00 %"]
    assert decisions(there, here, replace=True) == [Decision.EXCHANGED]
    contents = results.read(here)
    assert [run.state.reached for run in contents.runs] == ["95.00 %"]
    assert [run.state.reached for run in contents.replaced] == ["96.00 %"]


def test_runs_differing_only_in_times_are_the_same(there, here):
    """Two results that differ only in their times are the same."""
    train(CELL, there, 95.0)
    train(CELL, here, 95.0)
    ours = Record.for_cell(CELL, here).read().metrics
    folder = in_folder(Record.for_cell(CELL, there)).path
    for name in ("result.json", "metrics.jsonl"):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace("900.0", "123.4").replace(": 1.5,", ": 9.5,"))
    assert Record.for_cell(CELL, there).read().metrics != ours
    assert decisions(there, here) == [Decision.SAME]


@pytest.mark.parametrize("side", ["there", "here"])
def test_damaged_and_foreign_records_are_named_and_skipped(there, here, side):
    """A damaged record on either side is named and skipped, and other records are merged."""
    train(CELL, there, 95.0)
    train(CELL, here, 95.0, epochs=2)
    other = dataclasses.replace(CELL, seed=5)
    train(other, there, 95.0)
    in_folder(Record.for_cell(CELL, there))
    file = Record.for_cell(CELL, {"there": there, "here": here}[side]).path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"schema": 99}))
    before = snapshot(here)
    details = {decision: detail for decision, _, detail in merge(there, here)}
    assert set(details) == {Decision.UNREADABLE, Decision.BROUGHT}
    assert str(file) in details[Decision.UNREADABLE]
    assert snapshot(here).items() >= before.items()
    assert Record.for_cell(other, here).state().status is Status.DONE


@pytest.mark.parametrize("side", ["there", "here"])
def test_record_in_use_is_skipped(there, here, side):
    """A record that is locked on either side is skipped."""
    train(CELL, there, 95.0, epochs=3).checkpoint.write_bytes(b"x")
    train(CELL, here, 95.0, epochs=1).checkpoint.write_bytes(b"x")
    before = snapshot(here)
    with Record.for_cell(CELL, {"there": there, "here": here}[side]).lock():
        assert decisions(there, here) == [Decision.IN_USE]
    assert snapshot(here) == before


def test_incomplete_copy_is_discarded(there, here, monkeypatch):
    """Another process, whose lock is not visible here, writes during the copy."""
    partial(there, 2)
    copy = shutil.copy2

    def torn(source, target):
        copy(source, target)
        if Path(target).name == "metrics.jsonl":
            Path(target).write_text('{"epoch": 1}\n{"epo\n')

    monkeypatch.setattr(merging.shutil, "copy2", torn)
    ((decision, path, detail),) = merge(there, here)
    assert (decision, path) == (Decision.IN_USE, Record.for_cell(CELL, there).path)
    assert detail == f"{path} changed while it was copied; give the same command again"
    assert snapshot(here) == {}


def test_record_changed_while_copied_is_discarded(there, here, monkeypatch):
    """Another machine begins to work on the record after it was read."""
    record = shared(there, 2)
    copy = shutil.copy2

    def meanwhile(source, target):
        (record.shards / "part-1").unlink(missing_ok=True)
        return copy(source, target)

    monkeypatch.setattr(merging.shutil, "copy2", meanwhile)
    ((decision, _, detail),) = merge(there, here)
    assert (decision, detail.partition(" ")[0]) == (Decision.IN_USE, str(record.path))
    assert snapshot(here) == {}


def test_checkpoint_is_copied_first_and_full_disk_reported(there, here, monkeypatch):
    """The checkpoint is copied before the metrics, and a full disk raises an error and leaves no files."""
    shared(there, 2)
    copied, copy = [], shutil.copyfile

    def copyfile(source, target, **options):
        copied.append(Path(source).name)
        if Path(source).name == "part-1":
            raise OSError(errno.ENOSPC, "no space left")
        return copy(source, target, **options)

    monkeypatch.setattr(shutil, "copyfile", copyfile)
    with pytest.raises(StorageFullError, match=r"no room to copy .* give the same command again"):
        list(merge(there, here))
    assert "metrics.jsonl" not in copied
    assert snapshot(here) == {}


def test_folder_with_only_a_lock_counts_as_missing(there, here):
    """A destination folder that contains only a lock counts as missing."""
    train(CELL, there, 95.0)
    with Record.for_cell(CELL, here).lock():
        pass
    assert decisions(there, here) == [Decision.BROUGHT]
    assert snapshot(here) == snapshot(there)


def test_record_in_use_at_source_only_is_skipped(there, here):
    """A record that is locked at the source is skipped if the destination has none."""
    partial(there, 2)
    with Record.for_cell(CELL, there).lock():
        assert decisions(there, here) == [Decision.IN_USE]
    assert not Record.for_cell(CELL, here).path.exists()


def test_different_measurements_without_epochs_conflict(there, here):
    """Two different measurements of a cell without epochs are a conflict."""
    for root, flops in ((there, 1), (here, 2)):
        cell = complexity_cell(methods.PETRA)
        begin(cell, root).finish(measure_complexity(cell) | {"stage_flops": flops})
    assert decisions(there, here) == [Decision.CONFLICT]


def test_record_appearing_during_copy_is_compared_again(there, here, monkeypatch):
    """A record that appears at the destination during a copy is compared again and kept if better."""
    partial(there, 2)
    copy = shutil.copy2

    def meanwhile(source, target):
        if not Record.for_cell(CELL, here).has_result:
            train(CELL, here, 96.0)
        return copy(source, target)

    monkeypatch.setattr(merging.shutil, "copy2", meanwhile)
    assert decisions(there, here) == [Decision.KEPT]
    assert Record.for_cell(CELL, here).read().result["test_accuracy"] == 96.0
    assert not Record.for_cell(CELL, here).path.exists()


@pytest.mark.parametrize("step", ["_bring", "_append"])
def test_result_appearing_before_append_is_a_conflict(there, here, monkeypatch, step):
    """A different result that appears before the append is a conflict."""
    train(CELL, there, 95.0)
    bring = getattr(merging, step)

    def meanwhile(theirs, *rest):
        volumes.publish(train(CELL, there.with_name("third"), 96.0).read(), here)
        return bring(theirs, *rest)

    monkeypatch.setattr(merging, step, meanwhile)
    assert decisions(there, here) == [Decision.CONFLICT]
    assert [run.result["test_accuracy"] for run in scan(here).records] == [96.0]


def test_record_is_locked_during_replacement_checkpoint_last(there, here, monkeypatch):
    """A record is locked during its replacement, and its checkpoint is moved last."""
    partial(there, 3)
    ours = partial(here, 1).path
    moved, replace = {}, Path.replace

    def noted(self, target):
        moved[Path(target).name] = locks.holder(ours)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", noted)
    assert decisions(there, here) == [Decision.REPLACED]
    assert [*moved][-1] == "checkpoint.pt"
    assert all(moved.values())


def test_replacement_removes_only_record_files(there, here):
    """A replacement removes only files that belong to records."""
    partial(there, 3)
    ours = partial(here, 1).path
    (ours / "result.json.12.tmp").touch()  # of a write that was killed
    (ours / "notes.txt").write_text("mine")
    (ours / "thesis.tmp").write_text("mine")
    assert decisions(there, here) == [Decision.REPLACED]
    assert {file.name for file in ours.iterdir()} - {"notes.txt", "thesis.tmp"} <= {
        *(file.name for file in Record.for_cell(CELL, there).path.iterdir()),
        *locks.FILES,
    }
    assert (ours / "notes.txt").read_text() == (ours / "thesis.tmp").read_text() == "mine"


def test_unreadable_checkpoint_is_named(there, here, monkeypatch):
    """A checkpoint that cannot be read is named, and nothing is copied."""
    scandir, closed = os.scandir, str(shared(there, 2).shards)

    def look(path):
        if str(path) == closed:
            raise PermissionError(errno.EACCES, "Permission denied", closed)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", look)
    ((decision, _, detail),) = merge(there, here)
    assert decision is Decision.UNREADABLE
    assert closed in detail
    assert not Record.for_cell(CELL, here).path.exists()


def _merge_slowly(there, here):
    """Merge slowly, so that the parent can kill the process while it replaces files one by one."""
    replace = Path.replace

    def slowly(self, target):
        (here / "step").open("a").close()
        multiprocessing.Event().wait(0.2)
        return replace(self, target)

    Path.replace = slowly
    list(merge(there, here))


def test_copies_of_killed_merges_are_removed(there, here):
    """Temporary copies of killed merges are removed, and those of running merges are kept."""
    record = partial(there, 2)
    killed = here / ".merge-killed"
    (killed / "records").mkdir(parents=True)
    with merging._copy_aside(record.read(), Record.for_cell(CELL, here)) as running:
        assert decisions(there, here) == [Decision.BROUGHT]
        assert not killed.exists()
        assert (running / "checkpoint.pt").exists()
    assert [folder.name for folder in here.iterdir()] == ["live"]


def test_undeletable_copy_of_other_user_stops_no_merge(there, here, monkeypatch):
    """A temporary copy that cannot be deleted does not stop a merge."""
    partial(there, 2)
    (here / ".merge-theirs").mkdir(parents=True)

    def rmtree(folder):
        raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    with monkeypatch.context() as patch:
        patch.setattr(merging.shutil, "rmtree", rmtree)
        list(merge(here.with_name("nothing"), here))
    assert decisions(there, here) == [Decision.BROUGHT]


def test_temporary_files_of_runs_are_git_ignored():
    """Git ignores locks, live records and temporary files below the records."""
    there_for_a_while = [f"live/cell/{name}" for name in (*locks.FILES, "config.json", "result.json", "checkpoint.pt")]
    there_for_a_while += ["live/.volumes/record.lock", "small/training-digits-revnet18-petra.jsonl.1.tmp"]
    for name in (*there_for_a_while, ".merge-x/records/cell/result.json"):
        asked = subprocess.run(["git", "check-ignore", "-q", f"reports/records/{name}"], cwd=ROOT, check=False)
        assert asked.returncode == 0, name


@pytest.mark.slow
def test_killed_replacement_is_valid_and_can_be_repeated(there, here):
    """After a kill during a replacement the record is valid, and the same merge completes it."""
    partial(there, 3)
    partial(here, 1, b"old")
    process = FORKED.Process(target=_merge_slowly, args=(there, here))
    process.start()
    while not (here / "step").exists():
        assert process.is_alive()
    process.join(0.3)
    process.kill()
    process.join()
    (here / "step").unlink()
    record = Record.for_cell(CELL, here)
    state = record.state()
    assert state.status is Status.PARTIAL
    assert not record.checkpoint.exists(), "the old checkpoint must not meet the new metrics"
    assert not scan(here).problems
    assert decisions(there, here) == [Decision.REPLACED]
    assert snapshot(here) == snapshot(there), "nothing is left of the copy"


def call(*arguments):
    return CliRunner().invoke(main, ["records", *map(str, arguments)])


def test_merge_command_reports_decisions_and_exits_1_on_conflict(there, here, tmp_path):
    """`records merge` prints the decisions, and exits with 1 on a conflict."""
    other, third = (dataclasses.replace(CELL, seed=seed) for seed in (5, 6))
    elsewhere = tmp_path / "elsewhere"
    train(CELL, there, 95.0)
    train(other, there, 95.0)
    train(third, elsewhere, 95.0)
    train(CELL, tmp_path / "fourth", 50.0)
    planned = call("merge", there, elsewhere, there, tmp_path / "fourth", "--records", here, "--dry-run")
    assert planned.exit_code == 1
    assert [line.split(":")[0] for line in planned.stdout.splitlines() if not line.startswith("BROUGHT")] == [
        "3 would be brought",
        "2 already present",
        "1 in conflict with another result of the same name; both were kept",
    ]
    assert not here.exists()
    result = call("merge", there, elsewhere, "--records", here)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "3 brought")
    assert call("merge", there, elsewhere, "--records", here).output == "3 already present\n"

    volumes.remove(other, here)
    train(other, here, 50.0)
    result = call("merge", there, "--records", here)
    assert result.exit_code == 1
    assert f"CONFLICT {volumes.path_of(other, there)}: {other.name}: done, and " in result.stderr
    assert result.stdout.splitlines() == [
        "1 already present",
        "1 in conflict with another result of the same name; both were kept",
    ]


def test_benchmarks_are_merged_without_overwriting(there, here):
    """Benchmark records are merged, and a different record of the same name is a conflict."""
    train(CELL, there, 95.0)
    for name in ("race", "walk", "damaged"):
        benchmarks.write(benchmark(name=name), there)
    (there / "benchmarks" / "damaged.json").write_text("{}")
    benchmarks.write(benchmark(name="walk", patch="another"), here)
    before = snapshot(there), snapshot(here)
    wanted = [Decision.BROUGHT, Decision.UNREADABLE, Decision.BROUGHT, Decision.CONFLICT]
    assert decisions(there, here, dry_run={}) == wanted
    assert (snapshot(there), snapshot(here)) == before
    assert decisions(there, here) == wanted
    assert decisions(there, here) == [Decision.SAME, Decision.UNREADABLE, Decision.SAME, Decision.CONFLICT]
    assert benchmarks.read(here / "benchmarks" / "race.json") == benchmark()
    assert benchmarks.read(here / "benchmarks" / "walk.json").patch == "another"


def test_archive_is_merged_like_its_folder(there, here, tmp_path):
    """An archive is merged like the folder that it contains, and a damaged one is refused."""
    train(CELL, there, 95.0)
    for name, content in (("day", "records"), ("other", "elsewhere")):
        with tarfile.open(tmp_path / f"{name}.tar.gz", "w:gz") as archive:
            archive.add(there, content)
    result = call("merge", tmp_path / "day.tar.gz", "--records", here)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "1 brought")
    assert snapshot(here) == snapshot(there)
    assert (
        "this archive contains no folder `records`"
        in call("merge", tmp_path / "other.tar.gz", "--records", here).output
    )
    torn = tmp_path / "torn.tar.gz"
    whole = (tmp_path / "day.tar.gz").read_bytes()
    wrong = bytes(byte ^ 1 for byte in whole[-8:-4])  # the checksum
    for data in (whole[:50], whole[: len(whole) // 2], whole[:-5], whole[:-8] + wrong + whole[-4:]):
        torn.write_bytes(data)
        assert f"{torn} cannot be unpacked: " in call("merge", torn, "--records", here).output


def test_full_disk_is_not_blamed_on_the_archive(there, here, tmp_path, monkeypatch):
    """A full disk during unpacking is reported as such and not as a damaged archive."""
    train(CELL, there, 95.0)
    with tarfile.open(tmp_path / "day.tar.gz", "w:gz") as archive:
        archive.add(there, "records")

    def extractall(self, *arguments, **options):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(tarfile.TarFile, "extractall", extractall)
    output = call("merge", tmp_path / "day.tar.gz", "--records", here).output
    assert "no room to unpack" in output
    assert "TMPDIR" in output
    assert "copy is whole" not in output


@pytest.mark.parametrize("archived", [False, True])
def test_finished_folders_are_merged_into_volumes(there, here, tmp_path, archived):
    """Finished records in folders, also in an archive, are merged into volumes."""
    record = train(CELL, tmp_path / "elsewhere", 95.0, code=DIRTY, patch=PATCH)
    unpack(record.read(), there / "smoke" / CELL.name)
    source = there
    if archived:
        source = tmp_path / "day.tar.gz"
        with tarfile.open(source, "w:gz") as archive:
            archive.add(there, "records")
    result = call("merge", source, "--records", here)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "1 brought")
    assert snapshot(here) == snapshot(tmp_path / "elsewhere")
    assert call("merge", source, "--records", here).output == "1 already present\n"


def test_merge_publishes_finished_folders_of_destination(there, here):
    """A merge moves finished records in folders of the destination to their volumes."""
    train(dataclasses.replace(CELL, seed=5), there, 95.0)
    record = in_folder(train(CELL, here, 90.0))
    list(merge(there, here))
    assert not record.path.exists()
    assert len(scan(here).records) == 2


def test_merge_without_source_moves_folders_to_volumes(here, tmp_path):
    """`records merge` without a source moves finished folders to volumes, and `list` mentions them."""
    record = train(CELL, tmp_path / "elsewhere", 95.0)
    folder = here / "smoke" / CELL.name
    unpack(record.read(), folder)
    assert "in a folder: `records merge` moves it to its volume" in call("list", "--records", here).output
    before = snapshot(here)
    assert "1 would be moved from a folder here to a volume" in call("merge", "--dry-run", "--records", here).output
    assert snapshot(here) == before
    result = call("merge", "--records", here)
    assert result.output == f"PUBLISHED {folder}: done\n1 moved from a folder here to a volume\n"
    assert result.exit_code == 0
    assert not folder.exists()
    assert snapshot(here) == snapshot(tmp_path / "elsewhere")
    assert "in a folder" not in call("list", "--records", here).output
    assert call("merge", "--records", here).output == f"{here} has no finished record in a folder\n"


def test_merge_refuses_invalid_sources_and_unwritable_folders(here, tmp_path):
    """Invalid sources and folders that cannot be written exit with 2 and an explanation."""
    here.mkdir()
    assert "name the sources" in call("merge", here, "--records", here).output
    result = call("merge", tmp_path / "missing", "--records", here)
    assert result.exit_code == 2
    assert "there is no folder" in result.output
    assert "no records in" in call("merge", tmp_path, "--records", here).output
    train(CELL, here, 95.0)
    file = tmp_path / "file"
    file.write_text("")
    for arguments in (
        ["records", "merge", here, "--records", file / "records"],
        ["report", "--records", here, "--output", file / "page.html"],
        ["run", "smoke", "--exhibits", "table1", "--records", file / "records"],
        ["train", "--output", file / "run"],
        ["train", "--output", tmp_path / "run", "--trace", file / "trace.json"],
    ):
        result = CliRunner().invoke(main, list(map(str, arguments)))
        assert result.exit_code == 2, arguments
        assert f"cannot write to {file}" in result.stderr


def test_records_list_and_check(here):
    """`records list` prints states and locks, and `records check` counts states and reports damage."""
    train(CELL, here, 95.0)
    damaged = partial(here, 2, cell=dataclasses.replace(CELL, seed=5))
    assert call("check", "--records", here).output == "smoke: done: 1\nsmoke: partial: 1\n"
    assert f"smoke/{damaged.path.name}: 2 of 4 epochs" in call("list", "--records", here).output
    with damaged.lock():
        assert ": 2 of 4 epochs, locked by process" in call("list", "--records", here).output
    assert "no records found" in call("check", "--records", here / "smoke").output
    (damaged.path / "config.json").write_text("{")
    result = call("check", "--records", here)
    assert result.exit_code == 1
    assert "config.json: is damaged" in result.stderr
