"""Test that the list of lost commits agrees with the repository's history."""

import subprocess
from pathlib import Path

import pytest

from reproduce.records.lost_commits import LOST
from reproduce.records.record import scan

REPOSITORY = Path(__file__).parents[3]


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_recorded_commits_are_in_history_or_listed_as_lost() -> None:
    try:
        known = set(git("rev-list", "HEAD").split())
    except (subprocess.CalledProcessError, FileNotFoundError):
        pytest.skip("not a git repository: there is no history to compare with")
    if git("rev-parse", "--is-shallow-repository").strip() == "true":
        pytest.skip("a shallow clone does not have the history")
    named = {code["commit"] for run in scan(REPOSITORY / "reports" / "records").records for code in run.codes}
    assert named - known == LOST.keys()
