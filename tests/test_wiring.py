"""Gloo or NCCL, decided from where the processes are."""

import pytest

from reproduce.wiring import Place, Wiring, backend, decide

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
    found = decide(places, nccl_available=nccl_available)
    assert not found.nccl
    assert found.note == f"{note}messages between them go through the CPU's memory, over Gloo"


def test_objects_go_over_gloo_whatever_the_device() -> None:
    assert backend("cpu", nccl_available=True) == "gloo"
    assert backend("cuda", nccl_available=True) == "cpu:gloo,cuda:nccl"
    assert backend("cuda", nccl_available=False) == "gloo"
