"""Test records: only a valid result counts as done, and an unreadable file is reported and left unchanged."""

import dataclasses
import functools
import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from reproduce.records import provenance
from reproduce.records.lost_commits import LOST
from reproduce.records.record import Record, RecordError, Status, scan
from reproduce.records.storage import StorageError, StorageFullError, write_atomically
from tests import fake_records
from tests.conftest import ROOT
from tests.example_cells import TRAINING
from tests.fake_records import snapshot
from tests.faults import full_disk, no_room
from tests.processes import git

CELL = dataclasses.replace(TRAINING, epochs=3, drops=())
ENVIRONMENT = {"python": "3.11"}
CODE = {"commit": "abc", "clean": True}


@pytest.fixture
def record(tmp_path):
    return Record.for_cell(CELL, tmp_path)


def begun(record, epochs=0):
    record.begin(ENVIRONMENT, CODE)
    for epoch in range(epochs):
        record.append({"epoch": epoch, "test_accuracy": 0.1 + 0.2 * epoch})
    return record


def test_cell_finishing_while_read_is_not_damaged(record, monkeypatch):
    """A cell that finishes while its record is read has the state done."""
    begun(record, epochs=2)
    metrics = record.own_metrics

    def finish_after_the_look():
        seen = metrics()
        monkeypatch.undo()
        record.append({"epoch": 2, "test_accuracy": 0.5})
        record.finish({"test_accuracy": 0.5})
        return seen

    monkeypatch.setattr(record, "own_metrics", finish_after_the_look)
    assert str(record.state()) == "done", "the volume is read after the folder"


def test_environments_and_codes_are_stored_once(record):
    """Equal environments and code versions are stored once, each with its patch, byte by byte."""
    begun(record).begin(ENVIRONMENT, CODE)
    assert record.read().environments == (ENVIRONMENT,)
    assert record.read().codes == (CODE,)
    patch = b"-a\r\n+\xe4\xf6\r\n"  # if it were changed, it would apply without an error and give another file
    changed = {"commit": "abc", "clean": False}
    for _ in range(2):
        record.begin(ENVIRONMENT | {"threads": 2}, changed, patch)
    assert record.read().environments == (ENVIRONMENT, ENVIRONMENT | {"threads": 2})
    assert record.read().codes == (CODE, changed | {"diff": "diff-2.patch"})
    assert (record.path / "diff-2.patch").read_bytes() == patch
    (record.path / "diff-2.patch").unlink()
    with pytest.raises(RecordError, match=r"diff-2.patch: is listed in code.json and is missing"):
        record.begin(ENVIRONMENT, changed, b"--- b\n")


def test_metrics_are_truncated_to_the_checkpoint(record):
    """Metrics are truncated to the checkpoint's epochs, and an incomplete line is not an epoch."""
    begun(record, epochs=1)
    file = record.path / "metrics.jsonl"
    before = file.read_bytes()
    record.append({"epoch": 1, "test_accuracy": 1 / 3})
    with file.open("a") as cut_off:
        cut_off.write('{"epoch": 2, "test_acc')
    assert str(record.state()) == "2 of 3 epochs"
    record.keep_metrics(2)
    record.append({"epoch": 2, "test_accuracy": 0.5})
    assert [line["epoch"] for line in record.read().metrics] == [0, 1, 2]
    record.keep_metrics(1)
    assert file.read_bytes() == before
    with pytest.raises(RecordError, match="has 1 lines, but the checkpoint was saved after 2"):
        record.keep_metrics(2)


def test_result_without_configuration_is_damage(record):
    begun(record, epochs=3).finish({"test_accuracy": 0.5})
    (fake_records.in_folder(record).path / "config.json").unlink()
    with pytest.raises(RecordError, match=r"there is a result here, but no config.json.*move the folder away"):
        record.state()


def test_full_disk_leaves_no_partial_file(tmp_path, record, monkeypatch):
    """A full disk raises StorageFullError, and all files keep their previous content."""
    begun(record, epochs=3).finish({"note": "x" * 200})
    other = begun(Record.for_cell(dataclasses.replace(CELL, seed=9), tmp_path), epochs=1)
    before = snapshot(tmp_path)
    line = {"epoch": 1, "note": "x" * 200}
    with pytest.raises(StorageFullError, match=r"no room to write .*metrics.jsonl .* same command again"), full_disk():
        other.append(line)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", no_room)
        with pytest.raises(StorageFullError, match=r"metrics.jsonl"):
            other.append(line)
    with pytest.raises(StorageFullError, match=r"result.json"), full_disk():
        other.finish(line)
    assert snapshot(tmp_path) == before
    assert record.state().status is Status.DONE
    assert str(other.state()) == "1 of 3 epochs"
    file = tmp_path / "replaced" / "result.json"
    file.parent.mkdir()
    write_atomically(file, b"old")
    with pytest.raises(StorageFullError), full_disk():
        write_atomically(file, b"x" * 200)
    assert snapshot(file.parent) == {"result.json": b"old"}


def test_environment_is_json_without_paths_and_hostnames():
    """The environment is JSON, and contains neither the home folder nor the host name."""
    values = provenance.environment(torch.device("cpu"))
    text = json.dumps(values)
    assert values["packages"].keys() >= {"torch", "numpy", "scikit-learn"}
    assert values["threads"] == torch.get_num_threads()
    assert str(Path.home()) not in text
    assert os.uname().nodename not in text


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Make a small checkout that `provenance` uses as its checkout."""
    (tmp_path / "reproduce").mkdir()
    file = tmp_path / "reproduce" / "provenance.py"
    file.write_text("one\n")
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setattr(provenance, "__file__", str(file))
    provenance.code.cache_clear()
    yield tmp_path
    provenance.code.cache_clear()


@pytest.fixture
def committed(checkout):
    """Make the small checkout with a commit, and a function that runs git in it."""
    here = functools.partial(git, checkout)
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        here(*command)
    return checkout, here


def test_code_is_commit_and_changes_except_records(committed):
    """The code version consists of the commit and a patch of changed code; records and a token do not count."""
    checkout, git = committed
    for name in ("reports/records/benchmarks/race.json", ".env"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("{}")
        git("add", "-A")
        git("commit", "-q", "-m", "second")
        (checkout / name).write_text('{"faster": true}')
    entry, patch = provenance.code()
    assert len(entry["commit"]) == 40
    assert (entry["clean"], patch) == (True, b"")

    provenance.code.cache_clear()
    (checkout / "reproduce" / "provenance.py").write_text("two\n")
    (checkout / "reproduce" / "new.py").write_text("")
    entry, patch = provenance.code()
    assert not entry["clean"]
    assert entry["untracked"] == ["reproduce/new.py"]
    assert b"-one\n+two\n" in patch


#: Settings of git that change a patch, unless options override them.
SETTINGS = ("diff.noprefix=true", "diff.context=0", "diff.external=false", "color.ui=always", "core.abbrev=4")
SETTINGS += ("diff.p.textconv=head -c 3", "diff.algorithm=patience", "diff.renames=copies", "core.quotePath=true")


def test_patch_reproduces_files_under_any_git_settings(committed, tmp_path):
    """The patch reproduces the files that ran, whatever the settings of git."""
    checkout, git = committed
    contents = [b"two\n", b"two\r\nthree\r\n", b"caf\xe9 \xff\n", "\u00fc\n".encode(), b"\0\1\2", b"no newline"]
    folder = checkout / "reproduce"
    for number in range(len(contents)):
        (folder / f"old{number}.py").write_bytes(b"one\n")
    git("add", "-A")
    git("commit", "-q", "-m", "second")
    (checkout / ".git" / "info" / "attributes").write_text("*.py diff=p\n")
    for setting in SETTINGS:
        git("config", *setting.split("=", maxsplit=1))
    for number, content in enumerate(contents):
        for kind in ("old", "new"):
            (folder / f"{kind}{number}.py").write_bytes(content)
    entry, patch = provenance.code()
    assert not entry["clean"]
    (tmp_path / "p.patch").write_bytes(patch)
    copy = tmp_path / "copy"
    git("worktree", "add", "-q", str(copy), "HEAD")
    git("-C", str(copy), "apply", str(tmp_path / "p.patch"))
    for number, content in enumerate(contents):
        for kind in ("old", "new"):
            assert (copy / "reproduce" / f"{kind}{number}.py").read_bytes() == content


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_changed_code_is_never_clean(committed, flag):
    """Code that git was configured to ignore changes of is still recorded as changed."""
    checkout, git = committed
    git("update-index", flag, "reproduce/provenance.py")
    (checkout / "reproduce" / "provenance.py").write_text("two\n")
    entry, patch = provenance.code()
    assert not entry["clean"]
    assert b"+two" in patch


def test_huge_patch_is_noted_and_not_stored(committed, monkeypatch):
    """A patch above the size limit is not stored, and a note states that."""
    checkout, _ = committed
    monkeypatch.setattr(provenance, "LARGEST_PATCH", 1 << 20)
    (checkout / "reproduce" / "provenance.py").write_text("x\n" * (1 << 20))
    entry, patch = provenance.code()
    assert (entry["clean"], patch) == (False, b"")
    assert "larger than 1 MB and was not kept" in entry["note"]


def test_git_variables_do_not_select_another_repository(committed, tmp_path, monkeypatch):
    """GIT_DIR and GIT_INDEX_FILE do not change the recorded commit."""
    _, git = committed
    commit = git("rev-parse", "HEAD").strip()
    other = tmp_path / "other"
    git("init", "-q", str(other))
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / "index"))
    assert provenance.code()[0]["commit"] == commit


def test_checkout_of_another_user_is_noted(checkout, monkeypatch):
    def refuse(*_, **__):
        raise subprocess.CalledProcessError(128, "git", stderr=b"fatal: detected dubious ownership in repository")

    monkeypatch.setattr(provenance, "_git", refuse)
    assert "belongs to another user" in provenance.code()[0]["note"]


def test_failure_of_git_is_not_recorded_as_unknown_code(committed):
    """A full temporary folder once gave records "not run from a git checkout", for all cells of the process."""
    checkout, _ = committed
    for file in (checkout / ".git" / "objects").glob("??/*"):
        file.unlink()  # git finds the checkout and its commit, and fails as it does without room for its index
    words = r"git could not compare the code in .* \(fatal: .*\); check that /.* has room, and that `git status`"
    with pytest.raises(StorageError, match=words):
        provenance.code()


def test_kernel_selection_variables_are_recorded(monkeypatch):
    """Environment variables that select kernels are recorded, and others are not."""
    plain = provenance.environment(torch.device("cpu"))
    assert "kernel_variables" not in plain or "ONEDNN_MAX_CPU_ISA" not in plain["kernel_variables"]
    which_do = {"ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_CBWR", "CUDNN_LIB_CONFIG", "CUBLASLT_HEURISTICS"}
    which_do |= {"TORCH_BLAS_PREFER_CUBLASLT", "DISABLE_ADDMM_CUDA_LT"}
    which_do_not = {"MKL_NUM_THREADS", "ONEDNN_VERBOSE", "CUBLAS_LOGINFO_DBG", "CUDNN_LOGDEST_DBG"}
    for name in which_do | which_do_not:
        monkeypatch.setenv(name, "1")
    for value, recorded in ((":4096:8", False), (":16:8", True)):  # the first is the suite's own setting
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", value)
        chosen = provenance.environment(torch.device("cpu"))["kernel_variables"]
        assert ("CUBLAS_WORKSPACE_CONFIG" in chosen) is recorded
        assert which_do <= chosen.keys()
        assert not which_do_not & chosen.keys()


def test_missing_git_is_noted(checkout, monkeypatch):
    """Without git or a checkout the commit is None, and a note states the reason."""
    entry, patch = provenance.code()
    assert entry["commit"] is None
    assert "not run from a git checkout" in entry["note"]
    assert patch == b""

    provenance.code.cache_clear()
    monkeypatch.setenv("PATH", "")
    assert "git is not installed" in provenance.code()[0]["note"]


@pytest.mark.slow
def test_recorded_commits_are_in_history_or_listed_as_lost():
    """The list of lost commits agrees with the repository's history."""
    try:
        known = set(git(ROOT, "rev-list", "HEAD").split())
    except (subprocess.CalledProcessError, FileNotFoundError):
        pytest.skip("not a git repository: there is no history to compare with")
    if git(ROOT, "rev-parse", "--is-shallow-repository").strip() == "true":
        pytest.skip("a shallow clone does not have the history")
    named = {code["commit"] for run in scan(ROOT / "reports" / "records").records for code in run.codes}
    assert named - known == LOST.keys()
