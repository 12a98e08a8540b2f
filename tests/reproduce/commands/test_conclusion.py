"""The end of a run: every kind of bad news is told once, and the exit code says which it was."""

from pathlib import Path

import pytest

from reproduce.commands.conclusion import conclude
from reproduce.grids.scales import Scale
from reproduce.grids.smoke import digits_cell
from reproduce.records.record import State, Status
from reproduce.running.runner import Outcome

CELLS = [digits_cell(seed=seed) for seed in range(4)]
NOT_RUN = State(Status.NOT_RUN, 0, 4)
SCALE = Scale("smoke", "")


@pytest.fixture
def end(capsys):
    """Conclude an outcome; gives exit code, stdout and stderr."""

    def conclude_(outcome):
        with pytest.raises(SystemExit) as ended:
            conclude(SCALE, outcome, Path("elsewhere"))
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    return conclude_


def test_a_missing_data_set_is_told_once(end):
    problems = dict.fromkeys(CELLS[:3], "data/imagenet: imagenet is not prepared. Log in at …")
    problems[CELLS[3]] = "result.json: is damaged"
    code, _, said = end(Outcome(dict.fromkeys(CELLS, NOT_RUN), problems))
    assert code == 1
    assert "4 cells without a result" in said
    assert f"{CELLS[0].slug} and 2 more: data/imagenet: imagenet is not prepared" in said
    assert said.count("not prepared") == 1
    assert f"{CELLS[3].slug}: result.json: is damaged" in said
    assert "unfinished" not in said, "they were told already"


def test_failures_are_told_by_their_kind(end):
    states = {
        CELLS[0]: State(Status.FAILED, 1, 4, "diverged"),
        CELLS[1]: State(Status.FAILED, 1, 4, "out of memory"),
        CELLS[2]: State(Status.PARTIAL, 1, 4),
    }
    code, _, said = end(Outcome(states))
    assert code == 1
    assert "1 cell diverged, which is a result" in said
    assert "1 cell ran out of memory; --retry-failed tries again" in said
    assert f"{CELLS[2].slug}: 1 of 4 epochs" in said
