"""Test Tables 3 and 6: deviations from published and predicted values."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from reproduce.cells.kinds import MemoryCell
from reproduce.exhibits import table3
from reproduce.grids.plans import PLANS
from reproduce.grids.plans.table4 import METHODS
from reproduce.modelling.buffer_rules import CONSISTENT_RULE
from reproduce.presentation.content import Role
from tests import fake_records, sections

#: GB by the published rule for RevNet-50 and ImageNet, before rounding.
BY_RULE = dict(zip((method.name for method in METHODS), (44.45, 43.58, 21.20, 20.33), strict=True))


def planned(exhibit: str, scale: str, **settings: object) -> list[MemoryCell]:
    """Return the planned cells with these settings."""
    cells = [c for c in PLANS[exhibit](scale) if isinstance(c, MemoryCell)]
    return [c for c in cells if all(getattr(c, name) == value for name, value in settings.items())]


def finish(
    wanted: MemoryCell, root: Path, size: float, *, more: Sequence[float] = (0.0,) * 10, process: float | None = None
) -> None:
    """Write a record in which the stages hold as many bytes as predicted, and `more`."""
    rows: list[dict[str, Any]] = [
        {"stage": j, "kind": "inputs", "held": size, "peak": size + rest, "predicted": size}
        for j, rest in enumerate(more)
    ]
    growth = None if process is None else {"source": "resident set", "held": process, "peak": process}
    result = {"stages": 10, "ticks": 1, "rows": rows, "at_once": 9 * size, "process": growth}
    fake_records.begin(wanted, root).finish(result)


@sections.situation(table3.EXHIBIT)
def published_rows_agree_and_one_is_out_of_memory(root: Path) -> None:
    """The memory held agrees with the published rows; the row that has not been measured is marked, and not drawn."""
    for wanted in planned("table3", "paper", dataset="imagenet", model="revnet50"):
        if wanted.method == METHODS[0].name:
            fake_records.begin(wanted, root).fail("out of memory", "memory-x would hold 215 bytes")
        else:
            finish(wanted, root, 1e8 * BY_RULE[wanted.method])


@sections.situation(table3.EXHIBIT, "table3-held-")
def published_rows_differ(root: Path) -> None:
    """A tenth of a gigabyte more than each published row disagrees."""
    for wanted in planned("table3", "paper", dataset="imagenet", model="revnet50"):
        finish(wanted, root, 1e8 * (BY_RULE[wanted.method] + 0.1))


@sections.situation(table3.EXHIBIT, "table3-held-")
def savings_and_a_deviation_at_small_batches(root: Path) -> None:
    """Savings compare the same network and batch. A deviation of one byte from the prediction is an alert."""
    sizes = dict(zip((method.name for method in METHODS), (8e6, 6e6, 3e6, 2e6), strict=True))
    for wanted in planned("table3", "small", dataset="cifar10", model="revnet18"):
        if wanted.batch_size == 2:
            finish(wanted, root, sizes[wanted.method], process=11 * sizes[wanted.method])
        elif wanted.method == "PETRA":  # at the paper's batch, where delayed gradients are not planned
            finish(wanted, root, 64e6, more=[j == 3 for j in range(10)])


def test_deviating_published_rows_are_an_alert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Published rows that the rule does not reproduce make the finding an alert."""
    monkeypatch.setattr("reproduce.modelling.buffer_rules.PUBLISHED_RULE", CONSISTENT_RULE)
    finding = sections.made(table3.EXHIBIT, tmp_path).findings[0]
    assert finding.role is Role.ALERT
    assert "0 of 4 published rows" in finding.text
