"""Test volumes: they contain every finished record once, after any kill, partial write, repetition, edit or merge."""

import dataclasses
import errno
import json
import os
import re
import shutil
import stat
import threading

import pandas
import pytest

from petra_core import methods
from reproduce.grids import recipes
from reproduce.records import locks, results, volumes
from reproduce.records.locks import LockedError, LockLostError
from reproduce.records.merging import Decision, merge
from reproduce.records.record import Record, RecordError, Status, scan
from reproduce.records.storage import StorageError
from tests import fake_records, faults
from tests.conftest import ROOT
from tests.fake_records import CLEAN, DIRTY, ENVIRONMENT, PATCH, complexity_cell, finish, in_folder, snapshot, train
from tests.processes import FORKED, git

CELL = recipes.cell("smoke")
OTHER, THIRD = (dataclasses.replace(CELL, seed=seed) for seed in (5, 6))
VOLUME = "smoke/training-digits-revnet18-petra.jsonl"


def accuracies(root):
    """Return the test accuracy of every finished record, after checking that nothing is damaged."""
    scanned = scan(root)
    assert scanned.problems == ()
    return [run.result["test_accuracy"] for run in scanned.records if run.done]


# --- what a volume contains


@pytest.mark.parametrize("kind", ["clean", "patch", "bytes", "several", "diverged", "complexity"])
def test_published_and_unpacked_folder_has_same_bytes(tmp_path, kind):
    """A record that is published to a volume and unpacked has the same bytes."""
    if kind == "complexity":
        record = fake_records.begin(complexity_cell(methods.PETRA), tmp_path)
        fields = {"rows": [{"stage": 0, "bytes": 0.1 + 0.2}], "memory": [], "note": "ä"}
    else:
        code, patch = (CLEAN, "") if kind == "clean" else (DIRTY, PATCH)
        if kind == "bytes":  # not text
            patch = b"-a\r\n+\xe4\xf6\x00\x1b[2J\r\n".decode(errors="surrogateescape")
        record = train(CELL, tmp_path, 95.0, epochs=4, code=code, patch=patch)
    if kind == "several":  # of three versions, two have the same patch
        record.begin(ENVIRONMENT | {"threads": 7}, dict(CLEAN))
        record.begin(ENVIRONMENT, {**DIRTY, "version": "1"}, PATCH.encode())
        record.begin(ENVIRONMENT, {**DIRTY, "version": "2"}, "diff\r\n+ä\n".encode())
    record.root = None  # the record stays in its folder
    if kind == "complexity":
        record.finish(fields)
    elif kind == "diverged":
        record.fail("diverged", "nan", {"micro_batch": 3, "stage": None})
    else:
        finish(record, 95.0)
    before, run = snapshot(record.path), record.read()
    assert volumes.publish(run, tmp_path) is None
    shutil.rmtree(record.path)
    fake_records.unpack(Record.for_cell(record.cell, tmp_path).read(), record.path)
    assert snapshot(record.path) == before
    assert dataclasses.replace(Record.for_cell(record.cell, tmp_path).read(), place=run.place) == run


def test_finished_record_is_in_its_volume_only(tmp_path):
    """A finished record exists only in its volume, and equal provenance is stored once."""
    for cell in (CELL, OTHER, THIRD):
        train(cell, tmp_path, 95.0, code=DIRTY, patch=PATCH)
    assert sorted(snapshot(tmp_path)) == ["smoke/provenance.jsonl", VOLUME]
    assert [folder.name for folder in (tmp_path / "live").iterdir()] == [".volumes"]
    assert [*map(len, map(json.loads, (tmp_path / "smoke/provenance.jsonl").read_text().splitlines()))] == [2, 3]
    lines = [json.loads(line) for line in (tmp_path / VOLUME).read_text().splitlines()]
    assert [line["t"] for line in lines] == ["cell", *["epoch"] * 4, "result"] * 3
    assert {line["id"] for line in lines} == {cell.identity for cell in (CELL, OTHER, THIRD)}
    assert accuracies(tmp_path) == [95.0] * 3


def test_pandas_reads_identities_of_every_volume_as_text():
    """An identity of digits only would become a number. docs/reproducibility.md reads results and epochs."""
    for file in (ROOT / "reports" / "records").glob("*/*.jsonl"):
        frame = pandas.read_json(file, lines=True)
        assert len(frame) == len(file.read_text().splitlines())
        assert all(isinstance(identity, str) for identity in frame["id"])
        assert all(isinstance(run, str) for run in frame.get("run", ()))


def test_diverged_record_is_published_and_can_be_retried(tmp_path):
    """A diverged record is published, keeps its checkpoint and leaves the volume on a retry."""
    train(OTHER, tmp_path, 90.0)
    record = train(CELL, tmp_path, 95.0, epochs=2)
    record.checkpoint.write_bytes(b"x")
    record.fail("diverged", "nan")
    assert CELL.identity in (tmp_path / VOLUME).read_text()
    assert str(record.state()) == "diverged (epoch 3 of 4)"
    assert len(scan(tmp_path).records) == 2
    record.retry()
    assert str(record.state()) == "2 of 4 epochs"
    with pytest.raises(ValueError, match="not a failed cell"):
        record.retry()
    assert record.checkpoint.exists()
    assert CELL.identity not in (tmp_path / VOLUME).read_text()
    assert accuracies(tmp_path) == [90.0]


def test_out_of_memory_record_stays_in_its_folder(tmp_path):
    """An out-of-memory record stays in its folder until a result exists."""
    record = train(CELL, tmp_path, 95.0, epochs=2)
    record.fail("out of memory", "no")
    assert record.state().status is Status.FAILED
    assert not (tmp_path / VOLUME).exists()
    elsewhere = tmp_path / "elsewhere"
    train(CELL, elsewhere, 95.0)
    shutil.copytree(elsewhere / "smoke", tmp_path / "smoke", dirs_exist_ok=True)  # as git checks it out
    assert record.state().status is Status.DONE
    assert accuracies(tmp_path) == [95.0]
    with record.lock():
        record.publish()
    assert not record.path.exists(), "the next run removes the folder"


def test_record_is_published_if_folders_cannot_be_flushed(tmp_path, monkeypatch):
    """Some file systems refuse `fsync` of a folder."""

    def flush(file):
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", flush)
    train(CELL, tmp_path, 95.0)
    assert accuracies(tmp_path) == [95.0]


# --- damage and conflicts


def test_repeated_and_reordered_lines_have_no_effect(tmp_path):
    for cell, accuracy in ((CELL, 95.0), (OTHER, 90.0)):
        train(cell, tmp_path, accuracy)
    expected = [dataclasses.astuple(run) for run in scan(tmp_path).records]
    file = tmp_path / VOLUME
    lines = file.read_text().splitlines(keepends=True)
    for changed in (
        lines[6:] + lines[:6],
        lines + lines[:6],
        [line for line in lines for _ in range(2)],
        lines[:3] + lines,
    ):
        file.write_text("".join(changed))
        assert [dataclasses.astuple(run) for run in scan(tmp_path).records] == expected
        assert scan(tmp_path).problems == ()


@pytest.mark.parametrize("line", range(6))
@pytest.mark.parametrize("harm", ["edited", "removed"])
def test_edited_or_removed_line_affects_only_its_record(tmp_path, line, harm):
    """An edited or removed line makes only its record a problem, and the volume does not change."""
    for cell, accuracy in ((CELL, 95.0), (OTHER, 90.0)):
        train(cell, tmp_path, accuracy)
    file = tmp_path / VOLUME
    lines = file.read_text().splitlines(keepends=True)
    lines[line] = (lines[line][:-2] + " }\n") * (harm == "edited")
    file.write_text("".join(lines))
    scanned = scan(tmp_path)
    assert [run.cell for run in scanned.records] == [OTHER]
    (problem,) = scanned.problems
    assert "were edited or are incomplete. It was not changed; delete its lines and the cell" in str(problem)
    assert line == 0 or problem.name == CELL.name
    before = file.read_bytes()
    with pytest.raises(RecordError, match="were edited or are incomplete"):
        Record.for_cell(CELL, tmp_path).state()
    assert Record.for_cell(CELL, tmp_path).has_result
    assert file.read_bytes() == before


def test_foreign_line_and_missing_environment_are_named(tmp_path):
    """A line that belongs to no record, and a missing environment, are reported as problems."""
    train(CELL, tmp_path, 95.0)
    file = tmp_path / VOLUME
    file.write_text("<<<<<<< HEAD\n" + file.read_text())
    (problem,) = scan(tmp_path).problems
    assert f"{VOLUME}: line 1 is damaged: it is not a line of a record" in str(problem)
    assert len(scan(tmp_path).records) == 1
    provenance = tmp_path / "smoke" / "provenance.jsonl"
    provenance.write_text(provenance.read_text().replace('"cores":2', '"cores":3'))
    volumes._READ.clear()
    assert scan(tmp_path).records == ()
    assert "which is missing in provenance.jsonl or damaged there. Copy that file" in str(scan(tmp_path).problems[-1])


def test_wrong_format_or_volume_is_named(tmp_path, monkeypatch):
    """A record of another format, or in the wrong volume, is reported as a problem."""
    train(CELL, tmp_path, 95.0)
    file = tmp_path / VOLUME
    file.rename(file.with_name("training-digits-revnet18-dsp.jsonl"))
    (problem,) = scan(tmp_path).problems
    assert f"{CELL.name} belongs in {file}, not here. Rename the file" in str(problem)
    file.with_name("training-digits-revnet18-dsp.jsonl").rename(file)
    monkeypatch.setattr("reproduce.records.run.SCHEMA", 0)
    (problem,) = scan(tmp_path).problems
    assert f"{CELL.name} has format 1, but this version reads format 0. It was not changed; update this" in str(problem)


def test_different_results_conflict_and_both_are_kept(tmp_path):
    """Two different results, in folder or volume, are a conflict; neither counts and both are kept."""
    elsewhere = tmp_path / "elsewhere"
    train(CELL, tmp_path, 95.0)
    other = in_folder(train(CELL, elsewhere, 90.0))
    record = Record.for_cell(CELL, tmp_path)
    shutil.copytree(other.path, record.path, dirs_exist_ok=True)
    before = snapshot(tmp_path)
    for act in (record.state, lambda: record.read()):
        with pytest.raises(RecordError, match=r"has two different results: 95.00 % and 90.00 %"):
            act()
    with record.lock():
        record.publish()
    assert snapshot(tmp_path) == before
    assert accuracies_and_problems(tmp_path) == ([], 1)
    assert results.read(tmp_path, [CELL]).runs == (), "and it is not listed as not run"
    shutil.rmtree(record.path)
    volumes.publish(other.read(), elsewhere)
    with (tmp_path / VOLUME).open("a") as ours:  # as git merges it
        ours.write((elsewhere / VOLUME).read_text())
    assert accuracies_and_problems(tmp_path) == ([], 1)
    with pytest.raises(RecordError, match="Neither is counted; remove one of them"):
        record.state()


def accuracies_and_problems(root):
    scanned = scan(root)
    return [run.result["test_accuracy"] for run in scanned.records], len(scanned.problems)


def test_equal_results_with_other_times_count_once(tmp_path):
    """Two results that differ only in their times count once."""
    record = in_folder(train(CELL, tmp_path, 95.0))
    slower = tmp_path / "elsewhere"
    finish(train(CELL, slower, 95.0, epochs=4), 95.0, train_seconds=9.0, data=record.read().result["data"])
    (tmp_path / "smoke").rename(tmp_path / "before")
    shutil.copytree(slower / "smoke", tmp_path / "smoke")
    assert accuracies(tmp_path) == [95.0]
    with record.lock():
        record.publish()
    assert not record.path.exists()
    assert (tmp_path / VOLUME).read_bytes() == (slower / VOLUME).read_bytes()


# --- kills and full disks


def let_time_pass(root):
    """Make empty leases old. A kill right after the creation of a lease leaves one; age proves its holder dead."""
    for lease in root.rglob("record.lease"):
        if not lease.read_bytes():
            os.utime(lease, (0, 0))


def begun(root, epochs=4, checkpoint=b"x"):
    record = train(CELL, root, 95.0, epochs=epochs)
    record.checkpoint.write_bytes(checkpoint)
    return record


def finish_it(root):
    """Complete a run, or after a fault the next run."""
    record = Record.for_cell(CELL, root)
    with record.lock():
        if record.state().final:
            record.publish()
        else:
            finish(record, 95.0)


def retry_it(root):
    record = Record.for_cell(CELL, root)
    with record.lock():
        if record.state().final:
            record.retry()


def merge_it(root):
    list(merge(root / "there", root, replace=True))


def done(root, accuracy=95.0):
    train(CELL, root, accuracy)


def second(make):
    """Return a function that makes a record after another one of its volume."""
    return lambda root: (train(OTHER, root, 90.0), make(root))


def over_old(make):
    """Return a function that makes a record in the source of a merge, and ours with one epoch and a checkpoint."""
    return second(lambda root: (make(root / "there"), begun(root, 1, b"old")))


def kept(root):
    """Return the files of records below a root, and its replaced results, which may be written twice."""
    files = {name: data for name, data in snapshot(root).items() if not name.endswith(".tmp")}
    replaced = [run.content for run in scan(root / volumes.REPLACED).records]
    return {name: data for name, data in files.items() if not name.startswith(volumes.REPLACED)}, replaced


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "full disk"])
@pytest.mark.parametrize(
    ("prepare", "act", "states"),
    [
        (begun, finish_it, {"95.00 %", "4 of 4 epochs"}),
        (second(begun), finish_it, {"95.00 %", "4 of 4 epochs"}),
        (
            second(lambda root: begun(root, 3).fail("diverged", "nan")),
            retry_it,
            {"diverged (epoch 4 of 4)", "3 of 4 epochs"},
        ),
        (over_old(done), merge_it, {"95.00 %", "1 of 4 epochs"}),
        (lambda root: (done(root / "there"), done(root, 96.0)), merge_it, {"95.00 %", "96.00 %"}),
    ],
    ids=["finish the first", "finish", "retry", "merge", "exchange"],
)
def test_fault_at_any_operation_loses_and_duplicates_nothing(tmp_path, prepare, act, states, fault):
    """After a kill or a full disk at any file operation, all records are valid, and repeating completes the work."""
    prepared, undisturbed = tmp_path / "prepared", tmp_path / "undisturbed"
    prepare(prepared)
    shutil.copytree(prepared, undisturbed)
    act(undisturbed)
    expected = kept(undisturbed)
    other = Record.for_cell(OTHER, prepared).read().content
    roots = faults.states(fault, prepared, act, tmp_path / "faults")
    assert len(roots) > 5, "the work has many operations"
    for root in roots:
        let_time_pass(root)
        assert scan(root).problems == ()
        record = Record.for_cell(CELL, root)
        assert (reached := record.state().reached) in states
        old = record.checkpoint.exists() and record.checkpoint.read_bytes() == b"old"
        assert not old or reached in ("1 of 4 epochs", "95.00 %"), "an old checkpoint must not meet new metrics"
        assert Record.for_cell(OTHER, root).read().content == other
        act(root)
        assert kept(root) == expected


def torn_appends(root, before):
    """Yield after each kill within the append that has led from the files `before` to those of `root`."""
    whole = snapshot(root)
    for name, later in (("smoke/provenance.jsonl", {VOLUME: before.get(VOLUME, b"")}), (VOLUME, {})):
        for length in [*range(len(before.get(name, b"")), len(whole[name]), 29), len(whole[name]) - 1]:
            for file, data in {**whole, name: whole[name][:length], **later}.items():
                (root / file).write_bytes(data)
            volumes._READ.clear()
            yield


def test_append_torn_at_any_byte_is_completed_by_repeating(tmp_path):
    """The record is still in its folder."""
    train(OTHER, tmp_path, 90.0)
    before = snapshot(tmp_path)
    run = in_folder(train(CELL, tmp_path, 95.0, code=DIRTY, patch=PATCH)).read()
    assert volumes.publish(run, tmp_path) is None
    for _ in torn_appends(tmp_path, before):
        assert accuracies(tmp_path) == [95.0, 90.0]
        assert volumes.publish(run, tmp_path) is None
        found = Record.for_cell(CELL, tmp_path).read()
        assert (found.place, found.content) == (tmp_path / VOLUME, run.content)


def test_merge_stopped_within_append_is_completed_by_repeating(tmp_path):
    """The source has the only other copy of the record, and its folder may be a volume too."""
    there, here = tmp_path / "there", tmp_path / "here"
    train(CELL, there, 95.0, code=DIRTY, patch=PATCH)
    assert [decision for decision, _, _ in merge(there, here)] == [Decision.BROUGHT]
    for _ in torn_appends(here, {}):
        found = accuracies_and_problems(here)[0]
        assert found in ([], [95.0]), "a record whose line lacks only its end is whole"
        expected = Decision.SAME if found else Decision.BROUGHT
        for dry_run in ({}, None):
            assert [decision for decision, _, _ in merge(there, here, dry_run=dry_run)] == [expected]
        assert accuracies(here) == [95.0]


@pytest.mark.parametrize(("missing", "others"), [(1, [91.0]), (40, [])])
def test_replacement_after_torn_last_line_loses_no_other_record(tmp_path, missing, others):
    """A last line without its newline is a line; a part of one is left out. The new lines are not joined to either."""
    here, there = tmp_path / "here", tmp_path / "there"
    train(CELL, here, 90.0), train(OTHER, here, 91.0), train(CELL, there, 95.0)
    volume = here / VOLUME
    volume.write_bytes(volume.read_bytes()[:-missing])
    assert [decision for decision, _, _ in merge(there, here, replace=True)] == [Decision.EXCHANGED]
    assert accuracies_and_problems(here) == ([95.0, *others], 1 - len(others))


def test_volume_of_another_user_is_named(tmp_path, monkeypatch):
    """If the volume cannot be written, the error names it, and the record stays in its folder."""

    def forbidden(*_):
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path))

    record = in_folder(train(CELL, tmp_path, 95.0))
    monkeypatch.setattr(volumes, "append_line", forbidden)
    with pytest.raises(StorageError, match=rf"no permission to write .*{VOLUME}.*; give this user write permission"):
        record.publish()
    assert accuracies(tmp_path) == [95.0]


# --- several processes, machines and branches


def _publish_many(root, number):
    for seed in range(8):
        record = train(dataclasses.replace(CELL, seed=100 + 8 * number + seed), root, 80.0, epochs=4)
        with record.lock():
            finish(record, 80.0)


@pytest.mark.slow
def test_several_processes_append_to_one_volume(tmp_path):
    """Four processes append to one volume without losing a record."""
    processes = [FORKED.Process(target=_publish_many, args=(tmp_path, number)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert accuracies(tmp_path) == [80.0] * 32
    assert len((tmp_path / VOLUME).read_text().splitlines()) == 32 * 6
    assert [folder.name for folder in (tmp_path / "live").iterdir()] == [".volumes"]


def test_held_volumes_are_waited_for_and_lost_lock_stops(tmp_path, monkeypatch, machine):
    """Publishing waits for the holder of the volumes, and stops without changes if its lock is lost."""
    monkeypatch.setattr(volumes, "PATIENCE_SECONDS", 0.5)
    record = in_folder(train(CELL, tmp_path, 95.0))
    _, release = machine(stale=locks.STALE_SECONDS, folder=tmp_path / "live" / ".volumes")
    with pytest.raises(LockedError, match="on beta"):
        record.publish()
    assert accuracies(tmp_path) == [95.0], "it counts from its folder"
    monkeypatch.setattr(volumes, "PATIENCE_SECONDS", 60)
    threading.Timer(0.5, release.set).start()
    record.publish()
    assert not record.path.exists()
    record = in_folder(record)
    before = (tmp_path / VOLUME).read_bytes()

    def lost(self):
        raise LockLostError("gone")

    monkeypatch.setattr(locks.Hold, "check", lost)
    with pytest.raises(LockLostError):
        record.publish()
    assert (tmp_path / VOLUME).read_bytes() == before


@pytest.mark.parametrize("conflict", [False, True], ids=["", "two results"])
def test_git_merges_branches_that_appended_to_one_volume(tmp_path, conflict):
    """Git merges two branches that appended to one volume, and different results are a conflict."""
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / ".gitignore").write_text("live/\n")
    shutil.copy(ROOT / "reports" / "records" / ".gitattributes", tmp_path)
    train(OTHER, tmp_path, 90.0)
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "one")
    git(tmp_path, "branch", "other")
    train(CELL, tmp_path, 95.0)
    train(THIRD, tmp_path, 70.0, code=DIRTY, patch=PATCH)  # on both branches
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "two")
    git(tmp_path, "checkout", "-q", "other")
    train(THIRD, tmp_path, 70.0, code=DIRTY, patch=PATCH)
    fourth = dataclasses.replace(CELL, seed=7) if not conflict else CELL
    train(fourth, tmp_path, 80.0, code={**DIRTY, "version": "2"}, patch=PATCH)
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "three")
    git(tmp_path, "merge", "-q", "--no-edit", "main")
    assert git(tmp_path, "status", "--porcelain") == ""
    found = {run.cell.seed: run.result["test_accuracy"] for run in scan(tmp_path).records}
    problems = [problem.name for problem in scan(tmp_path).problems]
    if conflict:
        assert (found, problems) == ({5: 90.0, 6: 70.0}, [CELL.name])
    else:
        assert (found, problems) == ({0: 95.0, 5: 90.0, 6: 70.0, 7: 80.0}, [])


def test_all_committed_records_are_read_without_problems() -> None:
    """All committed records are read, and none has a problem."""
    scanned = scan(ROOT / "reports" / "records")
    assert scanned.problems == ()
    assert len(scanned.records) >= 1040
    texts = [file.read_text() for file in (ROOT / "reports" / "records").glob("*/*.jsonl")]
    assert {run.cell.name for run in scanned.records} == {*re.findall('"t":"cell",.*?"name":"(.*?)"', "".join(texts))}
