"""Test the programs of stages against pictures written by hand, and the staleness vectors of known schedules."""

import pytest

from petra_core import methods
from petra_core.methods import Method
from petra_core.staleness import forward_lags, lockstep, one_f_one_b, per_device, resolve
from tests.properties import program

LOCKSTEP = (
    "F0 F1 F2 F3 F4 R0 B0 U0 R1 B1 U1 R2 B2 U2 R3 B3 U3 R4 B4 U4",
    "F0 F1 F2 R0 B0 U0 F3 R1 B1 U1 F4 R2 B2 U2 R3 B3 U3 R4 B4 U4",
    "F0 B0 U0 F1 B1 U1 F2 B2 U2 F3 B3 U3 F4 B4 U4",
)
ONE_F_ONE_B = (
    "F0 F1 F2 R0 B0 U0 F3 R1 B1 U1 F4 R2 B2 U2 R3 B3 U3 R4 B4 U4",
    "F0 F1 R0 B0 U0 F2 R1 B1 U1 F3 R2 B2 U2 F4 R3 B3 U3 R4 B4 U4",
    LOCKSTEP[2],
)
ONE_AT_A_TIME = ("F0 R0 B0 U0 F1 R1 B1 U1 F2 R2 B2 U2 F3 R3 B3 U3 F4 R4 B4 U4",) * 2 + (LOCKSTEP[2],)


@pytest.mark.parametrize("method", methods.ALL, ids=str)
@pytest.mark.parametrize(
    ("staleness", "picture"), [(lockstep(3), LOCKSTEP), (one_f_one_b(3), ONE_F_ONE_B), ((0, 0, 0), ONE_AT_A_TIME)]
)
def test_program_of_three_stages_matches_manual_schedule(
    method: Method, staleness: tuple[int, ...], picture: tuple[str, ...]
) -> None:
    for stage, line in enumerate(picture):
        words = [word for word in line.split() if not (method.keeps_graph and word.startswith("R"))]
        assert [str(action) for action in program(method, staleness, stage, 5)] == words


def test_program_updates_after_every_kth_backward() -> None:
    """An update follows every k-th backward, and no update follows the remainder."""
    actions = [str(action) for action in program(methods.DELAYED_GRADIENTS, (2, 0), 0, 5, accumulation=2)]
    assert actions == ["F0", "F1", "F2", "B0", "F3", "B1", "U0", "F4", "B2", "B3", "U1", "B4"]
    assert list(program(methods.PETRA, (2, 0), 0, 0)) == []


def test_vectors_of_known_schedules() -> None:
    """lockstep, one_f_one_b and per_device return the known staleness vectors."""
    assert lockstep(4) == (6, 4, 2, 0)
    assert one_f_one_b(4) == (3, 2, 1, 0)
    assert per_device((3, 2, 2, 3)) == (3, 3, 3, 2, 2, 1, 1, 0, 0, 0)
    assert per_device((2, 1, 1), slack=0.5) == (3, 3, 2, 0)
    for hundredths in range(200):  # 1.12 * 25 was 28.000000000000004, rounded up
        exact = tuple(-(-(100 + hundredths) * (39 - device) // 100) for device in range(40))
        assert per_device([1] * 40, hundredths / 100) == exact
    assert forward_lags(lockstep(5)) == (0, 1, 2, 3, 4)
    assert forward_lags((3, 3, 2, 0)) == (0, 0, 0, 1)
    assert resolve(methods.PETRA, 3, 1) == (4, 2, 0)
    assert resolve(methods.PAREPROP, 3, 1) == (0, 0, 0)
    for method in methods.ALL:
        assert resolve(method, 3, accumulation=4) == (lockstep(3) if method.pipelined else (0, 0, 0))
    assert [method.ticks_to_steady(3, 2) for method in (methods.PETRA, methods.DELAYED_GRADIENTS)] == [6, 10]
