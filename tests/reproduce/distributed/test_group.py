"""Test checkpoints of a group: one of another version is reported before any part of it is used."""

from pathlib import Path

import pytest

from petra_core import CheckpointError
from reproduce.distributed.group import SCHEMA, SINGLE_PROCESS, load
from reproduce.distributed.sharded import ShardedCheckpoint
from reproduce.records.record import Record
from tests.example_cells import TRAINING


@pytest.mark.parametrize("several", [True, False])
def test_checkpoint_of_another_format_is_refused(tmp_path: Path, several: bool) -> None:
    """A checkpoint of another format is refused, and one without a format has the first one."""
    record = Record(tmp_path, TRAINING)

    def save(common: dict[str, int]) -> None:
        if several:
            ShardedCheckpoint(record.shards).save(1, {"common": common | {"stages": 1}, "stage_0": 5})
        else:
            SINGLE_PROCESS.save(record, 1, common, [5])

    for common in ({}, {"schema": SCHEMA}):
        save(common)
        assert (load(record, range(1)) or ())[1] == [5]
    save({"schema": SCHEMA + 1})
    where = record.shards if several else record.checkpoint
    with pytest.raises(
        CheckpointError, match=f"{where} is .* format 2, this version reads format 1; update this clone"
    ):
        load(record, range(1))
    save({"schema": SCHEMA - 1})
    with pytest.raises(CheckpointError, match="format 0, this version reads format 1; move it away"):
        load(record, range(1))
