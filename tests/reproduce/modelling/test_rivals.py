"""Test competing pipelines against their formulas, from made-up stage costs."""

import pytest

from petra_core import methods
from petra_core.prediction.partition import Cost
from petra_core.staleness import lockstep
from reproduce.modelling import rivals
from reproduce.modelling.full_speed import period
from reproduce.modelling.network import TimedNetwork, convert_costs
from reproduce.modelling.simulation import Link, make_schedule, simulate
from tests.reproduce.exhibits.test_table5 import cells, made_up


@pytest.fixture
def network() -> TimedNetwork:
    """Return RevNet-18 with all stages at 0.1 s forward and 0.2 s backward, with reconstructed graphs."""
    return TimedNetwork.from_rows(cells("smoke")[0], made_up([0.1] * 10)["stages"])


def test_simulation_and_arithmetic_agree_in_steady_state() -> None:
    """Without overlap, all work and the last update are in a row. In the full pipeline, the slowest stage counts."""
    costs = (Cost(1, 3, 0.5), Cost(2, 5, 0.25), Cost(0.5, 1.5, 0.25), Cost(0.25, 0.75, 0.5))
    assert period(costs, (0,) * 4) == pytest.approx(4 + 7 + 2 + 1 + 0.5)
    assert period(costs, (0,) * 4, accumulation=4) == pytest.approx(4 + 7 + 2 + 1 + 0.5 / 4)
    assert period(costs, lockstep(4)) == pytest.approx(7.25)
    messages = tuple(
        Cost(c.forward, c.backward, c.update, up, down)
        for c, up, down in zip(costs, (100, 200, 50, 0), (0, 400, 300, 100), strict=True)
    )
    link = Link(latency=0.1, bandwidth=100)
    schedule = make_schedule(methods.REVERSIBLE_BACKPROPAGATION, [1] * 4, 3)
    without_overlap = simulate(schedule, messages, link).seconds_per_micro_batch()
    assert without_overlap == pytest.approx(14.5 + (1 + 2 + 0.5) + (4 + 3 + 1) + 6 * 0.1)
    assert without_overlap == pytest.approx(period(messages, (0,) * 4, link))
    assert period(messages, lockstep(4), link) == pytest.approx(7.25), "messages travel while devices work"
    assert period(messages, lockstep(4), Link(bandwidth=20)) == pytest.approx(400 / 20), "the link is the slowest"


def test_kept_graphs_save_a_forward_and_send_less() -> None:
    """Without recomputation, a backward is shorter by a forward, and no inputs are sent down."""
    costs = [Cost(1, 3, 0, 5, 0), Cost(2, 5, 1, 7, 10), Cost(1, 2, 0, 0, 14)]
    assert convert_costs(methods.DELAYED_GRADIENTS, costs, [False, True, False]) == (
        Cost(1, 2, 0, 5, 0),
        Cost(2, 3, 1, 7, 5),
        Cost(1, 2, 0, 0, 7),
    )
    for method, down in ((methods.DSP, [0, 5, 7]), (methods.PETRA, [0, 10, 14])):
        assert [cost.down for cost in convert_costs(method, costs, [False, True, False])] == down
    noisy = convert_costs(methods.DELAYED_GRADIENTS, [Cost(3, 2), Cost(1, 2)], [True, False])
    assert noisy[0].backward == 0, "times are measured, and noisy"


def test_rivals_have_the_efficiency_of_their_formulas(network: TimedNetwork) -> None:
    """Blocks take 0.1 s and 0.1 s, but the head's backward takes 0.2 s, so the last device limits some rivals."""
    chain = rivals.make_chain(network, 10)
    assert len(chain.costs) == 20
    assert [cost.down for cost in chain.costs[:3]] == [0, 10**6, 2 * 10**6]
    keeping = chain.under(methods.DELAYED_GRADIENTS, 1)
    assert [cost.down for cost in keeping.costs[:3]] == [0, 10**6, 10**6]
    by_title = {outcome.title: outcome for outcome in rivals.compare(chain)}
    work = 20 * 0.2 + 0.1
    assert by_title["PETRA, lockstep"].efficiency == pytest.approx(work / 10 / 0.6)
    assert by_title["PETRA, asynchronous 1F1B"].efficiency == pytest.approx(work / 10 / 0.6)
    assert by_title["PipeDream (asynchronous 1F1B)"].efficiency == pytest.approx(work / 10 / 0.5)
    assert by_title["GPipe, checkpointing"].efficiency == pytest.approx(work / 10 / (0.6 * (32 + 9) / 32))
    assert by_title["GPipe"].efficiency == pytest.approx(work / 10 / ((0.4 * 9 + 0.5 * 32) / 32))
    assert by_title["Data parallelism"].efficiency == pytest.approx(1)
    # A hop holds d_j - d_{j+1} messages: in lockstep, for such narrow blocks, more than checkpoints hold.
    peaks = {title: outcome.peak for title, outcome in by_title.items()}
    assert peaks["PETRA, asynchronous 1F1B"] < peaks["1F1B, checkpointing"] < peaks["1F1B"] < peaks["GPipe"]
    assert peaks["PETRA, asynchronous 1F1B"] < peaks["PETRA, lockstep"] < peaks["1F1B"]
    assert by_title["PETRA, lockstep"].staleness == 18
    assert by_title["PETRA, asynchronous 1F1B"].staleness == by_title["PipeDream (asynchronous 1F1B)"].staleness == 9
    for outcome in by_title.values():
        assert outcome.with_4p >= outcome.efficiency - 1e-6
        assert all(share <= outcome.efficiency + 1e-6 for share in outcome.over_links.values())
