"""Throughput and memory of PaReprop, reversible backpropagation and backpropagation on reversible transformers.

PaReprop (arXiv 2306.09342) reconstructs a block while it computes the gradient of the block above. This hides the extra
evaluation of reversible backpropagation, at the price of holding a second graph. All three methods of this engine train
the same networks (several families, sizes and batch sizes), without autocast and dropout.

In each round every method makes one step. The order rotates from round to round, and ratios are taken within a round.
All methods use the same cores: on the CPU, PaReprop runs two threads, each with half of the intra-op threads of the
other methods. Memory is the allocator's peak over a step, including the network and the temporaries of operations
(`benchmarks.allocation`). On the CPU, PaReprop runs in one thread for this measurement, with each reconstruction before
the backward that it would overlap; this order holds the most. The largest batch under a budget is predicted from shapes
(`petra_core.prediction.memory`), without temporaries. With --find it is also measured with the allocator.

All methods use the kernels that cells are trained with (`reproduce.running.execution.deterministic`), in the requested
precision.

Usage with the defaults for the CPU, and on a GPU (one command line):

    python -m benchmarks.pareprop --threads 2 --record

    python -m benchmarks.pareprop --device cuda --size 224 --length 512 --batches 16 64 256 --budget 70000 --find
    --networks revvit_small revvit_base revmvit_base revswin_tiny revswin_base revroberta_base --record pareprop-h200
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from benchmarks.allocation import Allocations, unless_out_of_memory
from benchmarks.arguments import CLASSES, add_device, add_precision, as_trained, count, positive
from benchmarks.memory import largest_batch
from benchmarks.recording import Recorder, about, add_options, command
from benchmarks.tick import time_call
from petra_core import Pipeline, Stage, methods
from petra_core.devices.execution import SequentialExecutor
from petra_core.methods import BACKPROPAGATION, PAREPROP, REVERSIBLE_BACKPROPAGATION, Method
from petra_core.prediction.footprint import Footprint, predict_stages
from petra_core.prediction.memory import footprints
from petra_core.settings import Settings
from reproduce.cells import transformers
from reproduce.measures.synthetic import SGD
from reproduce.models.revroberta import revroberta
from reproduce.models.sizes import REVROBERTA
from reproduce.records.benchmarks import (
    ALLOCATED,
    LARGEST_FOUND,
    LARGEST_PREDICTED,
    PEAK_PREDICTED,
    THROUGHPUT,
    Benchmark,
    Comparison,
)
from reproduce.running import devices

CONTESTANTS = (BACKPROPAGATION, REVERSIBLE_BACKPROPAGATION, PAREPROP)
TOKENS = 256  # bytes
NETWORKS = ("revvit_micro", "revvit_micro12", "revmvit_micro", "revswin_micro", "revroberta_micro")


@dataclass(frozen=True)
class ParepropRun:
    """Configuration of a measured training run.

    Attributes:
        network: Name of the network, for example revvit_micro.
        size: Side of an image in pixels.
        length: Number of tokens of a text.
        batch: Number of samples of a micro-batch.
        method: Training method.

    """

    network: str
    size: int
    length: int
    batch: int
    method: Method

    @property
    def reads_text(self) -> bool:
        """Return whether the network takes tokens instead of images."""
        return self.network.startswith("revroberta_")

    @property
    def group(self) -> str:
        """Label of network and batch in records."""
        return f"{self.network}, batch {self.batch}"

    def stages(self) -> list[Stage]:
        """Build the network on torch's default device.

        Raises:
            ValueError: No network has this name.

        """
        if self.reads_text:
            name = self.network.partition("_")[2]
            return revroberta(name, vocabulary=TOKENS, length=self.length, dropout=0.0)
        if self.network not in transformers.MODELS:
            names = [*transformers.MODELS, *(f"revroberta_{name}" for name in REVROBERTA)]
            raise ValueError(f"there is no network {self.network!r}; there are {', '.join(dict.fromkeys(names))}")
        stem = transformers.default_stem(self.network, self.size)
        return transformers.build(self.network, stem, transformers.MODELS[self.network].width, self.size, CLASSES)

    def micro_batch(self) -> tuple[Tensor, Tensor]:
        """Return images [batch, 3, size, size] and labels [batch], or tokens and targets, both [batch, length]."""
        if self.reads_text:
            shape = (self.batch, self.length)
            return torch.randint(TOKENS, shape), torch.randint(TOKENS, shape)
        return torch.randn(self.batch, 3, self.size, self.size), torch.randint(CLASSES, (self.batch,))


def stepping(run: ParepropRun, device: torch.device, *, side_by_side: bool = True) -> Callable[[], object]:
    """Return a function that makes one step of the run, after a first step has created all lazy state."""
    torch.manual_seed(0)
    with torch.device(device):
        stages, batch = run.stages(), run.micro_batch()
    # No inspection: the allocator would count its graphs.
    pipeline = Pipeline(stages, run.method, optimizer=SGD, seed=0, inspect=False)
    if not side_by_side:
        pipeline.executor = SequentialExecutor()
    step = partial(pipeline.step, *batch)
    step()
    return step


def measure_allocations(run: ParepropRun, device: torch.device) -> int:
    """Return the allocator's peak over two steps, in bytes."""
    with Allocations(device) as allocations:
        # The profiler follows only the thread that entered it.
        stepping(run, device, side_by_side=device.type == "cuda")()
    return allocations.peak


def peak_of_graphs(footprints: Sequence[Footprint], method: Method) -> int:
    """Return the peak bytes of the graphs of all stages, for a method that processes one micro-batch at a time.

    If graphs are kept, all of them exist when the head's has been recorded. If they are reconstructed, one exists at a
    time. If the method overlaps, two exist: the graph of a backward, and that of the concurrent reconstruction in the
    stage below.

    Raises:
        ValueError: If the method is pipelined. The peak then depends on a timeline.

    """
    if method.pipelined:
        raise ValueError(
            f"under {method} several micro-batches are in flight: follow a timeline (reproduce.modelling.peak_memory)"
        )
    if method.keeps_graph:
        return sum(footprint.lasting for footprint in footprints)
    graphs = [max(footprint.lasting, footprint.passing) for footprint in footprints]
    beside = [*graphs[1:], 0] if method.overlapped else [0] * len(graphs)
    return max(map(sum, zip(graphs, beside, strict=True)))


def predict_peak(run: ParepropRun) -> int:
    """Predict the allocated peak from shapes.

    It is the sum of the persistent tensors, of the gradients and messages of one stage (of two stages if they overlap),
    and of the graphs that exist at the same time.
    """
    with torch.device("meta"):
        stages, batch = run.stages(), run.micro_batch()
    per_stage = footprints(stages, run.method, *batch, optimizer=SGD)
    lasting = sum(f.always - f.trainable + f.kept for f in per_stage) + max(f.trainable for f in per_stage)
    messages = [stage.peak["messages"] for stage in predict_stages(per_stage, Settings(method=run.method))]
    beside = [*messages[1:], 0] if run.method.overlapped else [0] * len(messages)
    return lasting + max(map(sum, zip(messages, beside, strict=True))) + peak_of_graphs(per_stage, run.method)


def measure_throughput(recorder: Recorder, run: ParepropRun, device: torch.device, threads: int, rounds: int) -> None:
    """Measure the samples per second of every method, round by round, if the pipelines of all methods fit in memory."""
    seconds = unless_out_of_memory(partial(time_rounds, run, device, threads, rounds), device)
    if seconds is None:
        recorder.notes.append(
            f"{run.group}: not timed, because the networks of all methods do not fit in memory together."
        )
        return
    for method, values in seconds.items():
        for value in values:
            recorder.add(run.group, method.title, THROUGHPUT, "samples/s", run.batch / value)
    for first, second in (
        (PAREPROP, REVERSIBLE_BACKPROPAGATION),
        (REVERSIBLE_BACKPROPAGATION, BACKPROPAGATION),
        (PAREPROP, BACKPROPAGATION),
    ):
        recorder.comparisons.append(Comparison(run.group, THROUGHPUT, first.title, second.title))


def time_rounds(run: ParepropRun, device: torch.device, threads: int, rounds: int) -> dict[Method, list[float]]:
    """Return the seconds of a step of every method, round by round.

    Raises:
        MemoryError: The CUDA allocator had to release memory and allocate it again during a timed step. This happens
            when the three networks and the memory cached for their streams leave too little free memory, and such a
            time is not a property of the method.

    """
    steps = {}
    for method in CONTESTANTS:
        torch.set_num_threads(threads_of(method, threads, device))
        steps[method] = stepping(replace(run, method=method), device)
    for step in steps.values():
        step()  # again, now that all pipelines are in memory
    seconds: dict[Method, list[float]] = {method: [] for method in CONTESTANTS}
    before = retries(device)
    for number in range(rounds):
        for place in range(len(CONTESTANTS)):
            method = CONTESTANTS[(number + place) % len(CONTESTANTS)]
            torch.set_num_threads(threads_of(method, threads, device))
            seconds[method].append(time_call(steps[method], device))
    if retries(device) > before:
        raise MemoryError(f"{run.group}: memory was released and allocated again during a timed step")
    return seconds


def retries(device: torch.device) -> int:
    """Return how often the CUDA allocator of this process had to release cached memory to allocate; 0 on a CPU."""
    return int(torch.cuda.memory_stats(device)["num_alloc_retries"]) if device.type == "cuda" else 0


def threads_of(method: Method, threads: int, device: torch.device) -> int:
    """Return the number of threads per compute pool that gives all methods the same cores."""
    return threads // 2 if method.overlapped and device.type == "cpu" else threads


def measure_memory(recorder: Recorder, run: ParepropRun, device: torch.device) -> None:
    """Measure the allocated and predicted peaks of every method."""
    for method in CONTESTANTS:
        of_method = replace(run, method=method)
        peak = unless_out_of_memory(partial(measure_allocations, of_method, device), device)
        if peak is not None:
            recorder.add(run.group, method.title, ALLOCATED, "B", peak)
        recorder.add(run.group, method.title, PEAK_PREDICTED, "B", predict_peak(of_method))


def measure_budget(recorder: Recorder, run: ParepropRun, device: torch.device, limit: int, *, find: bool) -> None:
    """Measure the largest batch of every method under `limit` bytes."""
    for method in CONTESTANTS:
        of_method = replace(run, method=method)
        guess = largest_batch(of_method, predict_peak, limit, by_a_line(of_method, limit), device)
        recorder.add(run.network, method.title, LARGEST_PREDICTED, "samples", guess)
        if find:
            most = largest_batch(of_method, partial(measure_allocations, device=device), limit, guess, device)
            recorder.add(run.network, method.title, LARGEST_FOUND, "samples", most)


def by_a_line(run: ParepropRun, limit: int) -> int:
    """Estimate the largest batch whose `predict_peak` is at most `limit`, from two points on a line."""
    once, twice = (predict_peak(replace(run, batch=factor * run.batch)) for factor in (1, 2))
    return max(1, run.batch + (limit - once) * run.batch // (twice - once))


def main(arguments: Sequence[str] | None = None) -> Benchmark:
    """Run the benchmark from the command line and return it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), help="names: family_size")
    parser.add_argument("--batches", type=count, nargs="+", default=[8, 32], help="samples per step (default 8 32)")
    parser.add_argument("--size", type=count, default=32, help="side of an image in pixels (default 32)")
    parser.add_argument("--length", type=count, default=64, help="tokens per text (default 64)")
    parser.add_argument("--rounds", type=count, default=15, help="timed steps of each method (default 15)")
    parser.add_argument("--budget", type=positive, default=64.0, help="memory for the largest batch in MB (default 64)")
    parser.add_argument("--find", action="store_true", help="also measure the largest batch")
    parser.add_argument(
        "--threads", type=count, default=2, help="CPU threads of every method, an even number (default 2)"
    )
    add_device(parser)
    add_precision(parser)
    add_options(parser, "pareprop")
    options = parser.parse_args(arguments)
    for network in options.networks:
        try:
            with torch.device("meta"):
                ParepropRun(network, options.size, options.length, 1, methods.PAREPROP).stages()
        except ValueError as error:
            parser.error(f"--networks {network}: {error}")
    if options.threads < 2 or options.threads % 2:
        parser.error(
            f"--threads {options.threads}: expected an even number, since PaReprop divides them between two pools"
        )

    device = devices.take(options.device)
    recorder = Recorder("PaReprop", about(__doc__), command("benchmarks.pareprop", arguments), options, device)
    with as_trained(parser, options, device):
        for network in options.networks:
            for batch in options.batches:
                run = ParepropRun(network, options.size, options.length, batch, methods.PAREPROP)
                measure_throughput(recorder, run, device, options.threads, options.rounds)
                torch.set_num_threads(options.threads)
                measure_memory(recorder, run, device)
            measure_budget(recorder, run, device, int(options.budget * 1e6), find=options.find)
        return recorder.finish()


if __name__ == "__main__":
    main()
