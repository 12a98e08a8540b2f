"""Test the programs of stages against pictures written by hand."""

import pytest

from petra_core import methods
from petra_core.methods import Method
from petra_core.staleness import lockstep, one_f_one_b
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
