"""Test competing pipelines against their formulas, from made-up stage costs."""

from pathlib import Path

import pytest

from petra_core import methods
from petra_core.prediction.orders import of_method
from petra_core.prediction.simulation import Cost, Link, simulate
from reproduce.modelling import rivals
from reproduce.modelling.modelled import Modelled, keeping_graphs, seconds_when_full, seconds_without_overlap
from reproduce.records import results
from tests import fake_records
from tests.reproduce.exhibits.test_table5 import cells, made_up


@pytest.fixture
def network(tmp_path: Path) -> Modelled:
    """Return RevNet-18 with all stages at 0.1 s forward and 0.2 s backward, with reconstructed graphs."""
    cell = cells("smoke")[0]
    fake_records.begin(cell, tmp_path).finish(made_up([0.1] * 10))
    (run,) = results.read(tmp_path).runs
    return Modelled(run)


def test_simulation_and_arithmetic_agree_in_the_steady_state() -> None:
    """Without overlap, all work and the last update are in a row. In the full pipeline, the slowest stage counts."""
    costs = (Cost(1, 3, 0.5), Cost(2, 5, 0.25), Cost(0.5, 1.5, 0.25), Cost(0.25, 0.75, 0.5))
    assert seconds_without_overlap(costs) == pytest.approx(4 + 7 + 2 + 1 + 0.5)
    assert seconds_without_overlap(costs, 4) == pytest.approx(4 + 7 + 2 + 1 + 0.5 / 4)
    assert seconds_when_full(costs) == pytest.approx(7.25)
    messages = tuple(
        Cost(c.forward, c.backward, c.update, up, down)
        for c, up, down in zip(costs, (100, 200, 50, 0), (0, 400, 300, 100), strict=True)
    )
    link = Link(latency=0.1, bandwidth=100)
    order = of_method(methods.REVERSIBLE_BACKPROPAGATION, messages, [1] * 4, 3)
    without_overlap = simulate(order, link).seconds_per_micro_batch()
    assert without_overlap == pytest.approx(14.5 + (1 + 2 + 0.5) + (4 + 3 + 1) + 6 * 0.1)
    assert seconds_when_full(messages, link) == pytest.approx(7.25, abs=0.01), "messages travel while devices work"
    assert seconds_when_full(messages, Link(bandwidth=20)) == pytest.approx(400 / 20, rel=0.05), (
        "the link is the slowest"
    )


def test_what_keeps_its_graph_saves_a_forward_and_sends_less() -> None:
    assert keeping_graphs([Cost(1, 3, 0, 5, 0), Cost(2, 5, 1, 7, 10), Cost(1, 2, 0, 0, 14)]) == [
        Cost(1, 2, 0, 5, 0),
        Cost(2, 3, 1, 7, 5),
        Cost(1, 2, 0, 0, 7),
    ]
    assert keeping_graphs([Cost(3, 2), Cost(1, 2)])[0].backward == 0, "times are measured, and noisy"


def test_rivals_are_as_efficient_as_their_formulas(network: Modelled) -> None:
    """Blocks take 0.1 s and 0.1 s, but the head's backward takes 0.2 s, so the last device limits some rivals."""
    chain = rivals.RivalChain(network, 10)
    assert len(chain.blocks) == 20
    assert [cost.down for cost in chain.blocks[:3]] == [0, 10**6, 2 * 10**6]
    assert [cost.down for cost in chain.blocks_keeping[:3]] == [0, 10**6, 10**6]
    by_title = {outcome.title: outcome for outcome in chain.outcomes()}
    work = 20 * 0.2 + 0.1
    assert by_title["PETRA, lockstep"].efficiency == pytest.approx(work / 10 / 0.6)
    assert by_title["PETRA, asynchronous 1F1B"].efficiency == pytest.approx(work / 10 / 0.6)
    assert by_title["PipeDream (asynchronous 1F1B)"].efficiency == pytest.approx(work / 10 / 0.5)
    assert by_title["GPipe, checkpointing"].efficiency == pytest.approx(work / 10 / (0.6 * (32 + 9) / 32))
    assert by_title["GPipe"].efficiency == pytest.approx(work / 10 / ((0.4 * 9 + 0.5 * 32) / 32))
    assert by_title["Data parallelism"].efficiency == pytest.approx(1)
    # A hop holds d_j - d_{j+1} messages: in lockstep, for such narrow blocks, more than checkpoints hold.
    of = {title: outcome.peak for title, outcome in by_title.items()}
    assert of["PETRA, asynchronous 1F1B"] < of["1F1B, checkpointing"] < of["1F1B"] < of["GPipe"]
    assert of["PETRA, asynchronous 1F1B"] < of["PETRA, lockstep"] < of["1F1B"]
    assert by_title["PETRA, lockstep"].staleness == 18
    assert by_title["PETRA, asynchronous 1F1B"].staleness == by_title["PipeDream (asynchronous 1F1B)"].staleness == 9
    for outcome in by_title.values():
        assert outcome.with_4p >= outcome.efficiency - 1e-6
        assert all(share <= outcome.efficiency + 1e-6 for share in outcome.over_links.values())
