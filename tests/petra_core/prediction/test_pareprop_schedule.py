"""PaReprop's schedule is generated, executed, validated and drawn; memory is predicted, and no third graph is there."""

import threading

import pytest

from petra_core import Pipeline, methods
from petra_core.drawing.schedules import to_svg
from petra_core.errors import ScheduleError
from petra_core.ledger import Ledger
from petra_core.methods import PAREPROP, REVERSIBLE_BACKPROPAGATION
from petra_core.prediction.footprint import graphs_at_once
from petra_core.prediction.memory import footprints
from petra_core.prediction.orders import of_method
from petra_core.prediction.simulation import Cost
from petra_core.prediction.units import units_per_micro_batch
from petra_core.schedule import generate
from petra_core.validation import validate
from tests import toys
from tests.petra_core.prediction.test_memory import NETWORKS, batch
from tests.schedules import parse

SCHEDULE = """
    PAREPROP J=4 k=1
    tick 0 | F0    | -     | -     | -
    tick 1 | -     | F0    | -     | -
    tick 2 | -     | -     | F0    | -
    tick 3 | -     | -     | R0    | F0 B0 U0
    tick 4 | -     | R0    | B0 U0 | -
    tick 5 | R0    | B0 U0 | -     | -
    tick 6 | B0 U0 | -     | -     | -
"""


def test_every_reconstruction_is_in_the_tick_of_the_backward_above() -> None:
    assert generate(PAREPROP, 4, 1, 1) == parse(SCHEDULE)
    p = toys.pipeline(toys.network(4), PAREPROP)
    with p.recording() as recording:
        toys.train(p, toys.batches(1))
    assert recording.schedule == parse(SCHEDULE)
    assert to_svg(recording.schedule).count("<title>") > 4


def test_other_schedules_are_refused() -> None:
    for before, after, message in (
        ("tick 4 | -     | R0    | B0", "tick 4 | -     | -     | B0", "expected R0 beside B0 at the stage above"),
        ("tick 6 | B0 U0", "tick 6 | R0 B0 U0", "expected no R without a B at the stage above"),
        ("| F0 B0 U0", "| F0 R0 B0 U0", "the head has the graph of its forward still"),
    ):
        assert before in SCHEDULE
        with pytest.raises(ScheduleError, match=message):
            validate(parse(SCHEDULE.replace(before, after)))


def test_a_micro_batch_costs_what_backpropagation_costs_as_reconstructions_are_hidden() -> None:
    for stages in (2, 3, 6):
        schedule = generate(PAREPROP, stages, 1, 1)
        assert units_per_micro_batch(schedule, overlap=True) == 3 * stages
        assert units_per_micro_batch(schedule, overlap=False) == 4 * stages - 1
    with pytest.raises(ValueError, match="PAREPROP overlaps"):  # the model of several devices has no place for it
        of_method(PAREPROP, [Cost(1, 2)] * 2, [1, 1], 3)


@pytest.mark.parametrize("method", [methods.BACKPROPAGATION, REVERSIBLE_BACKPROPAGATION, PAREPROP], ids=str)
@pytest.mark.parametrize("network", ["revnet18", "chain5"])
def test_at_most_two_graphs_are_alive_at_once(
    network: str, method: methods.Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Added up over all stages at every change; backpropagation has all at once, reversible backpropagation one."""
    stages = NETWORKS[network]()
    lock, held = threading.Lock(), [0]
    sums: list[int] = []
    add = Ledger.add

    def noted(self: Ledger, kind: str, count: int) -> None:
        if kind == "graph":
            with lock:
                held[0] += count
                sums.append(held[0])
        add(self, kind, count)

    monkeypatch.setattr(Ledger, "add", noted)
    x, y = batch()
    p = Pipeline(stages, method, optimizer=toys.sgd)
    p.step(x, y)
    per_stage = footprints(stages, method, x, y)
    prediction = graphs_at_once(per_stage, method)
    if method is PAREPROP:  # which of two is there first, and whether the other has gone, is up to the threads
        one = graphs_at_once(footprints(stages, REVERSIBLE_BACKPROPAGATION, x, y), REVERSIBLE_BACKPROPAGATION)
        assert one <= max(sums) <= prediction
        assert prediction <= 2 * one < sum(max(stage.lasting, stage.passing) for stage in per_stage)
    else:
        assert max(sums) == prediction
    with pytest.raises(ValueError, match="follow a timeline"):
        graphs_at_once(per_stage, methods.PETRA)
