"""Test four independent counts of the same buffers: held, predicted, by the published rule, and in the process."""

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from petra_core import methods
from petra_core.methods import Method
from petra_core.staleness import lockstep
from reproduce.cells.kinds import MemoryCell
from reproduce.cells.networks import HELD
from reproduce.grids.plans import table3
from reproduce.grids.plans.table4 import METHODS
from reproduce.measures import held_memory, machine_memory
from reproduce.measures.context import Context, Stopped
from reproduce.measures.held_memory import measure, predict_memory
from reproduce.measures.machine_memory import Witness
from reproduce.modelling.buffer_rules import COUNTED, PUBLISHED_RULE, memory, revnet_sizes
from reproduce.records.record import Record, Status
from reproduce.running.execution import execute

pytestmark = pytest.mark.convolutions

CPU = torch.device("cpu")


def cell(method: Method = methods.PETRA, **changes: Any) -> MemoryCell:
    """Return a cell of RevNet-18, 4 channels wide, on CIFAR-10's shapes at batch 2."""
    (planned,) = [c for c in table3.cells("smoke") if isinstance(c, MemoryCell) and c.method == "PETRA"]
    return replace(planned, method=method.name, **changes)


def result(wanted: MemoryCell, root: Path) -> dict[str, Any]:
    record = Record.for_cell(wanted, root)
    state = execute(record, Context())
    assert state.status is Status.DONE, state
    values = record.read().result
    assert values is not None
    return values


PUBLISHED = [(method, 1) for method in METHODS]
ACCUMULATED = [(m, 3) for m in (methods.BACKPROPAGATION, methods.REVERSIBLE_BACKPROPAGATION, methods.DELAYED_GRADIENTS)]


@pytest.mark.parametrize(("method", "accumulation"), PUBLISHED + ACCUMULATED, ids=str)
def test_every_buffer_reaches_its_predicted_size(method: Method, accumulation: int, tmp_path: Path) -> None:
    """For every method, the peak of every stage and kind of buffer equals its prediction."""
    wanted = cell(method, accumulation=accumulation)
    rows = result(wanted, tmp_path)["rows"]
    assert len(rows) == 10 * len(HELD)
    for row in rows:
        assert row["peak"] == row["predicted"], row
    if accumulation == 1:
        assert_differs_from_rule_by_four_known_terms(wanted, rows)


@pytest.mark.slow
def test_largest_network_differs_from_rule_by_four_known_terms(tmp_path: Path) -> None:
    wanted = cell(model="revnet50")
    assert_differs_from_rule_by_four_known_terms(wanted, result(wanted, tmp_path)["rows"])


BATCH_COUNTER = 8  # bytes of num_batches_tracked, an integer that the rule does not count


def assert_differs_from_rule_by_four_known_terms(wanted: MemoryCell, rows: list[dict[str, Any]]) -> None:
    """Assert that measured memory equals the published rule plus stem inputs, streams and norm counters."""
    method = methods.by_name(wanted.method)
    sizes = revnet_sizes(int(wanted.model.removeprefix("revnet")), "cifar10", wanted.batch_size, wanted.width)
    norms = {size.stage: 0 for size in sizes}
    for row in rows:
        if row["kind"] == "buffers":
            norms[row["stage"]] = row["peak"] - sizes[row["stage"]].statistics
    assert all(extra % BATCH_COUNTER == 0 for extra in norms.values())
    stem, head = sizes[0], sizes[-1]
    reversible = [size for size in sizes[1:-1] if not size.buffered]
    images = lockstep(len(sizes))[0] * sum(stem.streams) if method.reconstructs else 0  # the rule leaves these out
    rebuilt = sum(size.streams[0] for size in reversible) if method.reconstructs else 0  # a message, not kept
    expected = memory(sizes, method, PUBLISHED_RULE) + images - rebuilt + head.streams[1] + sum(norms.values())
    assert sum(row["peak"] for row in rows if row["kind"] in COUNTED) == expected


def test_process_growth_is_close_to_the_ledger(tmp_path: Path) -> None:
    """The process grows by 0.6 to 1.6 times the bytes that the ledger counts."""
    if Witness(CPU).report() is None:
        pytest.skip("this system does not tell a process how large it is")
    wanted = cell(methods.DSP, width=16, batch_size=48)
    values = result(wanted, tmp_path)
    accounted = sum(row["held"] for row in values["rows"])
    assert accounted > 100e6
    assert values["process"]["source"] == "resident set"
    # Shared tensors count twice in the ledger; workspaces of kernels count only in the process.
    assert 0.6 * accounted < values["process"]["held"] < 1.6 * accounted
    assert values["process"]["peak"] >= values["process"]["held"]


def test_too_large_cell_is_refused_before_allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that does not fit by prediction fails with out of memory before it allocates."""
    monkeypatch.setattr(held_memory, "available", lambda device: 10_000_000)
    wanted = cell(width=16, batch_size=64)
    needed = sum(stage.total for stage in predict_memory(wanted))
    assert needed > 10_000_000
    monkeypatch.setattr(held_memory, "synthetic", None)  # using it would raise another error
    state = execute(Record.for_cell(wanted, tmp_path), Context())
    assert (state.status, state.reason) == (Status.FAILED, "out of memory")
    assert f"would hold {needed:,} bytes by prediction, and 10,000,000 are free" in state.detail
    monkeypatch.undo()
    with pytest.raises(Stopped, match=f"stopped after 0 of {methods.PETRA.ticks_to_steady(10, 1)} ticks"):
        measure(cell(), Record.for_cell(cell(), tmp_path), Context(should_stop=lambda: True))


def test_garbage_is_collected_before_free_memory_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage of the previous cell is collected before the free memory is read."""

    class Ring:
        """Garbage that only the collector finds, as hooks and exceptions leave it."""

        def __init__(self) -> None:
            self.itself = self

    seen: list[Ring | None] = []
    gc.disable()
    try:
        left = weakref.ref(Ring())
        monkeypatch.setattr(machine_memory, "_left_in_group", lambda: seen.append(left()))
        result(cell(), tmp_path)
    finally:
        gc.enable()
    assert seen == [None]


def test_largest_row_is_predicted_without_allocation() -> None:
    """The memory of the largest published row is predicted with less than 1 GB of growth."""
    settings = {"dataset": "imagenet", "image_size": 224, "model": "revnet50", "stem": "imagenet", "width": 64}
    before = Witness(CPU)
    stages = predict_memory(cell(methods.DELAYED_GRADIENTS, batch_size=64, **settings))
    assert sum(stage.total for stage in stages) > 100e9
    grown = before.report()
    assert grown is None or grown["peak"] < 1e9
