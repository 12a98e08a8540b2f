"""Test the plan: every cell is counted once, and hours are sums of known times."""

from types import SimpleNamespace

import pytest

from petra_core.methods import BACKPROPAGATION, PAPER, PETRA
from reproduce.grids import recipes
from reproduce.records import locks
from reproduce.records.locks import Holder
from reproduce.records.record import State, Status
from reproduce.running.planning import Item, listing, table
from tests.fake_records import complexity_cell
from tests.messages import OUTPUTS, compare

NOT_RUN = State(Status.NOT_RUN, 0, 300)
DONE = State(Status.DONE, 300, 300)
PARTIAL = State(Status.PARTIAL, 41, 300)
DIVERGED = State(Status.FAILED, 3, 300, "diverged")
ALIVE = Holder("alpha", 12, 1000.0)
GONE = Holder("beta", 34, 100.0, gone=True)


def cell(method=PETRA, k=1, seed=0, network="revnet18"):
    return recipes.cell("paper", network, method, k, seed)


@pytest.fixture(autouse=True)
def now(monkeypatch):
    """Set the clock to four seconds after the last heartbeat of `ALIVE`."""
    monkeypatch.setattr(locks, "time", SimpleNamespace(time=lambda: 1004.0))


#: Cells, the number of workers and a name of the plan.
PLANS = [
    (
        [
            Item(cell(PETRA, 1, 0), DONE, 0.0),
            Item(cell(PETRA, 4, 0), DIVERGED, 0.0),
            Item(cell(BACKPROPAGATION, 4, 1), PARTIAL, 120.0),
            Item(cell(BACKPROPAGATION, 4, 2), PARTIAL, 1800.0, ALIVE),
            Item(cell(PETRA, 4, 2), NOT_RUN, 5400.0),
            Item(cell(PETRA, 1, 2), None, problem="result.json: is damaged"),
        ],
        1,
        "cells in all states",
    ),
    ([Item(cell(seed=0), NOT_RUN, 3600.0), Item(cell(seed=1), NOT_RUN, 7200.0)], 1, "known times"),
    ([Item(cell(seed=0), NOT_RUN, 3600.0), Item(cell(seed=1), NOT_RUN, 7200.0)], 8, "known times and eight workers"),
    ([Item(cell(seed=0), NOT_RUN, 3600.0), Item(cell(seed=1), NOT_RUN, None)], 1, "a known and an unknown time"),
    ([Item(cell(seed=seed), NOT_RUN, None) for seed in range(2)], 4, "unknown times"),
    ([Item(cell(), NOT_RUN), Item(cell(BACKPROPAGATION, network="resnet18"), NOT_RUN)], 1, "two networks"),
    ([Item(complexity_cell(method), NOT_RUN) for method in PAPER], 1, "another kind and many methods"),
    ([Item(cell(), PARTIAL, 3600.0, GONE)], 1, "a stale lock"),
    ([Item(cell(), PARTIAL, 3600.0, ALIVE)], 1, "nothing is left"),
    ([Item(cell(), NOT_RUN, 3600.0)], 1, "without empty columns"),
]


@pytest.mark.parametrize(("items", "workers", "name"), PLANS, ids=[name for *_, name in PLANS])
def test_plan_and_list_of_cells(items, workers, name):
    """The plan has one line per network, counts every state, and adds known times; the list has a line per cell."""
    plan = {"table2": items}
    compare(OUTPUTS, f"plan: {name}", f"{table(plan, workers)}\n{listing(plan, 1)}")
