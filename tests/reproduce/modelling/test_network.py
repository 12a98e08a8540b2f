"""Test the way from stage costs to a partition, to its printed form, and to the files."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from petra_core import methods
from petra_core.prediction.partition import Cost
from reproduce.cells.kinds import CellError
from reproduce.commands import partition
from reproduce.grids import recipes
from reproduce.grids.plans import table3
from reproduce.measures import held_memory, machine_memory, stage_costs
from reproduce.modelling import network
from reproduce.modelling.peak_memory import find_peaks
from reproduce.modelling.simulation import Link
from tests.fake_records import timed_stages
from tests.messages import compare
from tests.processes import call

CELL = dataclasses.replace(
    recipes.cell("smoke", method=methods.PETRA, accumulation=2), model="chain2", stem="stride1", width=4
)


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the costs of four stages, of which the first takes as long as the others together."""
    monkeypatch.setattr(stage_costs, "time_stages", lambda *arguments: timed_stages([3.0, 1.0, 1.0, 1.0])["stages"])


def test_measured_costs_give_a_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs measured with the requested threads give a partition of all stages, and the thread count is restored."""
    timed_with = []
    time_stages = stage_costs.time_stages

    def timed(*arguments: Any) -> object:
        timed_with.append(torch.get_num_threads())
        return time_stages(*arguments)

    released: list[torch.device] = []
    monkeypatch.setattr(stage_costs, "time_stages", timed)
    monkeypatch.setattr(machine_memory, "give_back", released.append)
    before = torch.get_num_threads()
    sizes = network.balance(CELL, 2, torch.device("cpu"), threads=before + 1)
    assert (len(sizes), sum(sizes)) == (2, 4)
    assert timed_with == [before + 1]
    assert torch.get_num_threads() == before
    assert released == [torch.device("cpu")], "the allocator of a GPU kept the memory while the processes trained"


@pytest.mark.usefixtures("costs")
def test_heavy_stage_gets_a_separate_process() -> None:
    """A stage as costly as the others together gets a process, and impossible limits are refused."""
    timed = network.time_network(network.timing_cell(CELL), torch.device("cpu"))
    assert timed.costs[0] == Cost(3, 6, 0, 10**6, 0, 4000)
    assert (timed.even(2).sizes, timed.even(2).slowest) == ((2, 2), 12)
    assert timed.best(2).speedup == 2
    with pytest.raises(CellError, match="each of 5 devices needs a stage"):
        timed.best(5)
    with pytest.raises(CellError, match="stays below 10 bytes a device"):
        timed.best(2, limit=10)
    timeline = timed.simulate(timed.best(2).sizes, Link(), 40)
    assert timeline.seconds_per_micro_batch(skip=8, drop=8) == pytest.approx(9)
    for peak, bound in zip(find_peaks(timeline, timed.footprints, timed.method), timed.best(2).bytes, strict=True):
        assert 0 < peak <= bound


@pytest.mark.parametrize("method", methods.ALL, ids=lambda method: method.name)
def test_shared_footprints_equal_those_of_each_method(method: methods.Method) -> None:
    """Methods that keep the same share their footprints, and the optimizer is not asked; a prediction does both."""
    cell = dataclasses.replace(table3.held("smoke", "cifar10", "revnet18", method, 2, width=4), accumulation=32)
    assert network.predict_held(cell) == held_memory.predict_memory(cell)


@pytest.mark.usefixtures("costs")
@pytest.mark.parametrize("sizes", [(2, 2), (1, 3), (4,)])
def test_printed_pace_is_that_of_a_full_pipeline(sizes: tuple[int, ...]) -> None:
    """The printed time per micro-batch is that of a pipeline in steady state, within 2 %."""
    timed = network.time_network(network.timing_cell(dataclasses.replace(CELL, accumulation=4)), torch.device("cpu"))
    plan = dataclasses.replace(timed.even(len(sizes)), sizes=sizes)
    text = "\n".join(partition.plan_lines("it", timed, plan, Link()))
    printed = float(re.search(r"simulated: ([\d.]+) ms", text)[1]) / 1e3
    steady = timed.simulate(sizes, Link(), 800).seconds_per_micro_batch(skip=300, drop=300)
    assert printed == pytest.approx(steady, rel=0.02)


@pytest.mark.usefixtures("costs")
def test_double_buffered_weights_are_two_versions() -> None:
    """The peak memory of PipeDream-2BW contains one additional copy of the weights."""
    cell = dataclasses.replace(CELL, method="PIPEDREAM_2BW", accumulation=6)
    timed = network.time_network(network.timing_cell(cell), torch.device("cpu"))
    timeline = timed.simulate(timed.even(4).sizes, Link(), 40)
    one_version = find_peaks(timeline, timed.footprints, methods.DSP)
    two_versions = [peak + each.trainable for peak, each in zip(one_version, timed.footprints, strict=True)]
    assert list(find_peaks(timeline, timed.footprints, timed.method)) == two_versions


@pytest.mark.usefixtures("costs")
@pytest.mark.parametrize(
    "options",
    [
        "--memory-limit 1GB",
        "--threads 2",
        "--latency 4s --bandwidth 1MB/s",
        "--timing 1f1b --stages 2",
        # 9 and 9 s of work, 1 MB up, 2 down, twice the latency
        "--processes 2 --method backpropagation --bandwidth 1MB/s --latency 1s",
        "--memory-limit 0.001MB",
    ],
)
def test_partition_command_prints_plans_and_options(options: str) -> None:
    """`partition` prints even and balanced plans, the required staleness and the options to use."""
    arguments = ["partition", "--model", "chain2", "--dataset", "digits", "-k", "2", "--processes", "3"]
    result = call(*arguments, *options.split())
    compare(Path(__file__).with_name("partition.txt"), options, result.output)


def test_partition_times_the_network_that_is_trained() -> None:
    """BDIA's blocks have two streams, and a plain ViT's have one: twice the bytes between two blocks."""
    arguments = ["partition", "--model", "vit_micro2", "--repetitions", "1", "--coupling"]
    up = {}
    for coupling, called in (("own", "vit_micro2"), ("bdia", "vit_micro2-bdia")):
        lines = call(*arguments, coupling, catch_exceptions=False).output.splitlines()
        head = next(place for place, line in enumerate(lines) if line.startswith(f"{called}, width 48, "))
        up[coupling] = float(lines[head + 2].split()[-2])  # stage 0, in MB
    assert up["own"] > 0.05
    assert up["bdia"] == pytest.approx(2 * up["own"], abs=0.02)


def test_memory_limit_accepts_transformer_attention() -> None:
    """The memory prediction of a transformer does not assume the plain attention kernel."""
    network = ["--model", "revvit_micro", "--dataset", "cifar10", "--stem", "patch2", "--batch-size", "8"]
    arguments = ["partition", *network, "--processes", "2", "--memory-limit", "30MB", "--repetitions", "1"]
    # The pipeline holds 8.6 MB at its largest stage, 40.4 MB at all.
    lines = call(*arguments, code=0, catch_exceptions=False).output.splitlines()
    assert any(line.endswith("memory predicted for SGD with momentum on cpu") for line in lines)
    held = [float(line.split()[4]) for line in lines if line[:5].strip().isdigit()]
    assert 30 < sum(held) < 45


@pytest.mark.usefixtures("costs")
def test_train_passes_balanced_partition_to_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """`train --partition balanced` passes the resulting partition to every process."""
    started: list[tuple[int, list[str]]] = []
    monkeypatch.setattr(
        "reproduce.commands.train.launch",
        lambda processes, arguments, restarts: started.append((processes, arguments)) or 0,
    )
    arguments = ["train", "--model", "chain2", "--processes", "2", "--partition", "balanced"]
    monkeypatch.setattr("sys.argv", ["reproduce", *arguments])
    message = "--partition balanced is 1,3, from the measured costs of the stages"
    assert message in call(*arguments, code=0).output
    assert started == [(2, [*arguments, "--partition", "1,3"])]


def test_partition_works_with_fewer_repetitions_than_k() -> None:
    """`partition` works with fewer repetitions than the k of an update."""
    tiny = ["--model", "chain2", "--width", "2", "--dataset", "digits", "--image-size", "8", "--batch-size", "2"]
    result = call("partition", *tiny, "-k", "8", "--repetitions", "1", code=0, catch_exceptions=False)
    assert "to use this partition: --processes 2" in result.output


def test_partition_refuses_more_processes_than_stages() -> None:
    result = call("partition", "--processes", "100", code=2)
    assert "--processes 100: the network has only 10 stages" in result.output


def test_quantities_accept_units_in_any_case() -> None:
    """Memory, bandwidth and time options accept their units in any case."""
    read = [(partition.MEMORY, "8GB"), (partition.MEMORY, "1.5 gib"), (partition.BANDWIDTH, "10Gbit/s")]
    values = [parse(text) for parse, text in [*read, (partition.TIME, "50us")]]
    assert values == pytest.approx([8e9, 1.5 * 2**30, 1.25e9, 5e-5])


def test_kept_graphs_save_a_forward_and_send_less() -> None:
    """Without recomputation, a backward is shorter by a forward, and no inputs are sent down."""
    costs = [Cost(1, 3, 0, 5, 0), Cost(2, 5, 1, 7, 10), Cost(1, 2, 0, 0, 14)]
    assert network.convert_costs(methods.DELAYED_GRADIENTS, costs, [False, True, False]) == (
        Cost(1, 2, 0, 5, 0),
        Cost(2, 3, 1, 7, 5),
        Cost(1, 2, 0, 0, 7),
    )
    for method, down in ((methods.DSP, [0, 5, 7]), (methods.PETRA, [0, 10, 14])):
        assert [cost.down for cost in network.convert_costs(method, costs, [False, True, False])] == down
    noisy = network.convert_costs(methods.DELAYED_GRADIENTS, [Cost(3, 2), Cost(1, 2)], [True, False])
    assert noisy[0].backward == 0, "times are measured, and noisy"
