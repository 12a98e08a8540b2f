"""Test the execution of a cell: notices about changed conditions after a resume, and the meaning of float32."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch

from reproduce.distributed.group import UnsupportedError
from reproduce.measures.context import Context, Observer, Stopped
from reproduce.records.record import Record
from reproduce.records.run import RecordError, Status
from reproduce.running import execution
from reproduce.running.execution import deterministic, execute
from tests import fake_records
from tests.example_cells import CHAIN, COMPLEXITY
from tests.trainings import StopAfter, recorded, run


def notices_of_a_tick(folder: Path) -> list[str]:
    """Return the notices of another tick."""
    stop, notices = StopAfter(1), []
    stop.notice = notices.append
    with pytest.raises(Stopped):
        run(CHAIN, folder, observer=stop, should_stop=stop.should_stop)
    return notices


def ran_on(folder: Path, *threads: int, device: str = "cpu") -> None:
    """Make the record state that it ran with these numbers of threads, one after the other."""
    file = folder / "environment.json"
    values = json.loads(file.read_text())
    values["entries"] = [{**values["entries"][0], "threads": number, "device": device} for number in threads]
    file.write_text(json.dumps(values))


def test_resume_with_other_threads_warns_if_bits_change(tmp_path: Path) -> None:
    """A resume with another number of threads gives a warning on a CPU, unless training restarts."""
    assert (
        notices_of_a_tick(tmp_path) == notices_of_a_tick(tmp_path) == []
    )  # begun and resumed in one thread, as in all tests
    ran_on(tmp_path, 3)
    [words] = notices_of_a_tick(tmp_path)
    assert words.startswith(
        f"WARNING: {tmp_path} resumes with --threads 1, after 3: its result will differ in the last bits"
    )
    assert words.endswith("it began with --threads 3")
    file = tmp_path / "environment.json"
    values = json.loads(file.read_text())
    file.write_text(json.dumps(values | {"entries": [{}, *values["entries"]]}))  # a damaged entry is ignored
    [words] = notices_of_a_tick(tmp_path)  # the notice is repeated
    assert "resumes with --threads 1, after 3 and 1: " in words
    ran_on(tmp_path, 3, device="an accelerator")
    [words] = notices_of_a_tick(tmp_path)
    assert "continues in another environment (device 'an accelerator', now 'cpu'" in words
    ran_on(tmp_path, 3)
    (tmp_path / "checkpoint.pt").unlink()  # the training then starts from the beginning
    assert notices_of_a_tick(tmp_path) == []


def test_resume_notes_code_only_if_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resume by the same commit with the same uncommitted changes gives no notice."""
    for patch, continues in ((b"", ""), (b"one", "and changes"), (b"one", ""), (b"two", "and changes")):
        code = {"commit": "abc", "clean": not patch}
        monkeypatch.setattr("reproduce.records.provenance.code", lambda code=code, patch=patch: (code, patch))
        notices = notices_of_a_tick(tmp_path)
        assert [text.endswith(f"continues with abc {continues}") for text in notices] == [True] * bool(continues)
    assert "was begun by abc and changes and continues" in notices[0]


def test_error_after_the_result_does_not_replace_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If memory runs out during the publication, the cell does not count as out of memory, without its checkpoint."""
    record = Record.for_cell(COMPLEXITY, tmp_path)

    def publish(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("reproduce.records.volumes.publish", publish)
        with pytest.raises(MemoryError):
            execute(record, Context())
    assert execute(record, Context()).status is Status.DONE


def test_result_is_of_the_metrics_of_its_run(tmp_path: Path) -> None:
    """If `git pull` brings a result of the cell while it runs, the result of the run fits its metrics."""
    cell = dataclasses.replace(CHAIN, epochs=1, drops=(), warmup_epochs=0.0)
    fake_records.train(cell, tmp_path / "elsewhere", 99.0)
    record = Record.for_cell(cell, tmp_path)
    observer = Observer()
    observer.epoch = lambda _: shutil.copytree(tmp_path / "elsewhere" / cell.scale, tmp_path / cell.scale)
    with pytest.raises(RecordError, match=r"two different results: 99\.00 % and"):
        execute(record, Context(observer=observer))
    [metrics], result = recorded(record.path)
    assert result["test_accuracy"] == metrics["test_accuracy"] != 99.0


@pytest.mark.parametrize("tf32", [False, True])
def test_float32_uses_tf32_only_on_request(tf32: bool) -> None:
    """By default, torch uses TF32 in convolutions, but not in matrix products."""
    backends = torch.backends.cudnn, torch.backends.cuda.matmul
    before = [backend.allow_tf32 for backend in backends]
    with deterministic(torch.device("cuda"), tf32=tf32):
        assert [backend.allow_tf32 for backend in backends] == [tf32, tf32]
    assert [backend.allow_tf32 for backend in backends] == before


def test_tf32_needs_a_gpu_with_support(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Precision tf32 requires a CUDA device of compute capability 8.0 or more."""
    cell = dataclasses.replace(CHAIN, precision="tf32")
    with pytest.raises(UnsupportedError, match=r"tf32 needs a CUDA device .* 8\.0 or more, got cpu"):
        execute(Record.for_cell(cell, tmp_path), Context())
    assert not list(tmp_path.iterdir())
    for capability, has in (((7, 5), False), ((8, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, capability=capability: capability)
        if has:
            assert execution._wants_tf32(cell, torch.device("cuda"))
        else:
            with pytest.raises(UnsupportedError, match="got cuda"):
                execution._wants_tf32(cell, torch.device("cuda"))
