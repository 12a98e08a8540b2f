"""The drawn schedules are those that ran, and equal those that the generator foretells."""

import pytest

from petra_core import methods
from petra_core.methods import Method
from petra_core.schedule import generate
from reproduce.exhibits import schedules
from reproduce.exhibits._exhibit import section
from reproduce.records.frames import Frames
from reproduce.records.results import Results
from reproduce.show.content import Figure


@pytest.mark.parametrize("accumulation", schedules.ACCUMULATIONS)
@pytest.mark.parametrize("method", methods.KNOWN, ids=str)
def test_what_ran_is_what_was_planned(method: Method, accumulation: int) -> None:
    count = schedules.MICRO_BATCHES[method.pipelined]
    planned = generate(method, schedules.STAGES, count, accumulation)
    assert schedules.executed(method, accumulation) == planned


def test_section_draws_every_method_at_every_k() -> None:
    found = section(schedules.EXHIBIT, Frames(Results((), ())))
    drawn = [block for block in (*found.blocks, *found.folded) if isinstance(block, Figure)]
    assert len(drawn) == len(methods.KNOWN) * len(schedules.ACCUMULATIONS)
    for figure in drawn:
        assert "F1" in figure.description
        assert "of the turns are idle" in figure.caption
