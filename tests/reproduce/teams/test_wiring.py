"""Gloo or NCCL, decided from where the processes are."""

from types import SimpleNamespace

import pytest
import torch

from reproduce.teams import processes
from reproduce.teams.wiring import Place, Wiring, backend, decide

GPU = [("a", "cuda:0"), ("a", "cuda:1"), ("b", "cuda:0")]


def test_a_gpu_each_is_nccl_on_several_machines_too() -> None:
    assert decide(GPU, nccl_available=True) == Wiring(nccl=True)


def test_without_gpus_there_is_nothing_to_say() -> None:
    assert decide([("a", "cpu"), ("a", "cpu")], nccl_available=True) == Wiring(nccl=False)


@pytest.mark.parametrize(
    ("places", "nccl_available", "note"),
    [
        ([*GPU, ("b", "cuda:0")], True, "2 processes share cuda:0, which NCCL refuses: "),
        ([*GPU, ("b", "cpu")], True, "1 of 4 processes have no GPU: "),
        (GPU, False, "this build of torch has no NCCL: "),
    ],
)
def test_otherwise_messages_go_through_the_cpu_and_it_is_said(
    places: list[Place], nccl_available: bool, note: str
) -> None:
    wired = decide(places, nccl_available=nccl_available)
    assert not wired.nccl
    assert wired.note == f"{note}messages between them go through the CPU's memory, over Gloo"


def test_objects_go_over_gloo_whatever_the_device() -> None:
    assert backend("cpu", nccl_available=True) == "gloo"
    assert backend("cuda", nccl_available=True) == "cpu:gloo,cuda:nccl"
    assert backend("cuda", nccl_available=False) == "gloo"


def test_a_gpu_is_known_by_itself_not_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each process sees one GPU alone, all of them are cuda:0."""
    seen = iter(["one", "two", "two"])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=next(seen)))
    names = [processes._name(torch.device("cuda:0")) for _ in range(3)]
    assert decide([("a", name) for name in names[:2]], nccl_available=True).nccl
    assert "share cuda two" in decide([("a", name) for name in names[1:]], nccl_available=True).note
    assert processes._name(torch.device("cpu")) == "cpu"
