"""Test that checkpoint files are written atomically, and that damaged or foreign files raise an error."""

import collections
import contextlib
import errno
import io
import os
import stat
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from petra_core import CheckpointError, checkpoint
from tests.compare import assert_bitwise_equal

STATE = {"weights": [torch.arange(2000.0), None], "name": "x", "step": 3, "streams": (torch.ones(2, 3),)}


def test_load_returns_saved_state_and_detects_damage(tmp_path: Path) -> None:
    """`load` returns the saved state bitwise and raises CheckpointError for a damaged file."""
    path = tmp_path / "a.pt"
    checkpoint.save(path, STATE)
    assert_bitwise_equal(checkpoint.load(path), STATE)
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]
    whole = path.read_bytes()
    assert_bitwise_equal(checkpoint.load(io.BytesIO(whole)), STATE)
    flipped = bytearray(whole)
    flipped[whole.index(torch.arange(2000.0).numpy().tobytes()) + 4321] ^= 1  # torch.load would not notice
    for data, message in (
        (flipped, "is damaged: the checksum"),
        *((whole[:length], "is damaged or not a checkpoint") for length in (0, 10, 3000)),
    ):
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=rf"a\.pt {message}"):
            checkpoint.load(path)
        assert path.read_bytes() == data
    with pytest.raises(FileNotFoundError):
        checkpoint.load(tmp_path / "none.pt")


def test_flipped_bit_is_detected_or_harmless(tmp_path: Path) -> None:
    """With one flipped bit, `load` raises CheckpointError or returns the saved state."""
    path = tmp_path / "a.pt"
    state = {"weights": torch.arange(3.0), "name": "x"}
    checkpoint.save(path, state)
    whole = path.read_bytes()
    for place in range(0, len(whole), 5):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with contextlib.suppress(CheckpointError):
            assert_bitwise_equal(checkpoint.load(path), state)
    for place in range(len(whole) - 60, len(whole)):  # offsets that do not fit into an integer of C
        data = io.BytesIO(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        with contextlib.suppress(CheckpointError):
            assert_bitwise_equal(checkpoint.load(data), state)


class Image(Tensor):
    """A subclass of tensors, as torchvision and fastai have for images."""


def test_copied_states_have_no_subclasses_of_tensors(tmp_path: Path) -> None:
    """Micro-batches in flight may be of a subclass, which a checkpoint could not be loaded with."""
    state = checkpoint.copy_tree({"streams": (torch.arange(3.0).as_subclass(Image),)})
    checkpoint.save(tmp_path / "a.pt", state)
    [stream] = checkpoint.load(tmp_path / "a.pt")["streams"]
    assert type(stream) is Tensor
    assert_bitwise_equal(stream, torch.arange(3.0))


def test_copied_states_have_numbers_of_python(tmp_path: Path) -> None:
    """A learning rate computed with NumPy must not make a checkpoint that cannot be loaded."""
    checkpoint.save(tmp_path / "a.pt", checkpoint.copy_tree({"lr": np.cos(np.float64(1.0))}))
    rate = checkpoint.load(tmp_path / "a.pt")["lr"]
    assert (type(rate), rate) == (float, np.cos(1.0))


def test_state_that_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    """`save` raises CheckpointError for objects that `load` rejects, and preserves the previous checkpoint."""
    path = tmp_path / "a.pt"
    checkpoint.save(path, STATE)
    for other in (np.ones(2), Path("x"), {"optimizer": collections.deque([torch.ones(2)])}):
        with pytest.raises(CheckpointError, match=r"a\.pt was not written: the state contains .*(numpy|path|deque)"):
            checkpoint.save(path, {"x": other})
    assert [file.name for file in tmp_path.iterdir()] == ["a.pt"]
    assert_bitwise_equal(checkpoint.load(path), STATE)


def test_foreign_file_cannot_run_code(tmp_path: Path) -> None:
    """Loading a foreign file raises CheckpointError and does not run its code."""

    class Harmful:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"x": Harmful()}, tmp_path / "b.pt")
    with pytest.raises(CheckpointError, match=r"b\.pt is not a checkpoint"):
        checkpoint.load(tmp_path / "b.pt")
    assert not (tmp_path / "ran").exists()
    with zipfile.ZipFile(tmp_path / "c.pt", "w") as archive:
        archive.writestr("readme.txt", "no weights")
    with pytest.raises(CheckpointError, match=r"c\.pt is not a checkpoint"):
        checkpoint.load(tmp_path / "c.pt")


def test_save_syncs_file_then_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without both flushes, a crash of the machine may lose a result whose checkpoint has been removed."""
    flushed, opened = [], []

    def fsync(file: int) -> None:
        opened.append(file)
        flushed.append((stat.S_ISDIR(os.fstat(file).st_mode), (tmp_path / "state.pt").exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    checkpoint.save(tmp_path / "state.pt", {"a": 1})
    assert flushed == [(False, False), (True, True)]
    for file in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(file)


def test_full_disk_keeps_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk is full, `save` raises OSError and leaves the old checkpoint intact."""
    path = tmp_path / "a.pt"
    checkpoint.save(path, STATE)
    real_open = Path.open

    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    def full(self: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        return Full(self, "w") if mode == "wb" else real_open(self, mode, *arguments, **options)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        checkpoint.save(path, {"other": torch.ones(10)})
    assert caught.value.errno == errno.ENOSPC
    assert "a.pt" in str(caught.value)
    monkeypatch.undo()
    assert_bitwise_equal(checkpoint.load(path), STATE)
    assert [p.name for p in tmp_path.iterdir()] == ["a.pt"]
