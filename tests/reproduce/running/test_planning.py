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

NOT_RUN = State(Status.NOT_RUN, 0, 300)
DONE = State(Status.DONE, 300, 300)
PARTIAL = State(Status.PARTIAL, 41, 300)
DIVERGED = State(Status.FAILED, 3, 300, "diverged")
ALIVE = Holder("alpha", 12, 1000.0)
GONE = Holder("beta", 34, 100.0, gone=True)


def cell(method=PETRA, k=1, seed=0, network="revnet18"):
    return recipes.cell("paper", network, method, k, seed)


def plan(*items):
    return {"table2": items}


def entries(text, start):
    return next(line for line in text.splitlines() if line.strip().startswith(start)).split()


@pytest.fixture(autouse=True)
def now(monkeypatch):
    """Set the clock to four seconds after the last sign of life of `ALIVE`."""
    monkeypatch.setattr(locks, "time", SimpleNamespace(time=lambda: 1004.0))


def test_plan_has_one_line_per_network_with_all_counts():
    """The plan has one line per network with the number of cells in every state and the remaining time."""
    items = [
        Item(cell(PETRA, 1, 0), DONE, 0.0),
        Item(cell(PETRA, 4, 0), DIVERGED, 0.0),
        Item(cell(BACKPROPAGATION, 4, 1), PARTIAL, 1800.0),
        Item(cell(BACKPROPAGATION, 4, 2), PARTIAL, 1800.0, ALIVE),
        Item(cell(PETRA, 4, 2), NOT_RUN, 5400.0),
        Item(cell(PETRA, 1, 2), None, problem="result.json: is damaged"),
    ]
    text = table(plan(*items))
    head, row = entries(text, "data set"), entries(text, "cifar10")
    assert head[-8:] == ["done", "failed", "partial", "locked", "not", "run", "unreadable", "left"]
    assert " ".join(row) == "cifar10 revnet18 w64 petra, backpropagation 1,4 0,1,2 6 1 1 1 1 1 1 2.0 h"
    assert (
        "LOCKED cifar10-revnet18-w64-backpropagation-k4-s2 by process 12 on alpha (last sign of life 4 s ago)" in text
    )
    assert "PROBLEM cifar10-revnet18-w64-petra-k1-s2: result.json: is damaged" in text


@pytest.mark.parametrize(
    ("seconds", "workers", "entry", "words"),
    [
        ((3600.0, 7200.0), 1, "3.0 h", "Left: 2 cells, 3.0 h of one worker, at the speeds"),
        ((3600.0, 7200.0), 8, "3.0 h", "1.5 h with 2 workers"),
        ((3600.0, None), 1, "at least 60 min", "at least 60 min of one worker, at the speeds recorded on this device;"),
        ((None, None), 4, "unknown", "Left: 2 cells; the time of all of them is unknown: no comparable run"),
    ],
)
def test_remaining_hours_are_sums_of_known_times(seconds, workers, entry, words):
    """The remaining time is the sum of known times, a lower bound, or unknown."""
    items = [Item(cell(seed=seed), NOT_RUN, time) for seed, time in enumerate(seconds)]
    text = table(plan(*items), workers)
    assert next(line for line in text.splitlines() if line.startswith("  cifar10")).endswith(entry)
    assert words in text


def test_plan_separates_networks_and_kinds_and_names_stale_locks():
    """Networks and kinds have separate lines, and a cell with a stale lock counts as remaining."""
    text = table(plan(Item(cell(), NOT_RUN), Item(cell(network="resnet18", method=BACKPROPAGATION), NOT_RUN)))
    assert entries(text, "cifar10")[1] == "revnet18"
    assert "resnet18 w64" in text
    measured = table(plan(*(Item(complexity_cell(method), NOT_RUN) for method in PAPER)))
    assert "chain3 w4 (complexity)" in measured
    assert f"{len(PAPER)} methods" in measured
    text = table(plan(Item(cell(), PARTIAL, 3600.0, GONE)))
    assert "Left: 1 cell, 60 min" in text
    assert "STALE LOCK on cifar10-revnet18-w64-petra-k1-s0, left by process 34 on beta" in text
    assert "Nothing is left to run." in table(plan(Item(cell(), PARTIAL, 3600.0, ALIVE)))


def test_listing_names_every_cell_with_its_state():
    """The listing contains every cell with its state and remaining time."""
    items = [
        Item(cell(seed=0), DONE, 0.0),
        Item(cell(seed=1), PARTIAL, 120.0),
        Item(cell(seed=2), NOT_RUN, None),
        Item(cell(k=2), PARTIAL, 120.0, ALIVE),
        Item(cell(k=4), None, problem="damaged"),
        Item(cell(k=8), DIVERGED, 0.0),
    ]
    lines = listing(plan(*items)).splitlines()
    assert lines[0] == "table2:"
    assert [line.partition(": ")[0].strip() for line in lines[1:7]] == [item.cell.name for item in items]
    assert [line.partition(": ")[2] for line in lines[1:7]] == [
        "done",
        "41 of 300 epochs, 2 min left",
        "not run, time unknown",
        "41 of 300 epochs, locked by process 12 on alpha (last sign of life 4 s ago)",
        "unreadable",
        "diverged (epoch 4 of 300)",
    ]


def test_empty_columns_are_left_out():
    text = table(plan(Item(cell(), NOT_RUN, 3600.0)))
    assert " ".join(text.splitlines()[0].split()) == "data set network methods k seeds cells not run left"
