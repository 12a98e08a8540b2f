"""Test merging: no finished record is lost, no valid record is overwritten, and a kill is harmless."""

import dataclasses
import functools
import json
import re
import tarfile
from pathlib import Path
from unittest import mock

import pytest

from petra_core import methods
from reproduce.grids import recipes
from reproduce.measures.complexity import measure_complexity
from reproduce.records import benchmarks, locks, results, volumes
from reproduce.records.merging import Decision, merge
from reproduce.records.record import Record, Status, scan
from reproduce.records.storage import StorageFullError
from tests import processes
from tests.fake_records import DIRTY, PATCH, begin, benchmark, complexity_cell, in_folder, snapshot, train, unpack
from tests.faults import no_room
from tests.messages import OUTPUTS, compare
from tests.processes import ROOT

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


def failed(root, reason, epochs=1):
    record = train(CELL, root, 95.0, epochs=epochs)
    record.fail(reason, "words")
    return record


def decisions(there, here, **options):
    return [decision for decision, *_ in merge(there, here, **options)]


def done(root, accuracy=95.0):
    train(CELL, root, accuracy)


def slower(root):
    folder = in_folder(train(CELL, root, 95.0)).path
    for file in (folder / "result.json", folder / "metrics.jsonl"):
        file.write_text(file.read_text().replace("900.0", "123.4").replace(": 1.5,", ": 9.5,"))


def measured(root, flops):
    cell = complexity_cell(methods.PETRA)
    begin(cell, root).finish(measure_complexity(cell) | {"stage_flops": flops})


def locked_once(root):
    with Record.for_cell(CELL, root).lock():
        pass


@pytest.mark.parametrize(
    ("theirs", "ours", "decision"),
    [
        (done, lambda _: None, Decision.BROUGHT),
        (done, locked_once, Decision.BROUGHT),
        (lambda root: failed(root, "diverged"), lambda _: None, Decision.BROUGHT),
        (done, lambda root: partial(root, 3), Decision.REPLACED),
        (done, lambda root: failed(root, "out of memory"), Decision.REPLACED),
        (lambda root: failed(root, "diverged"), lambda root: partial(root, 3), Decision.REPLACED),
        (lambda root: failed(root, "diverged", 0), lambda root: partial(root, 1), Decision.REPLACED),  # no metrics left
        (lambda root: partial(root, 2), lambda _: None, Decision.UNFINISHED),
        (lambda root: failed(root, "out of memory"), lambda root: partial(root, 1), Decision.UNFINISHED),
        (lambda root: partial(root, 3), done, Decision.UNFINISHED),
        (done, done, Decision.SAME),
        (slower, done, Decision.SAME),
        (done, lambda root: done(root, 96.0), Decision.CONFLICT),
        (done, lambda root: failed(root, "diverged"), Decision.CONFLICT),
        (lambda root: measured(root, 1), lambda root: measured(root, 2), Decision.CONFLICT),
    ],
)
def test_only_finished_records_are_merged(there, here, theirs, ours, decision):
    """A finished record is brought and replaces an unfinished one; an unfinished one is skipped."""
    theirs(there)
    ours(here)
    before = snapshot(there), snapshot(here)
    assert decisions(there, here, dry_run={}) == [decision]
    assert (snapshot(there), snapshot(here)) == before
    assert decisions(there, here) == [decision]
    copied = decision in (Decision.BROUGHT, Decision.REPLACED)
    assert (snapshot(there), snapshot(here)) == (before[0], before[0] if copied else before[1])
    assert decisions(there, here)[0] not in (Decision.BROUGHT, Decision.REPLACED), "once is enough"


@pytest.mark.parametrize("make", [lambda root: train(CELL, root, 96.0), lambda root: failed(root, "diverged")])
def test_replace_exchanges_different_results_and_keeps_the_old_one(there, here, make):
    """With `replace` the other result is used, and the old one moves to a folder of records that counts nowhere."""
    train(CELL, there, 95.0)
    make(here)
    before = snapshot(here)
    planned = {}  # over two sources with the same record
    assert decisions(there, here, replace=True, dry_run=planned) == [Decision.EXCHANGED]
    assert decisions(there, here, replace=True, dry_run=planned) == [Decision.SAME]
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
    details = {decision: f"{path}: {detail}" for decision, path, detail in merge(there, here)}
    assert set(details) == {Decision.UNREADABLE, Decision.BROUGHT}
    assert details[Decision.UNREADABLE].count(str(file)) == 1
    assert snapshot(here).items() >= before.items()
    assert Record.for_cell(other, here).state().status is Status.DONE


def test_record_in_use_is_skipped(there, here):
    """A record is skipped while a process here works on it."""
    done(there)
    partial(here, 1)
    before = snapshot(here)
    with Record.for_cell(CELL, here).lock():
        for dry_run in ({}, None):
            assert decisions(there, here, dry_run=dry_run) == [Decision.IN_USE]
    assert snapshot(here) == before


def test_result_appearing_before_append_is_a_conflict(there, here, monkeypatch):
    """A different result that appears before the append is a conflict."""
    train(CELL, there, 95.0)
    third = train(CELL, there.with_name("third"), 96.0).read()
    publish = volumes.publish

    def meanwhile(theirs, *rest):
        publish(third, here)
        return publish(theirs, *rest)

    monkeypatch.setattr(volumes, "publish", meanwhile)
    assert decisions(there, here) == [Decision.CONFLICT]
    assert [run.result["test_accuracy"] for run in scan(here).records] == [96.0]


def test_temporary_files_of_runs_are_git_ignored():
    """Git ignores locks, live records and temporary files below the records."""
    there_for_a_while = [f"live/cell/{name}" for name in (*locks.FILES, "config.json", "result.json", "checkpoint.pt")]
    there_for_a_while += ["live/.volumes/record.lock", "small/training-digits-revnet18-petra.jsonl.1.tmp"]
    folder = ROOT / "reports" / "records"
    assert processes.git(folder, "check-ignore", *there_for_a_while).split() == there_for_a_while


call = functools.partial(processes.call, "records")


def test_merge_command_reports_decisions_and_exits_1_on_conflict(there, here, tmp_path):
    """`records merge` prints the decisions of a dry run, of a merge, of its repetition, and of a conflict."""
    other, third = (dataclasses.replace(CELL, seed=seed) for seed in (5, 6))
    train(CELL, there, 95.0)
    train(other, there, 95.0)
    train(third, tmp_path / "third", 95.0)
    train(CELL, tmp_path / "fourth", 50.0)
    sources = there, tmp_path / "third"
    results = [call("merge", *sources, there, tmp_path / "fourth", "--records", here, "--dry-run")]
    assert not here.exists()
    results += [call("merge", *sources, "--records", here) for _ in range(2)]
    volumes.remove(other, here)
    train(other, here, 50.0)
    results.append(call("merge", there, "--records", here))
    text = "\n".join(f"exit code {result.exit_code}\n{result.output}" for result in results)
    compare(OUTPUTS, "records merge", text.replace(f"{tmp_path}/", ""))


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


def pack(folder, archive, content="records"):
    with tarfile.open(archive, "w:gz") as file:
        file.add(folder, content)
    return archive


def test_damaged_archive_is_refused(there, here, tmp_path):
    """An archive without the folder of records, a truncated one and one with a wrong checksum are refused."""
    train(CELL, there, 95.0)
    other = pack(there, tmp_path / "other.tar.gz", "elsewhere")
    assert "this archive contains no folder `records`" in call("merge", other, "--records", here).output
    archive = pack(there, tmp_path / "day.tar.gz")
    whole = archive.read_bytes()
    wrong = bytes(byte ^ 1 for byte in whole[-8:-4])  # the checksum
    for data in (whole[:50], whole[: len(whole) // 2], whole[:-5], whole[:-8] + wrong + whole[-4:]):
        archive.write_bytes(data)
        assert f"{archive} cannot be unpacked: " in call("merge", archive, "--records", here).output


def test_full_disk_is_not_blamed_on_the_archive(there, here, tmp_path, monkeypatch):
    """A full disk during unpacking is reported as such and not as a damaged archive."""
    done(there)
    archive = pack(there, tmp_path / "day.tar.gz")
    monkeypatch.setattr(tarfile.TarFile, "extractall", no_room)
    result = call("merge", archive, "--records", here)
    output = f"{result.output} {result.exception}"
    assert re.search("no room to unpack .*TMPDIR", output)
    assert "copy is" not in output


def test_full_disk_that_has_no_room_for_a_folder_ends_the_merge(there, here, monkeypatch):
    """No other record would fit either, so the records are not reported as unreadable one by one."""
    done(there)
    monkeypatch.setattr(Path, "mkdir", no_room)
    with pytest.raises(StorageFullError, match=f"no room to lock .*{CELL.name} .*Free some space"):
        list(merge(there, here))


def test_finished_folder_in_archive_is_merged_into_volume(there, here, tmp_path):
    """A finished record that a kill left in a folder of an archive is merged into its volume."""
    record = train(CELL, tmp_path / "elsewhere", 95.0, code=DIRTY, patch=PATCH)
    unpack(record.read(), Record.for_cell(CELL, there).path)
    source = pack(there, tmp_path / "day.tar.gz")
    result = call("merge", source, "--records", here)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "1 brought")
    assert snapshot(here) == snapshot(tmp_path / "elsewhere")
    assert call("merge", source, "--records", here).output == "1 already present\n"


def test_list_mentions_finished_folder(here):
    in_folder(train(CELL, here, 90.0))
    assert "in a folder: the next `run` of the cell moves it to its volume" in call("list", "--records", here).output


def test_records_list_and_check(here):
    """`records list` prints states and locks, and `records check` counts states and reports damage."""
    train(CELL, here, 95.0)
    damaged = partial(here, 2, cell=dataclasses.replace(CELL, seed=5))
    assert call("check", "--records", here).output == "smoke: done: 1\nsmoke: partial: 1\n"
    assert f"smoke/{damaged.path.name}: 2 of 4 epochs" in call("list", "--records", here).output
    with damaged.lock():
        assert ": 2 of 4 epochs, locked by process" in call("list", "--records", here).output
        with mock.patch(
            "reproduce.commands.records.holder", lambda place: dataclasses.replace(locks.holder(place), gone=True)
        ):
            assert ": 2 of 4 epochs, stale lock of process" in call("list", "--records", here).output
    assert "no records in" in call("merge", here / "smoke", "--records", here).output
    assert "no records found" in call("check", "--records", here / "smoke").output
    (damaged.path / "config.json").write_text("{")
    result = call("check", "--records", here)
    assert result.exit_code == 1
    assert "config.json: is damaged" in result.stderr
