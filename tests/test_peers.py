"""Other implementations compute what ours does; whoever is not there or fails is told of."""

import argparse
import dataclasses
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from benchmarks.peers import __main__ as peers
from benchmarks.peers import measures
from benchmarks.peers.contestants import CONTESTANTS, Contestant
from reproduce.tables import benchmark_peers

TINY = argparse.Namespace(depth=4, width=2, pixels=4, batch=2, threads=1)
#: Updates of running statistics in a step, of the layer with most.
UPDATES = {"torch.utils.checkpoint": 2, "RevTorch": 2, "memcnn": 3, "revlib": 2}

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # memcnn uses it


@pytest.fixture(autouse=True)
def _same_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("contestant", CONTESTANTS, ids=lambda contestant: contestant.name)
def test_every_contestant_has_autograds_gradients(contestant: Contestant) -> None:
    if contestant.package is not None and find_spec(contestant.package) is None:
        pytest.skip(f"{contestant.package} is not installed")
    chain = measures.Chain(TINY)
    expected = measures.gradients(CONTESTANTS[0], chain, torch.float64)
    found = measures.gradients(contestant, chain, torch.float64)
    assert float((found - expected).norm() / expected.norm()) < 1e-12
    assert measures.batch_norm_updates(contestant, chain) == UPDATES.get(contestant.name, 1)
    peak, at_loss = measures.allocated(contestant, TINY)
    assert 0 < at_loss < peak


def breaks(stages) -> nn.Module:
    raise AttributeError("gone from torch")


def test_whoever_is_absent_or_fails_is_a_row_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, ours = CONTESTANTS[0], CONTESTANTS[-1]
    absent = dataclasses.replace(plain, name="absent", package="no_such_package")
    broken = dataclasses.replace(plain, name="broken", made_of=breaks, package="numpy")
    monkeypatch.setattr(peers, "CONTESTANTS", (plain, absent, broken, ours))
    benchmark = peers.main(["--quick", "--threads", "1"])
    table = benchmark_peers.blocks(benchmark)[0]
    rows = {row[0].text: row for row in table.rows}
    assert rows["absent"][1].text == "not installed"
    assert rows["broken"][1].text.endswith("failed with AttributeError: gone from torch")
    assert all(value.value >= 0 for name in (plain.name, ours.name) for value in rows[name][2:] if value.value)
    assert {s.quantity for s in benchmark.series} >= {q.name for q in benchmark_peers.QUANTITIES} - {"process peak"}


def test_an_odd_number_of_blocks_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        peers.main(["--depth", "3"])
    assert "--depth is 3, expected an even number" in capsys.readouterr().err
