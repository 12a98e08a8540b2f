"""Test checkpoints of several processes: they are complete or absent, and any number of processes reads them."""

import hashlib
import json
import os
import resource
import shutil
import signal
from pathlib import Path

import pytest
import torch

from petra_core import CheckpointError
from reproduce.distributed.processes import gather_json
from reproduce.distributed.sharded import ShardedCheckpoint
from reproduce.records.storage import StorageFullError, explain_full_disk
from tests import faults
from tests.compare import assert_bitwise_equal
from tests.processes import in_processes

PARTS = {"stage_0": {"weight": torch.arange(3.0), "steps": 7}, "stage_1": [torch.ones(2, 2), None]}


def test_sharded_checkpoint_round_trip_by_part(tmp_path: Path) -> None:
    """Saved parts are loaded individually, and a newer save replaces the older one."""
    folder = ShardedCheckpoint(tmp_path / "checkpoint")
    assert not folder.exists
    folder.save(1, PARTS)
    assert folder.exists
    assert_bitwise_equal(folder.load(PARTS), PARTS)
    assert_bitwise_equal(folder.load(["stage_1"]), {"stage_1": PARTS["stage_1"]})
    folder.save(2, {"stage_0": 5})
    assert folder.load(["stage_0"]) == {"stage_0": 5}
    assert sorted(path.name for path in folder.path.iterdir()) == ["latest.json", "step-000000002"]
    folder.remove()
    assert not folder.path.exists()


def save(folder: ShardedCheckpoint, number: int) -> None:
    with explain_full_disk("to write it"):
        folder.save(number, {"stage_0": 5})


def test_checkpoint_does_not_exist_while_it_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, seen = ShardedCheckpoint(tmp_path), []
    folder.save(1, PARTS)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: seen.append(folder.exists))
    folder.remove()
    assert seen == [False]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "full disk"])
@pytest.mark.parametrize("following", [16, 17])
def test_fault_at_any_operation_leaves_a_complete_checkpoint(
    tmp_path: Path, following: int, fault: faults.Fault
) -> None:
    """At the end of an epoch, a checkpoint is saved after its last micro-batch, and after its evaluation."""
    ShardedCheckpoint(tmp_path / "start").save(16, PARTS)
    paths = faults.states(
        fault, tmp_path / "start", lambda path: save(ShardedCheckpoint(path), following), tmp_path / "faults"
    )
    assert len(paths) > 5, "the work has many operations"
    for path in paths:
        folder = ShardedCheckpoint(path)
        if folder.load(["stage_0"]) != {"stage_0": 5}:
            assert_bitwise_equal(folder.load(PARTS), PARTS)
        folder.save(16, {"stage_0": 6})
        assert folder.load(["stage_0"]) == {"stage_0": 6}
        names = [path.name for path in folder.path.iterdir() if path.suffix != ".tmp"]
        assert len(names) == 2, "the pointer, and what it names"


def test_foreign_checkpoint_folders_are_kept(tmp_path: Path) -> None:
    """Other programs name checkpoints step-100, too."""
    for name in ("step-100", "step-000000001.bak", "step-size"):
        (tmp_path / name).mkdir()
    folder = ShardedCheckpoint(tmp_path)
    for number in (1, 2):
        folder.save(number, PARTS)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"latest.json", "step-000000002", "step-100", "step-000000001.bak", "step-size"}


def full(rank: int, path: Path, room: int) -> None:
    folder = ShardedCheckpoint(path)
    folder.save(1, {f"stage_{rank}": 1}, gather_json)
    if rank == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    with pytest.raises(StorageFullError, match="no room to write it"), explain_full_disk("to write it"):
        folder.save(2, {f"stage_{rank}": torch.ones(10_000)}, gather_json)


@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 20_000])
def test_full_disk_on_one_rank_is_an_error_on_all(tmp_path: Path, room: int) -> None:
    """A full disk on one rank raises StorageFullError on all ranks, and the old checkpoint remains."""
    in_processes(2, full, tmp_path, room)
    assert ShardedCheckpoint(tmp_path).load(["stage_0", "stage_1"]) == {"stage_0": 1, "stage_1": 1}


def refused(rank: int, path: Path) -> None:
    with pytest.raises(CheckpointError, match="rank 1 does not see it"):
        ShardedCheckpoint(path / str(rank)).save(1, {f"stage_{rank}": 1}, gather_json)
    assert not list((path / "1").glob("step-*"))
    (path / "file").touch()
    with pytest.raises(NotADirectoryError):  # only on rank 0, which makes the folder
        ShardedCheckpoint(path / "file" / "below").save(1, {f"stage_{rank}": 1}, gather_json)
    folder = ShardedCheckpoint(path / "one")
    with pytest.raises(CheckpointError, match=r"could not be encoded: .*local object"):
        folder.save(1, {f"stage_{rank}": (lambda: None) if rank else 1}, gather_json)
    folder.save(1, {f"stage_{rank}": 1}, gather_json)
    if rank == 0:
        (path / "one" / "latest.json").unlink()
        (path / "one" / "latest.json").mkdir()  # rank 0 cannot write the pointer
    with pytest.raises(IsADirectoryError):
        folder.save(2, {f"stage_{rank}": 1}, gather_json)


@pytest.mark.slow
def test_failure_on_one_rank_is_raised_on_all(tmp_path: Path) -> None:
    """A failure on one rank is raised on all ranks, and no rank waits."""
    in_processes(2, refused, tmp_path)


def test_damage_is_detected_and_foreign_part_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged or missing files raise a CheckpointError, and a forged part executes no code."""
    folder = ShardedCheckpoint(tmp_path / "checkpoint")
    with pytest.raises(CheckpointError, match="contains no complete checkpoint"):
        folder.load(["stage_0"])
    folder.save(1, PARTS)
    with pytest.raises(CheckpointError, match="has no part stage_9; it has stage_0, stage_1"):
        folder.load(["stage_9"])
    file = folder.path / "step-000000001" / "stage_0.pt"
    file.unlink()
    with pytest.raises(CheckpointError, match="damaged or incomplete"):
        folder.load(["stage_0"])
    monkeypatch.chdir(tmp_path)
    torch.save(MakesFolder(), file)
    with pytest.raises(CheckpointError, match=r"stage_0\.pt is damaged: its SHA-256 is [0-9a-f]{64}, expected"):
        folder.load(["stage_0"])
    pointer = json.loads((folder.path / "latest.json").read_text())
    pointer["sha256"]["stage_0"] = hashlib.sha256(file.read_bytes()).hexdigest()  # a forged one too runs nothing
    (folder.path / "latest.json").write_text(json.dumps(pointer))
    with pytest.raises(CheckpointError, match="not a checkpoint of this suite"):
        folder.load(["stage_0"])
    assert not (tmp_path / "evil").exists()
    for text, reason in (
        ("{", "Expecting property name"),
        ('{"checkpoint": "step-000000001"}', "'sha256' is missing"),
        (
            '{"checkpoint": "../step-000000001", "sha256": {}}',
            r"it names '\.\./step-000000001', expected a folder next to it",
        ),
    ):
        (folder.path / "latest.json").write_text(text)
        with pytest.raises(CheckpointError, match=rf"latest\.json is damaged: {reason}"):
            folder.load(["stage_0"])


class MakesFolder:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("evil",)
