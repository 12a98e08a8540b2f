"""Test the choice of Gloo or NCCL from the placement of the processes."""

import os
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from petra_core.distributed.groups import ChannelError
from reproduce.distributed import launch, processes
from reproduce.distributed.processes import DistributedGroup, wiring
from reproduce.grids import recipes
from tests.processes import in_processes

GPU = [("a", "cuda:0"), ("a", "cuda:1"), ("b", "cuda:0")]


def test_nccl_requires_one_gpu_per_process() -> None:
    """NCCL is used only if every process has a separate GPU; otherwise a note gives the reason."""
    assert wiring(GPU, True) == (True, "")
    assert wiring([("a", "cpu"), ("a", "cpu")], True) == (False, "")
    for places, nccl_available, note in (
        ([*GPU, ("b", "cuda:0")], True, "2 processes share cuda:0, which NCCL does not support: "),
        ([*GPU, ("b", "cpu")], True, "1 of 4 processes have no GPU: "),
        (GPU, False, "this build of torch has no NCCL: "),
    ):
        notice = f"{note}messages between them go through the CPU's memory, over Gloo"
        assert wiring(places, nccl_available) == (False, notice)


def test_gpu_is_identified_by_uuid_not_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """If each process sees only one GPU, all of them are cuda:0."""
    seen = iter(["one", "two", "two"])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=next(seen)))
    names = [processes._name(torch.device("cuda:0")) for _ in range(3)]
    assert wiring([("a", name) for name in names[:2]], True) == (True, "")
    assert "share cuda two" in wiring([("a", name) for name in names[1:]], True)[1]
    assert processes._name(torch.device("cpu")) == "cpu"


def test_threads_are_compared_only_for_cpu_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without a GPU has threads to compare; one with a GPU does not."""

    def everybodys(mine: tuple[dict[str, object], object, bool]) -> list[object]:
        theirs = {name: value for name, value in mine[0].items() if name != "threads"}
        return [(theirs, ("b", "cuda one"), True), mine]

    monkeypatch.setattr(processes.dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(processes, "gather_json", everybodys)
    monkeypatch.setattr(processes, "DistributedGroup", lambda *given: given)
    cpu, shares, timeout = torch.device("cpu"), (3, 3), timedelta(minutes=1)
    joined = processes.join(recipes.cell("smoke"), shares, cpu, timeout)
    assert joined[2:4] == wiring([("b", "cuda one"), ("a", "cpu")], True)  # type: ignore[index]  # a stand-in


def test_processes_that_share_a_gpu_meet_over_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL, which torch 2.15 connects when a group is made, would refuse them before they can choose Gloo.

    On one machine, both listen only on the loopback device.
    """
    backends: list[str] = []
    interfaces = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    for name in interfaces:
        monkeypatch.setenv(name, "")  # so that it has its earlier value after the test
        monkeypatch.delenv(name)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setattr(processes.dist, "init_process_group", lambda backend, **_: backends.append(backend))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="one"))
    monkeypatch.setattr(processes, "gather_json", lambda mine: [mine, mine])
    monkeypatch.setattr(processes, "DistributedGroup", lambda *given: given)
    joined = processes.join(recipes.cell("smoke"), (3, 3), torch.device("cuda:0"), timedelta(minutes=1))
    assert (backends, joined[2]) == (["gloo"], False)  # type: ignore[index]  # a stand-in
    assert [os.environ[name] for name in interfaces] == ["lo", "lo"]


def test_team_decides_at_intervals_and_reports_lost_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A team agrees only at certain micro-batches, and the loss of a process is reported with the last one."""

    def lost(*_: object, **__: object) -> None:
        raise RuntimeError("connection reset")

    monkeypatch.setattr(processes.dist, "broadcast", lost)
    group = object.__new__(DistributedGroup)
    group.rank, group._channel, group._timeout = 1, None, timedelta(minutes=1)
    assert group.decide(5, stop=True, save=True) == (False, False), "no other process is asked"
    words = r"^all stages on rank 1 lost another process after micro-batch 32, .* for 60 s \(connection reset\)$"
    with pytest.raises(ChannelError, match=words) as caught:
        group.decide(32, stop=True, save=True)
    assert group.describe_loss(caught.value) == str(caught.value)
    assert "between micro-batches (gloo: " in group.describe_loss(RuntimeError("gloo: timed out"))
    assert group.describe_loss(RuntimeError("a fault")) == ""


def met(rank: int, folder: str, lies: bool) -> None:
    """Exchange a value as processes of a launch do. The second one may not know the secret."""
    os.environ["PETRA_LAUNCH_MARKS"] = folder
    if rank == 1 and lies:
        processes.launch_secret = lambda: b"another one"
    if lies:
        with pytest.raises(ChannelError, match=r"rank \d does not know the secret of this launch"):
            processes.check_secret()
        return
    processes.check_secret()
    gathered = processes.gather_json({"rank": rank, "text": "ü" * (1 + 1000 * rank)})
    assert gathered == [{"rank": 0, "text": "ü"}, {"rank": 1, "text": "ü" * 1001}]
    group = DistributedGroup((1, 1), torch.device("cpu"), nccl=False, notice="", timeout=timedelta(minutes=1))
    group._channel = None
    if rank == 0:
        for go in (None, None, True):
            group.announce(go=go)
        group.announce(go=False)
    else:
        assert [group.wait_for_leader(), group.wait_for_leader()] == [True, False]
    state = group.gather_state({f"weight {rank}": torch.full((3,), float(rank), dtype=torch.float16)})
    if rank == 0:
        assert state["weight 1"].dtype == torch.float16
        assert {name: tensor.tolist() for name, tensor in state.items()} == {"weight 0": [0] * 3, "weight 1": [1] * 3}


@pytest.mark.parametrize("lies", [False, True])
def test_processes_prove_a_secret_and_exchange_plain_values(tmp_path: Path, lies: bool) -> None:
    """A process without the secret of the launch is refused; the others exchange plain values and tensors."""
    (tmp_path / "secret").write_bytes(b"secret")
    in_processes(2, met, str(tmp_path), lies)


def test_no_process_unpickles_received_data() -> None:
    """A stranger in the place of a process could run code as the user."""
    for module in (processes, launch):
        assert "_object(" not in Path(module.__file__).read_text("utf-8")
