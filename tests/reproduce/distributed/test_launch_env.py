"""Test what the launcher's environment tells about the processes that compute together."""

import os

import pytest

from reproduce.cells.kinds import CellError
from reproduce.distributed import launch, launch_env


def test_processes_are_divided_among_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """The started processes are divided among the replicas, or refused if they do not fit."""
    monkeypatch.setenv("RANK", "0")
    for started, asked, replicas, each in [(4, 1, 2, 2), (4, 2, 2, 2), (3, 1, 3, 1), (2, 1, 1, 2)]:
        monkeypatch.setenv("WORLD_SIZE", str(started))
        assert launch_env.processes_of_replica(asked, replicas) == each
    monkeypatch.setenv("WORLD_SIZE", "4")
    for asked, replicas in [(1, 3), (3, 2), (2, 1)]:
        message = f"4 processes were started, .* start {asked * replicas}, or another multiple"
        with pytest.raises(CellError, match=message):
            launch_env.processes_of_replica(asked, replicas)


def test_torchrun_environment_gives_ranks_and_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Team size and local device follow the environment of torchrun, and invalid values are refused."""
    assert not launch_env.is_distributed()
    assert launch_env.local_device("cuda") == "cuda"
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "2"), ("LOCAL_RANK", "3")):
        monkeypatch.setenv(name, value)
    assert launch_env.is_distributed()
    assert (launch_env.world_size(), launch_env.local_world_size()) == (4, 2)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert launch_env.local_device("cuda") == "cuda:1"  # two processes share a GPU
    assert launch_env.local_device("cuda:0") == "cuda:0"
    assert launch_env.local_device("cpu") == "cpu"
    monkeypatch.setenv("LOCAL_RANK", "-1")
    with pytest.raises(CellError, match="LOCAL_RANK is '-1', expected a number of at least 0: unset it"):
        launch_env.local_device("cuda")


@pytest.mark.parametrize(
    ("launcher", "gone"), [(None, False), (str(os.getppid()), False), ("1e9", True), ("abc", True)]
)
def test_launcher_that_is_not_the_parent_is_gone(
    monkeypatch: pytest.MonkeyPatch, launcher: str | None, gone: bool
) -> None:
    monkeypatch.delenv("PETRA_LAUNCHER", raising=False)
    if launcher is not None:
        monkeypatch.setenv("PETRA_LAUNCHER", launcher)
    assert launch.launcher_gone() is gone


@pytest.mark.parametrize("name", ["WORLD_SIZE", "LOCAL_WORLD_SIZE"])
@pytest.mark.parametrize(
    ("value", "message"), [("abc", "is 'abc', expected"), ("0", "is '0', expected"), ("2", "RANK is not set")]
)
def test_leftover_environment_variables_are_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    """WORLD_SIZE or LOCAL_WORLD_SIZE without a valid launch raises an error that names the variable."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv(name, value)
    with pytest.raises(CellError, match=f"the environment variable {name} .*{message}.*: unset it"):
        launch_env.world_size() if name == "WORLD_SIZE" else launch_env.local_world_size()
