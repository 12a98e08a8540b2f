"""PETRA against torch.distributed.pipelining on the same network and processes.

All methods train the same network on the same micro-batches and update after every n of them. They are PETRA over
two processes, also with its stages merged to two (less staleness); GPipe and 1F1B of torch.distributed.pipelining with
plain autograd; and both with torch.utils.checkpoint around every stage, the comparison at similar memory. Two
references show the limits of the machine: two independent copies of PETRA in a process each, and one process without
others. All processes have one thread, and messages use Gloo. Every method gets the cut that is best for its costs,
measured in the same run.

Methods are measured in turn, in rounds, and compared within a round. A PETRA pipeline stays full between its turns,
as in training. Memory is the largest resident set of each process, minus that before the network was made. Before
anything is timed, the gradients of GPipe and 1F1B are compared with those of plain autograd. Usage with the defaults of
the project's claim:

    python -m benchmarks.pipelining --networks chain10 revnet18 --width 32 --batch 16 --micro-batches 4 --rounds 7
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.arguments import add_networks, add_quick, count, network, parse_quick, positive
from benchmarks.recording import Recorder, about, add_options, command
from benchmarks.teams import BenchmarkTeam, Serve, peak_memory
from benchmarks.tick import sgd
from petra_core import Pipeline, Stage, merge, methods, models
from petra_core.distributed import ProcessChannel
from petra_core.methods import Method
from petra_core.prediction.measuring import StageAlone, feeds
from petra_core.prediction.partition import find_partition
from petra_core.settings import Settings
from petra_core.tape import as_streams, as_value
from reproduce.records.benchmarks import PEAK_OF_ALL, THROUGHPUT, Benchmark, Comparison

TITLE = "PETRA against torch.distributed.pipelining"
PROCESSES = 2
LARGEST = "peak memory, largest process"
TURNS = 5  # timings of a stage to find the cut
CHECKED = 2  # images per micro-batch in the comparison of gradients
TOLERANCE = 1e-3  # of float32 gradients, relative to the largest entry of a tensor

Batch = Callable[[], object]  # trains one batch of n micro-batches in this process


Cut = tuple[int, ...]  # stages of each process


@dataclass(frozen=True)
class PipeliningSetting:
    """Network and micro-batches that all contestants share.

    Attributes:
        network: Name of the network (`benchmarks.arguments.network`).
        width: Channels of its first stage.
        batch: Images per micro-batch.
        size: Side of an image in pixels.
        micro_batches: Number n of micro-batches per batch, that is per update.

    """

    network: str
    width: int
    batch: int
    size: int
    micro_batches: int

    def stages(self) -> list[Stage]:
        """Build the stages of the network, with equal weights in all processes."""
        torch.manual_seed(0)
        return network(self.network, self.width)

    def data(self) -> tuple[Tensor, Tensor]:
        """Return images and labels of a batch."""
        generator = torch.Generator().manual_seed(1)
        images = torch.randn(self.micro_batches * self.batch, 3, self.size, self.size, generator=generator)
        return images, torch.randint(10, (len(images),), generator=generator)

    def micro(self) -> list[tuple[Tensor, Tensor]]:
        """Return the micro-batches of a batch."""
        images, labels = self.data()
        return list(zip(images.split(self.batch), labels.split(self.batch), strict=True))

    def pipeline(self, method: Method, cut: Cut | None, stages: list[Stage] | None = None, **settings: Any) -> Pipeline:
        """Make a pipeline over the processes of the group, or in this process without a cut."""
        stages, channel = stages or self.stages(), None
        if cut is not None and len(cut) > 1:
            channel = ProcessChannel(cut)
            stages = [stage if index in channel.stages else stage.to("meta") for index, stage in enumerate(stages)]
        return Pipeline(stages, method, optimizer=sgd, seed=0, channel=channel, **settings)

    def stages_alone(self, method: Method, own_stages: range | None = None) -> list[StageAlone]:
        """Make stages that work without their neighbours; None for all."""
        stages = self.stages()
        arriving = feeds(stages, method, *self.micro()[0])
        settings = Settings(method=method, seed=0)
        return [
            StageAlone(
                stages[index],
                index,
                settings,
                arriving[index],
                waiting=min(settings.vector(len(stages))[index], 1),
                optimizer=sgd,
            )
            for index in own_stages or range(len(stages))
        ]


def petra(setting: PipeliningSetting, rank: int, cut: Cut | None, *, merged: bool = False) -> Batch:
    """Make PETRA over all processes of the group, or without a cut in each process separately."""
    stages = setting.stages()
    if merged and cut is not None:
        stages, cut = [merge(stages[: cut[0]]), merge(stages[cut[0] :])], (1,) * PROCESSES
    pipeline = setting.pipeline(methods.PETRA, cut, stages, accumulation=setting.micro_batches)
    micro = setting.micro()

    def train() -> None:
        for images, labels in micro:
            pipeline.step(images, labels)

    for _ in range(-(-2 * len(stages) // len(micro))):
        train()  # fill the pipeline
    return train


class Dense(torch.autograd.Function):
    """Identity with a contiguous gradient, as Gloo requires. The head's gradient is an expanded tensor."""

    @staticmethod
    def forward(ctx: object, stream: Tensor) -> Tensor:  # type: ignore[override]  # torch declares Any
        del ctx
        return stream.view_as(stream)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]  # torch declares Any
        del ctx
        return gradient.contiguous()


class Portion(nn.Module):
    """The stages of one process as one module for torch.distributed.pipelining, with streams as arguments."""

    def __init__(self, stages: Sequence[Stage], *, checkpointing: bool) -> None:
        super().__init__()
        self.parts = models.sequential(stages)
        self._checkpointing = checkpointing

    def forward(self, *streams: Tensor) -> Tensor | tuple[Tensor, ...]:
        value = as_value(tuple(Dense.apply(stream) for stream in streams))
        for part in self.parts:
            if self._checkpointing:  # no dropout, so no random state to preserve
                value = checkpoint(part, value, use_reentrant=False, preserve_rng_state=False)
            else:
                value = part(value)
        return value if isinstance(value, Tensor) else tuple(stream.contiguous() for stream in as_streams(value))


def synchronous(
    setting: PipeliningSetting, rank: int, cut: Cut, *, kind: str, checkpointing: bool
) -> tuple[Portion, Batch]:
    """Make GPipe or 1F1B: this process's module, and a function that computes the mean gradient of a batch in it."""
    stages = setting.stages()
    portion = stages[: cut[0]] if rank == 0 else stages[cut[0] :]
    module = Portion(portion, checkpointing=checkpointing)
    stage = PipelineStage(module, rank, PROCESSES, torch.device("cpu"))
    schedule = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[kind](
        stage, setting.micro_batches, loss_fn=F.cross_entropy
    )
    images, labels = setting.data()
    if rank == 0:
        return module, lambda: schedule.step(images)
    return module, lambda: schedule.step(target=labels)


def pipelined(setting: PipeliningSetting, rank: int, cut: Cut, *, kind: str, checkpointing: bool = False) -> Batch:
    """Make GPipe or 1F1B with updates."""
    module, gradients = synchronous(setting, rank, cut, kind=kind, checkpointing=checkpointing)
    optimizer = sgd(list(module.parameters()))

    def train() -> None:
        optimizer.zero_grad()
        gradients()
        optimizer.step()

    train()
    return train


def autograd(setting: PipeliningSetting, rank: int, cut: Cut | None) -> Batch:
    """Make autograd in one process, with accumulated gradients of the micro-batches."""
    del rank, cut
    model = models.sequential(setting.stages())
    optimizer = sgd(list(model.parameters()))
    micro = setting.micro()

    def train() -> None:
        optimizer.zero_grad()
        for images, labels in micro:
            (F.cross_entropy(model(images), labels) / len(micro)).backward()
        optimizer.step()

    train()
    return train


@dataclass(frozen=True)
class PipelineContestant:
    """One way to train over the processes.

    Attributes:
        name: Name in tables.
        make: (setting, rank, cut) -> function that trains one batch.
        costs: Method whose costs determine the cut, or None if every process has the whole network.
        processes: Number of processes.

    """

    name: str
    make: Callable[..., Batch]
    costs: Method | None
    processes: int = PROCESSES


PETRA, COPIES = (
    PipelineContestant("PETRA", petra, methods.PETRA),
    PipelineContestant("two copies of PETRA", petra, None),
)
GPIPE, ONE_F_ONE_B = partial(pipelined, kind="gpipe"), partial(pipelined, kind="1f1b")
CONTESTANTS = (
    PETRA,
    PipelineContestant("PETRA, merged to J = 2", partial(petra, merged=True), methods.PETRA),
    PipelineContestant("GPipe, checkpointing", partial(GPIPE, checkpointing=True), methods.DSP),
    PipelineContestant("1F1B, checkpointing", partial(ONE_F_ONE_B, checkpointing=True), methods.DSP),
    PipelineContestant("GPipe", GPIPE, methods.BACKPROPAGATION),
    PipelineContestant("1F1B", ONE_F_ONE_B, methods.BACKPROPAGATION),
    COPIES,
    PipelineContestant("PETRA, one process", petra, None, processes=1),
    PipelineContestant("autograd, one process", autograd, None, processes=1),
)


def serving(rank: int, contestant: PipelineContestant, setting: PipeliningSetting, cut: Cut | None) -> Serve:
    """Make a contestant in one of its processes, warmed up and ready to be timed."""
    before = peak_memory()
    train = contestant.make(setting, rank, cut)
    train()

    def serve(batches: int) -> tuple[float, int]:
        """Return the seconds of a number of batches from a common start, and the peak bytes so far."""
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(batches):
            train()
        seconds = time.perf_counter() - begin
        dist.barrier()
        return seconds, peak_memory() - before

    return serve


def gradient_error(rank: int, setting: PipeliningSetting, cut: Cut) -> Serve:
    """Compare the gradients of pipelines with those of plain autograd, in each process."""

    def serve(kind: str, checkpointing: bool) -> float:
        module, gradients = synchronous(setting, rank, cut, kind=kind, checkpointing=checkpointing)
        gradients()
        stages = setting.stages()
        model = models.sequential(stages)
        for images, labels in setting.micro():
            (F.cross_entropy(model(images), labels) / setting.micro_batches).backward()
        portion = models.sequential(stages[: cut[0]] if rank == 0 else stages[cut[0] :])
        errors = []
        for ours, theirs in zip(portion.parameters(), module.parameters(), strict=True):
            assert ours.grad is not None
            assert theirs.grad is not None
            scale = ours.grad.abs().max().clamp_min(1e-6)
            errors.append(float((ours.grad - theirs.grad).abs().max() / scale))
        return max(errors)

    return serve


def check_gradients(setting: PipeliningSetting, cut: Cut) -> float:
    """Return the largest gradient error of all synchronous pipelines.

    Raises:
        ValueError: The error is larger than rounding explains.

    """
    with BenchmarkTeam(PROCESSES, gradient_error, setting, cut) as team:
        kinds = itertools.product(("gpipe", "1f1b"), (False, True))
        errors = {which: max(team.ask(*which)) for which in kinds}
    worst = max(errors, key=lambda which: errors[which])
    if not errors[worst] <= TOLERANCE:
        raise ValueError(f"the gradients of {worst[0]} differ by {errors[worst]:.2g} from those of plain autograd")
    return errors[worst]


def best_cut(setting: PipeliningSetting, method: Method) -> Cut:
    """Return the best cut for the measured seconds of each stage under the method."""
    seconds = []
    for stage in setting.stages_alone(method):
        turns = [stage.turn() for _ in range(TURNS + 1)][1:]
        seconds.append(statistics.median(turn.forward + turn.backward for turn in turns))
    return find_partition(seconds, PROCESSES).sizes


def compete(setting: PipeliningSetting, rounds: int, seconds: float, recorder: Recorder) -> None:
    """Measure all contestants on one network."""
    group = f"{setting.network}, width {setting.width}"
    wanted = {contestant.costs for contestant in CONTESTANTS if contestant.costs is not None}
    cuts = {method: best_cut(setting, method) for method in sorted(wanted, key=str)}
    error = check_gradients(replace(setting, batch=CHECKED), cuts[methods.BACKPROPAGATION])
    cut_list = "; ".join(f"{method} {'+'.join(map(str, cut))}" for method, cut in cuts.items())
    recorder.notes.append(
        f"{group}: stages of each process, by the costs of {cut_list} (DSP's are those of checkpointing). Gradients of "
        f"GPipe and 1F1B differ from plain autograd's by at most {error:.1g} of the largest."
    )
    print(f"{group}: cuts by {cut_list}", flush=True)
    teams: dict[PipelineContestant, BenchmarkTeam] = {}
    try:
        for contestant in CONTESTANTS:
            cut = cuts.get(contestant.costs) if contestant.costs is not None else None
            teams[contestant] = BenchmarkTeam(contestant.processes, serving, contestant, setting, cut)
            teams[contestant].ask(0)  # sequentially, so that warm-ups do not overlap
        batches = {c: max(1, round(seconds / max(s for s, _ in team.ask(1)))) for c, team in teams.items()}
        for number in range(rounds):
            for contestant in (*teams,) if number % 2 == 0 else (*reversed(teams),):
                times = [s for s, _ in teams[contestant].ask(batches[contestant])]
                images = batches[contestant] * setting.micro_batches * setting.batch
                rate = sum(images / s for s in times) if contestant is COPIES else images / max(times)
                recorder.add(group, contestant.name, THROUGHPUT, "images/s", rate)
            print(f"  round {number + 1} of {rounds}", flush=True)
        for contestant, team in teams.items():
            held = [size / 1e6 for _, size in team.ask(0)]
            recorder.add(group, contestant.name, PEAK_OF_ALL, "MB", sum(held))
            recorder.add(group, contestant.name, LARGEST, "MB", max(held))
    finally:
        for team in teams.values():
            team.close()
    _compare(group, recorder)


def _compare(group: str, recorder: Recorder) -> None:
    recorder.comparisons.append(Comparison(group, THROUGHPUT, PETRA.name, COPIES.name))
    for rival in CONTESTANTS:
        if rival not in (PETRA, COPIES):
            recorder.comparisons.append(Comparison(group, THROUGHPUT, PETRA.name, rival.name))
    recorder.comparisons.append(Comparison(group, THROUGHPUT, COPIES.name, "PETRA, one process"))
    for quantity in (PEAK_OF_ALL, LARGEST):
        for rival in CONTESTANTS[1:6]:
            recorder.comparisons.append(Comparison(group, quantity, PETRA.name, rival.name))


def main(arguments: Sequence[str] | None = None) -> Benchmark:
    """Run the benchmark from the command line and return it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_networks(parser)
    parser.add_argument(
        "--micro-batches", type=count, default=4, help="micro-batches per batch, and PETRA's k (default 4)"
    )
    parser.add_argument("--rounds", type=count, default=7, help="rounds; each measures every method once (default 7)")
    parser.add_argument("--seconds", type=positive, default=1.5, help="seconds per method and round (default 1.5)")
    add_quick(parser)
    add_options(parser, "pipelining")
    options = parse_quick(parser, arguments)
    if options.micro_batches < PROCESSES:
        parser.error(
            f"--micro-batches {options.micro_batches}: 1F1B needs at least one for each of the {PROCESSES} processes"
        )

    torch.set_num_threads(1)
    recorder = Recorder(TITLE, about(__doc__), command("benchmarks.pipelining", arguments), options)
    for name in options.networks:
        setting = PipeliningSetting(name, options.width, options.batch, options.size, options.micro_batches)
        compete(setting, options.rounds, options.seconds, recorder)
    return recorder.finish()


if __name__ == "__main__":
    main()
