"""Throughput and memory of PaReprop, reversible backpropagation and backpropagation on reversible transformers.

PaReprop (arXiv 2306.09342) reconstructs a block beside the gradient of the block above, so that the one evaluation more
of reversible backpropagation costs less time, at the price of a second graph. The same networks are trained by all
three methods of this engine: families, sizes and micro-batches of several lengths, without autocast and dropout.

In each round every method does one step, the one that begins changes from round to round, and ratios are taken within a
round. All have the same cores: on the CPU PaReprop computes in two threads with half of the threads each that the
others have. Memory is the allocator's peak over a step, the network included, temporaries of operations too
(`benchmarks.allocation`); on the CPU PaReprop does it in one thread for that, every reconstruction before the backward
beside it, which is the order that holds most. The largest batch under a budget is predicted from shapes alone
(`petra_core.prediction.memory`), which knows no temporaries; with --find it is found too, by the allocator.

All have the kernels with which cells are trained (`reproduce.running.execution.deterministic`), of the precision that
is asked for. The aims are those for a GPU: never slower than reversible backpropagation by more than 2 %, and on the
hierarchical models with a published gain more than that. Runs on a CPU have none.

Usage, with the defaults for the CPU, and on a GPU (in one line):

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
from benchmarks.tick import timed
from petra_core import Pipeline, Stage, methods
from petra_core.execution import SequentialExecutor
from petra_core.methods import BACKPROPAGATION, PAREPROP, REVERSIBLE_BACKPROPAGATION, Method
from petra_core.models import revroberta
from petra_core.models.revroberta import SIZES as TEXT_SIZES
from petra_core.prediction.footprint import graphs_at_once, of_footprints
from petra_core.prediction.memory import footprints
from petra_core.settings import Settings
from reproduce.cells import transformers
from reproduce.measures.synthetic import SGD
from reproduce.published import pareprop_row
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
SLOWER_AT_MOST = 0.98


@dataclass(frozen=True)
class ParepropRun:
    """A training that is measured: a network as revvit_micro, pixels of an image's side, tokens, samples, method."""

    network: str
    size: int
    length: int
    batch: int
    method: Method

    @property
    def reads_text(self) -> bool:
        """Whether the network takes tokens, not images."""
        return self.network.startswith("revroberta_")

    @property
    def group(self) -> str:
        """The name of network and batch in records."""
        return f"{self.network}, batch {self.batch}"

    def stages(self) -> list[Stage]:
        """The network, on torch's default device. Raises ValueError: there is none of that name."""
        if self.reads_text:
            name = self.network.partition("_")[2]
            return revroberta(name, vocabulary=TOKENS, length=self.length, dropout=0.0)
        if self.network not in transformers.MODELS:
            names = [*transformers.MODELS, *(f"revroberta_{name}" for name in TEXT_SIZES)]
            raise ValueError(f"there is no network {self.network!r}; there are {', '.join(dict.fromkeys(names))}")
        stem = transformers.default_stem(self.network, self.size)
        return transformers.build(self.network, stem, transformers.MODELS[self.network].width, self.size, CLASSES)

    def micro_batch(self) -> tuple[Tensor, Tensor]:
        """Images [batch, 3, size, size] and labels [batch], or tokens and targets [batch, length]."""
        if self.reads_text:
            shape = (self.batch, self.length)
            return torch.randint(TOKENS, shape), torch.randint(TOKENS, shape)
        return torch.randn(self.batch, 3, self.size, self.size), torch.randint(CLASSES, (self.batch,))


def stepping(run: ParepropRun, device: torch.device, *, side_by_side: bool = True) -> Callable[[], object]:
    """A function that does one step of the run; what is made only at the first step is made here."""
    torch.manual_seed(0)
    with torch.device(device):
        stages, batch = run.stages(), run.micro_batch()
    # Without inspection, whose graphs would be in what the allocator counts.
    pipeline = Pipeline(stages, run.method, optimizer=SGD, seed=0, inspect=False)
    if not side_by_side:
        pipeline.executor = SequentialExecutor()
    step = partial(pipeline.step, *batch)
    step()
    return step


def allocated(run: ParepropRun, device: torch.device) -> int:
    """The allocator's peak over two steps, in bytes."""
    with Allocations(device) as allocations:
        # The profiler follows the thread that it was entered in.
        stepping(run, device, side_by_side=device.type == "cuda")()
    return allocations.peak


def predicted_peak(run: ParepropRun) -> int:
    """The allocated peak from shapes: what lasts, gradients and messages of one stage (of two that overlap), graphs."""
    with torch.device("meta"):
        stages, batch = run.stages(), run.micro_batch()
    per_stage = footprints(stages, run.method, *batch, optimizer=SGD)
    lasting = sum(f.always - f.trainable + f.kept for f in per_stage) + max(f.trainable for f in per_stage)
    messages = [stage.peak["messages"] for stage in of_footprints(per_stage, Settings(method=run.method))]
    beside = [*messages[1:], 0] if run.method.overlapped else [0] * len(messages)
    return lasting + max(map(sum, zip(messages, beside, strict=True))) + graphs_at_once(per_stage, run.method)


def measure_throughput(recorder: Recorder, run: ParepropRun, device: torch.device, threads: int, rounds: int) -> None:
    """Measure the samples per second of every method, round by round, if the pipelines of all fit at once."""
    seconds = unless_out_of_memory(partial(timed_rounds, run, device, threads, rounds), device)
    if seconds is None:
        recorder.notes.append(f"{run.group}: not timed, since the networks of all methods do not fit at once.")
        return
    for method, values in seconds.items():
        for value in values:
            recorder.add(run.group, method.title, THROUGHPUT, "samples/s", run.batch / value)
    row = pareprop_row(run.network, exactly=True)
    low = SLOWER_AT_MOST if row is None else 1 + row.number("gain_percent") / 100
    low = low if device.type == "cuda" else None
    for first, second, bound in (
        (PAREPROP, REVERSIBLE_BACKPROPAGATION, low),
        (REVERSIBLE_BACKPROPAGATION, BACKPROPAGATION, None),
        (PAREPROP, BACKPROPAGATION, None),
    ):
        recorder.comparisons.append(Comparison(run.group, THROUGHPUT, first.title, second.title, low=bound))


def timed_rounds(run: ParepropRun, device: torch.device, threads: int, rounds: int) -> dict[Method, list[float]]:
    """The seconds of a step of every method, round by round.

    Raises:
        MemoryError: on a CUDA device, memory had to be given back for a step, and asked for anew: its time is not that
            of the method. So it is where the three networks and what was kept for their streams leave too little room.

    """
    steps = {}
    for method in CONTESTANTS:
        torch.set_num_threads(threads_of(method, threads, device))
        steps[method] = stepping(replace(run, method=method), device)
    for step in steps.values():
        step()  # once more, with all of them there
    seconds: dict[Method, list[float]] = {method: [] for method in CONTESTANTS}
    before = retries(device)
    for number in range(rounds):
        for place in range(len(CONTESTANTS)):
            method = CONTESTANTS[(number + place) % len(CONTESTANTS)]
            torch.set_num_threads(threads_of(method, threads, device))
            seconds[method].append(timed(steps[method], device))
    if retries(device) > before:
        raise MemoryError(f"{run.group}: memory was given back and asked for anew within what was timed")
    return seconds


def retries(device: torch.device) -> int:
    """How often in this process the device had no memory left until some was given back; 0 for the CPU."""
    return int(torch.cuda.memory_stats(device)["num_alloc_retries"]) if device.type == "cuda" else 0


def threads_of(method: Method, threads: int, device: torch.device) -> int:
    """Threads of each thread pool that computes, so that all methods have the same cores."""
    return threads // 2 if method.overlapped and device.type == "cpu" else threads


def measure_memory(recorder: Recorder, run: ParepropRun, device: torch.device) -> None:
    """Measure the peaks of every method."""
    for method in CONTESTANTS:
        of_method = replace(run, method=method)
        peak = unless_out_of_memory(partial(allocated, of_method, device), device)
        if peak is not None:
            recorder.add(run.group, method.title, ALLOCATED, "B", peak)
        recorder.add(run.group, method.title, PEAK_PREDICTED, "B", predicted_peak(of_method))


def measure_budget(recorder: Recorder, run: ParepropRun, device: torch.device, limit: int, *, find: bool) -> None:
    """Measure the largest batch of every method under `limit` bytes."""
    for method in CONTESTANTS:
        of_method = replace(run, method=method)
        guess = largest_batch(of_method, predicted_peak, limit, by_a_line(of_method, limit), device)
        recorder.add(run.network, method.title, LARGEST_PREDICTED, "samples", guess)
        if find:
            most = largest_batch(of_method, partial(allocated, device=device), limit, guess, device)
            recorder.add(run.network, method.title, LARGEST_FOUND, "samples", most)


def by_a_line(run: ParepropRun, limit: int) -> int:
    """About the largest batch of which `predicted_peak` is at most `limit`: bytes grow in proportion to samples."""
    once, twice = (predicted_peak(replace(run, batch=factor * run.batch)) for factor in (1, 2))
    return max(1, run.batch + (limit - once) * run.batch // (twice - once))


def main(arguments: Sequence[str] | None = None) -> Benchmark:
    """Run from the command line; returns the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), help="by family and size")
    parser.add_argument("--batches", type=count, nargs="+", default=[8, 32], help="samples of a step (default 8 32)")
    parser.add_argument("--size", type=count, default=32, help="pixels of an image's side (default 32)")
    parser.add_argument("--length", type=count, default=64, help="tokens of a text (default 64)")
    parser.add_argument("--rounds", type=count, default=15, help="steps of each method that are timed (default 15)")
    parser.add_argument("--budget", type=positive, default=64.0, help="MB for the largest batch (default 64)")
    parser.add_argument("--find", action="store_true", help="find the largest batch by running, too")
    parser.add_argument("--threads", type=count, default=2, help="of all methods, even (default 2)")
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
        parser.error(f"--threads {options.threads}: PaReprop shares them between two, so they are an even number")

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
