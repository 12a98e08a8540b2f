"""Test PaReprop's order of execution, its predicted memory, and that a third graph is never alive."""

import threading

import pytest

from benchmarks.pareprop import peak_of_graphs
from petra_core import Pipeline, methods
from petra_core.ledger import Ledger
from petra_core.methods import PAREPROP, REVERSIBLE_BACKPROPAGATION
from petra_core.prediction.memory import footprints
from tests import toys
from tests.petra_core.prediction.test_memory import NETWORKS, batch

ORDER = "F0 F0 F0 | R0 F0 B0 U0 | R0 B0 U0 | R0 B0 U0 | B0 U0"
STAGES = "0 1 2 | 2 3 3 3 | 1 2 2 | 0 1 1 | 0 0"


def test_pareprop_executes_expected_schedule() -> None:
    """PaReprop reconstructs each stage next to the backward above."""
    p = toys.pipeline(toys.network(4), PAREPROP)
    with p.recording() as recording:
        toys.train(p, toys.batches(1))
    assert [str(action) for _, action in recording] == ORDER.replace("| ", "").split()
    assert [str(stage) for stage, _ in recording] == STAGES.replace("| ", "").split()


@pytest.mark.parametrize("method", [methods.BACKPROPAGATION, REVERSIBLE_BACKPROPAGATION, PAREPROP], ids=str)
@pytest.mark.parametrize("network", ["revnet18", "chain5"])
def test_at_most_two_graphs_are_alive(network: str, method: methods.Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of graphs are summed over all stages at every change.

    All graphs are alive at the same time in backpropagation, and one in reversible backpropagation.
    """
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
    prediction = peak_of_graphs(per_stage, method)
    if method is PAREPROP:  # threads decide when each of the two graphs begins and ends
        one = peak_of_graphs(footprints(stages, REVERSIBLE_BACKPROPAGATION, x, y), REVERSIBLE_BACKPROPAGATION)
        assert one <= max(sums) <= prediction
        assert prediction <= 2 * one < sum(max(stage.lasting, stage.passing) for stage in per_stage)
    else:
        assert max(sums) == prediction
    with pytest.raises(ValueError, match="follow a timeline"):
        peak_of_graphs(per_stage, methods.PETRA)
