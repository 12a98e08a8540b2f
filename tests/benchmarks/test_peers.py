"""Test that other implementations compute the same as ours, and that missing and failing ones are reported."""

import argparse
import dataclasses
import itertools
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from benchmarks import tick
from benchmarks.peers import __main__ as peers
from benchmarks.peers import measures
from benchmarks.peers.contestants import CONTESTANTS, Contestant
from benchmarks.recording import Recorder
from reproduce.exhibits import benchmarks
from reproduce.records.benchmarks import Series
from tests.fake_records import benchmark as a_race
from tests.sections import of_benchmarks, tables

CHAIN = measures.PeerSetting("chain4", 2, 8, 2, 1)
REVNET = measures.PeerSetting("revnet18", 2, 16, 2, 1)  # contains blocks without a partner
#: Updates of running statistics per step, for the layer with most.
UPDATES = {"torch.utils.checkpoint": 2, "RevTorch": 2, "memcnn": 3, "revlib": 2}

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # memcnn uses it


@pytest.mark.parametrize("setting", [CHAIN, REVNET], ids=str)
@pytest.mark.parametrize("contestant", CONTESTANTS, ids=lambda contestant: contestant.name)
def test_contestants_match_autograd(contestant: Contestant, setting: measures.PeerSetting) -> None:
    """Every contestant has autograd's gradients and the known number of BatchNorm updates."""
    if contestant.package is not None and find_spec(contestant.package) is None:
        pytest.skip(f"{contestant.package} is not installed")
    task = measures.Task(setting)
    expected = measures.gradients(CONTESTANTS[0], task, torch.float64)
    gradients = measures.gradients(contestant, task, torch.float64)
    assert float((gradients - expected).norm() / expected.norm()) < 1e-12
    assert measures.batch_norm_updates(contestant, task) == UPDATES.get(contestant.name, 1)


@pytest.mark.parametrize("contestant", CONTESTANTS, ids=lambda contestant: contestant.name)
def test_peak_of_contestants_is_above_bytes_at_loss(contestant: Contestant) -> None:
    if contestant.package is not None and find_spec(contestant.package) is None:
        pytest.skip(f"{contestant.package} is not installed")
    peak, at_loss = measures.measure_allocations(contestant, CHAIN)
    assert 0 < at_loss < peak


def breaks(stages) -> nn.Module:
    raise AttributeError("gone from torch")


def test_missing_and_failing_peers_have_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, ours = CONTESTANTS[0], CONTESTANTS[-1]
    absent = dataclasses.replace(plain, name="absent", package="no_such_package")
    broken = dataclasses.replace(plain, name="broken", made_of=breaks, package="numpy")
    monkeypatch.setattr(peers, "CONTESTANTS", (plain, absent, broken, ours))
    benchmark = peers.main(["--quick", "--threads", "1", "--memory-formats", "channels-last"])
    table = tables(of_benchmarks(benchmarks.EXHIBIT, benchmark))[-1]
    rows = {row[1].text: row[1:] for row in table.rows}
    assert rows["absent"][1].text == "not installed"
    assert rows["broken"][1].text.endswith("failed with AttributeError: gone from torch")
    assert {s.quantity for s in benchmark.series} >= {*peers.COSTS, peers.UPDATES} - {"process peak"}


def test_findings_begin_with_faster_peers() -> None:
    def both_series(name: str, seconds: float, updates: float, once: float | None = None) -> list[Series]:
        costs = Series("chain", name, peers.TIME, "s", (seconds, seconds, once or seconds))
        return [costs, Series("chain", name, peers.UPDATES, "a step", (updates,))]

    names = {
        "autograd": (0.010, 1),
        "fast": (0.015, 2),
        "luckier": (0.019, 1, 0.022),
        "ours, PETRA": (0.020, 1),
        "ours, other": (0.012, 1),
    }
    series = tuple(one for name, values in names.items() for one in both_series(name, *values))
    setting = {"contestants": "; ".join([*names, "absent"])}
    ahead, nobody, who = peers.complete(dataclasses.replace(a_race(), series=series, setting=setting)).findings
    assert ahead == "Ahead of ours, PETRA, upper quartile included, of whose value they need: chain, time: fast (0.75)."
    assert nobody == "Ahead of ours, other, upper quartile included: nobody, on any network measured."
    assert who.startswith("Peers: 2 other implementations of")
    assert who.endswith("More than one BatchNorm update a step: fast (2).")


def test_rounds_alternate_order_of_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, ours = CONTESTANTS[0], CONTESTANTS[-1]
    monkeypatch.setattr(peers, "CONTESTANTS", (plain, ours))
    turns = itertools.count(1)
    monkeypatch.setattr(tick, "time_call", lambda *_: next(turns))
    recorder = Recorder("Peers", "", "", argparse.Namespace(record=None, records=None))
    recorder.setting |= {contestant.name: peers.state(contestant) for contestant in (plain, ours)}
    peers.measure(CHAIN, recorder, 2, first=False)
    times = {series.name: series.values for series in recorder.finish().series if series.quantity == peers.TIME}
    assert times == {plain.name: (1, 4), ours.name: (2, 3)}
