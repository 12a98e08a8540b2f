"""Test PaReprop's order of execution, its predicted memory, and that a third graph is never alive."""

import threading
from functools import partial

import pytest
import torch

from benchmarks.pareprop import peak_of_graphs
from petra_core import Pipeline, methods, models
from petra_core.ledger import Ledger
from petra_core.methods import PAREPROP, REVERSIBLE_BACKPROPAGATION
from petra_core.prediction.memory import footprints
from tests import toys

ORDER = "F0 F0 F0 | R0 F0 B0 U0 | R0 B0 U0 | R0 B0 U0 | B0 U0"
NETWORKS = {"revnet18": partial(models.revnet, 18, width=4), "chain5": partial(models.chain, 5, channels=4)}
STAGES = "0 1 2 | 2 3 3 3 | 1 2 2 | 0 1 1 | 0 0"


def test_pareprop_executes_expected_schedule() -> None:
    """PaReprop reconstructs each stage next to the backward above."""
    p = toys.pipeline(toys.network(4), PAREPROP)
    with p.recording() as recording:
        toys.train(p, toys.batches(1))
    assert [str(action) for _, action in recording] == ORDER.replace("| ", "").split()
    assert [str(stage) for stage, _ in recording] == STAGES.replace("| ", "").split()


@pytest.mark.parametrize("method", [methods.BACKPROPAGATION, REVERSIBLE_BACKPROPAGATION, PAREPROP], ids=str)
@pytest.mark.parametrize("network", NETWORKS)
def test_at_most_two_graphs_are_alive(network: str, method: methods.Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of graphs are summed over all stages at every change.

    All graphs are alive at the same time in backpropagation, and one in reversible backpropagation.
    """
    stages = NETWORKS[network](num_classes=10)
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
    x, y = torch.randn(2, 3, 8, 8), torch.randint(0, 10, (2,))
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
