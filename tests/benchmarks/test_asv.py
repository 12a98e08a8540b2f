"""Test the suite of asv: its configuration and catalogue, and that every fast benchmark gives a number."""

import functools
import itertools
import json
import math
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import json5
import pytest
import torch
from asv import runner
from asv.config import Config
from asv.results import iter_results
from asv_runner._aux import update_sys_path
from asv_runner.benchmarks.mark import SkipNotImplemented
from asv_runner.discovery import disc_benchmarks, get_benchmark_from_name

import noxfile
from petra_core import Pipeline, Stage, ledger, methods, models
from reproduce.grids import recipes
from reproduce.measures import machine_memory
from reproduce.presentation.content import Section
from tests.conftest import ROOT
from tests.processes import Start

SUITE = ROOT / "benchmarks" / "suite"
CONFIG = ROOT / "asv.conf.json"
LINE = re.compile(
    r"^\| `(?P<name>\w+\.\w+\.\w+)` \| (?P<params>.*?) ?\| (?P<unit>.+?) \| (?P<profile>fast|full) \| ", re.M
)
CATALOGUE = {match["name"]: match for match in LINE.finditer((ROOT / "docs" / "benchmarks.md").read_text("utf-8"))}
FAST = [name for name, match in CATALOGUE.items() if match["profile"] == "fast"]
#: Settings of `asv run --quick`.
QUICK = {"number": 1, "repeat": 1, "warmup_time": 0, "rounds": 1}


@pytest.fixture(scope="module", autouse=True)
def suite_can_be_imported() -> Iterator[None]:
    before = list(sys.meta_path)
    update_sys_path(str(SUITE))
    yield
    sys.meta_path[:] = before
    for name in [name for name in sys.modules if name.split(".")[0] == SUITE.name]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def caches() -> dict[str, object]:
    """Return the results of `setup_cache` by class; asv calls it once, too."""
    return {}


@pytest.fixture(autouse=True)
def random_state_stays() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        yield


def choices(params: list[list[str]]) -> Iterator[int]:
    """Yield the numbers of some combinations of parameters that contain each value of each parameter."""
    longest = max(map(len, params), default=1)
    combinations = list(itertools.product(*(range(len(values)) for values in params)))
    for turn in range(longest):
        yield combinations.index(tuple(turn % len(values) for values in params))


def test_configuration_is_valid_for_asv() -> None:
    """Asv knows every key of the configuration, and git ignores results except those of kernels."""
    config = Config.load(str(CONFIG))
    assert json5.loads(CONFIG.read_text("utf-8"))["version"] == Config.api_version
    unknown = set(vars(config)) - set(vars(Config()))
    assert not unknown, f"asv would ignore {unknown}"
    assert (ROOT / config.benchmark_dir).samefile(SUITE)
    seconds, counts = (f"{config.results_dir}/{machine}" for machine in ("host", "kernels-avx2"))
    for made, ignored in ((config.env_dir, 0), (config.html_dir, 0), (seconds, 0), (counts, 1)):
        asked = subprocess.run(["git", "check-ignore", "-q", f"{made}/x.json"], cwd=ROOT, check=False)
        assert asked.returncode == ignored, made


def discover(found: Path) -> None:
    """Write the benchmarks that asv finds to a file, with asv's script."""
    sys.argv = [runner.BENCHMARK_RUN_SCRIPT, "discover", str(SUITE), str(found)]
    runpy.run_path(sys.argv[0], run_name="__main__")


def test_catalogue_matches_discovered_benchmarks(tmp_path: Path, start: Start) -> None:
    """The fast benchmarks are found by default, all with the full profile, each with its unit and parameters."""
    from benchmarks.suite import memory, setting

    assert [method.name for method in methods.PAPER] == setting.METHODS
    assert list(ledger.KINDS) == [*memory.KINDS, "side_bits"]  # the history has no network with side bits
    fast = list(disc_benchmarks(str(SUITE)))
    assert sorted(benchmark.name for benchmark in fast) == sorted(FAST)
    assert all(benchmark.check(str(SUITE)) for benchmark in fast)
    start(discover, tmp_path / "found.json", PETRA_BENCHMARKS="full").stderr()
    discovered = {
        benchmark["name"]: benchmark for benchmark in json.loads((tmp_path / "found.json").read_text("utf-8"))
    }
    assert sorted(discovered) == sorted(CATALOGUE)
    for name, benchmark in discovered.items():
        described = CATALOGUE[name]
        assert benchmark["unit"] == described["unit"]
        assert benchmark["param_names"] == [word.strip() for word in described["params"].split(",") if word.strip()]
        assert len(benchmark["params"]) == len(benchmark["param_names"])
        assert benchmark["version"].isdigit(), f"{name}: asv forgets its history at every edit; give it a version"


def test_history_is_independent_of_machine() -> None:
    """It contains every tracked quantity that is neither seconds nor a GPU's. The page gives the same expression."""
    kept = {name for name in CATALOGUE if re.search(noxfile.HISTORY, name)}
    tracked = {name for name in CATALOGUE if re.search(r"\.track_", name) and CATALOGUE[name]["unit"] != "seconds"}
    assert kept == tracked - {"memory.Cuda.track_peak_allocated"}
    assert noxfile.HISTORY in (ROOT / "docs" / "benchmarks.md").read_text("utf-8")


def test_committed_history_is_long_and_names_no_machine() -> None:
    """Each figure has at least twelve commits, even if early commits did not support it."""
    commits: dict[str, set[str]] = {name: set() for name in CATALOGUE if re.search(noxfile.HISTORY, name)}
    for result in iter_results(str(ROOT / "reports" / "asv" / "kernels-avx512")):
        assert {result.params[field] for field in ("os", "cpu", "num_cpu", "ram")} == {"any"}
        for name in result.get_all_result_keys():
            values = result.get_result_value(name, result.get_result_params(name))
            if all(isinstance(value, int | float) and math.isfinite(value) for value in values):
                commits[name].add(result.commit_hash)
    assert all(len(measured) >= 12 for measured in commits.values()), commits


def test_ticks_to_steady_supports_old_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the API of old commits, the number of ticks to steady state is the same."""
    from benchmarks.suite.setting import ticks_to_steady

    pipelines = [Pipeline(models.chain(3, num_classes=2, channels=2), method, seed=0) for method in methods.PAPER]
    now = [pipeline.method.ticks_to_steady(len(pipeline.stages), 1) for pipeline in pipelines]
    assert [ticks_to_steady(pipeline) for pipeline in pipelines] == now
    monkeypatch.delattr(methods.Method, "ticks_to_steady")

    def delay(method: methods.Method, stage: int, stages: int) -> int:
        return 2 * (stages - 1 - stage) if method.pipelined else 0

    monkeypatch.setattr(methods.Method, "delay", delay, raising=False)  # a method of those commits
    assert [ticks_to_steady(pipeline) for pipeline in pipelines] == now


def test_benchmarks_without_enough_memory_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.suite import setting

    monkeypatch.setattr(setting, "predicted_bytes", functools.cache(setting.predicted_bytes))

    def check(gigabytes: int | None) -> None:
        monkeypatch.setattr(machine_memory, "available", lambda _: None if gigabytes is None else gigabytes * 10**9)
        setting.check_room(setting.PAPER["revnet18"], "DELAYED_GRADIENTS", torch.device("cpu"))

    with pytest.raises(SkipNotImplemented, match="needs about 8 GB on cpu, 7 GB are available"):
        check(7)
    check(8)
    check(None)  # the system does not report it


#: Prefixes of benchmarks that measure stages of RevNet-18 by their numbers. The others measure a network of one block.
NUMBERED = ("memory.Stages.", "stage.")
DIFFERENCES = {"engine.Overhead.track_per_action"}  # of two times, which may be negative in one short round


def one_block(_: int, *, num_classes: int, width: int, stem: str = "cifar") -> list[Stage]:
    """Build a network in place of a RevNet, whose pipeline takes a while to fill."""
    del stem
    return models.chain(1, num_classes=num_classes, channels=width)


@pytest.mark.parametrize("name", FAST)
def test_fast_benchmarks_return_finite_numbers(
    name: str,
    caches: dict[str, object],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    benchmark = get_benchmark_from_name(str(SUITE), name)
    if name == "report.Report.time_build":  # drawing every figure takes long, and tests of the report do it
        monkeypatch.setattr(
            "reproduce.report.sections.section", lambda exhibit, _: Section(exhibit.key, exhibit.title, [])
        )
        monkeypatch.setattr("reproduce.exhibits.claims.judge", lambda _: [])
    if name == "training.Training.time_cell":
        recipe = recipes.cell  # of a RevNet that is trained for two epochs, twice
        monkeypatch.setattr(
            recipes,
            "cell",
            lambda scale, _, *given, **__: recipe(scale, "chain1", *given, epochs=1, drops=(), batch_size=512),
        )
    elif name == "loaders.Loaders.time_epoch":  # Numba compiles for seconds, as in the tests of `benchmarks.loaders`
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    elif not name.startswith(NUMBERED):
        monkeypatch.setattr(models, "revnet", one_block)
    if name.startswith("engine."):
        engine = sys.modules[f"{SUITE.name}.engine"]
        monkeypatch.setattr(engine, "PAIRS", 2)
        monkeypatch.setattr(engine, "tiny_stages", lambda _, tiny=engine.tiny_stages: tiny(3))
    monkeypatch.chdir(tmp_path_factory.mktemp("asv"))
    key = benchmark.setup_cache_key
    if key is not None and key not in caches:
        caches[key] = benchmark.do_setup_cache()
    for number in choices(benchmark.params):
        chosen = get_benchmark_from_name(str(SUITE), f"{name}-{number}" if benchmark.params else name, QUICK)
        chosen.set_cache(caches[key] if key is not None else None)
        try:
            if chosen.do_setup():
                assert re.search("no CUDA device|FFCV is not installed", capfd.readouterr().out)
                continue
            value = chosen.do_run()
            value = value["samples"][0] if chosen.type == "time" else value
            assert math.isfinite(value)
            assert value >= 0 or name in DIFFERENCES
        finally:
            chosen.do_teardown()


@pytest.mark.convolutions
def test_drift_separates_rounding_from_other_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On any processor, rounding is small. A setting changed by a hundredth, or another method, gives far more."""
    from benchmarks.suite import trajectories
    from benchmarks.suite.trajectories import largest_difference, losses

    assert trajectories.stored()["setting"] == {**trajectories.SETTING, "micro_batches": trajectories.MICRO_BATCHES}
    stored = trajectories.stored()["losses"]
    assert largest_difference(losses("PETRA"), stored["PETRA"]) < 1e-5
    assert largest_difference(stored["DSP"], stored["PETRA"]) > 1e-4
    monkeypatch.setitem(trajectories.SETTING, "learning_rate", 1.01 * trajectories.SETTING["learning_rate"])
    assert largest_difference(losses("PETRA"), stored["PETRA"]) > 1e-5


def test_work_without_engine_gives_engine_weights() -> None:
    """The work without the engine ends with the engine's weights after the same micro-batch."""
    from benchmarks.suite.engine import tiny_stages, work_without_engine
    from benchmarks.suite.setting import SGD

    networks = []
    for _ in range(2):
        torch.manual_seed(0)
        networks.append(tiny_stages(5))
    x, y = torch.ones(1, 1), torch.zeros(1, dtype=torch.int64)
    before = [p.detach().clone() for stage in networks[0] for p in stage.parameters()]
    Pipeline(networks[0], methods.REVERSIBLE_BACKPROPAGATION, optimizer=SGD, seed=0).step(x, y)
    work_without_engine(networks[1], x, y)()
    after = [[p.detach() for stage in stages for p in stage.parameters()] for stages in networks]
    assert any(not torch.equal(old, new) for old, new in zip(before, after[0], strict=True))
    assert all(torch.equal(one, other) for one, other in zip(*after, strict=True))
