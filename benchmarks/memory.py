"""Peak memory of each method against batch, depth and k; the part that PETRA needs in any case; the largest batch.

Three counts are taken of the same run. Each misses something. "Accounted" is the engine's ledger: the sum over stages,
each as if it were the only one on its device, without temporaries of operations. "Allocated" is the allocator's count
of every tensor of one process, including temporaries (`benchmarks.allocation`; on CUDA the allocator's statistics
without cuBLAS workspaces). "Process" is the growth of a fresh process as the system reports it (not on CUDA).

At most 5 % of PETRA's allocated peak should be anything other than its parts: parameters and running statistics,
gradients, optimizer state, inputs of stages that cannot be inverted, messages in flight, and the largest graph of one
stage, all from the ledger. For a given budget, the largest batch of each method is predicted from shapes
(`petra_core.prediction.memory`) and measured by the allocated peak.

Usage with the defaults:

    python -m benchmarks.memory --threads 2 --record

    python -m benchmarks.memory --parts aim --width 64 --batch 64 --size 32 --threads 2 --record memory-revnet18

The second line measures RevNet-18 as in the paper, only against the sum of its parts.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch

from benchmarks.allocation import Allocations, growth_of_fresh_process, unless_out_of_memory
from benchmarks.arguments import (
    CLASSES,
    NETWORKS,
    add_device,
    add_methods,
    add_quick,
    add_size,
    add_threads,
    count,
    network,
    network_name,
    parse_quick,
    positive,
)
from benchmarks.recording import Recorder, about, add_options, command
from petra_core import MemoryReport, Pipeline, Stage, methods
from petra_core.methods import Method
from petra_core.prediction.memory import predict
from reproduce.measures.context import MEMORY_FORMAT, to_memory_format
from reproduce.measures.synthetic import SGD
from reproduce.records.benchmarks import ALLOCATED, LARGEST_FOUND, LARGEST_PREDICTED, Benchmark, Comparison
from reproduce.running import devices
from reproduce.running.execution import deterministic

R = TypeVar("R")  # a run: a dataclass with a `batch`
LASTING = ("parameters", "buffers", "gradients", "optimizer")
AXES = "batch: images of a micro-batch; depth: stages J of a chain."
BUDGET = (
    "Largest batch: the largest one whose allocated peak stays within the budget (MB), with all stages on one device. "
    "The prediction counts the tensors that are kept and not the temporaries of operations. The measured batch is "
    "smaller where these temporaries matter, and larger where the stages do not reach their peaks at the same time."
)


@dataclass(frozen=True)
class MemoryRun:
    """Configuration of a training whose memory is measured.

    Attributes:
        network: Name of the network, for example revnet18 or chain6.
        width: Channels of its first blocks.
        size: Side of an image in pixels.
        batch: Images per micro-batch.
        accumulation: Number of micro-batches per update.
        method: Name of the training method.
        device: Name of the device.
        threads: Number of CPU threads.

    """

    network: str
    width: int
    size: int
    batch: int
    accumulation: int
    method: str
    device: str
    threads: int

    def stages(self) -> list[Stage]:
        """Build the network on torch's default device, in the memory format of cells."""
        return [stage.to(memory_format=MEMORY_FORMAT) for stage in network(self.network, self.width)]

    def micro_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images [batch, 3, size, size] and labels [batch], on torch's default device."""
        images = torch.randn(self.batch, 3, self.size, self.size)
        return to_memory_format(images), torch.randint(CLASSES, (self.batch,))


def train(run: MemoryRun) -> MemoryReport:
    """Train until the buffers stop growing and return the ledger's report."""
    torch.set_num_threads(run.threads)
    torch.manual_seed(0)
    method = methods.by_name(run.method)
    with torch.device(run.device):
        stages, (images, labels) = run.stages(), run.micro_batch()
    # No inspection: the allocator would count its graphs.
    pipeline = Pipeline(stages, method, accumulation=run.accumulation, optimizer=SGD, seed=0, inspect=False)
    for _ in range(method.ticks_to_steady(len(stages), run.accumulation) + 1):
        pipeline.step(images, labels)
    return pipeline.memory()


def measure_allocations(run: MemoryRun) -> tuple[Allocations, MemoryReport]:
    """Train and return the allocator's count and the ledger's report."""
    with Allocations(torch.device(run.device)) as allocations:
        report = train(run)
    return allocations, report


def measure_unless_too_large(run: MemoryRun, what: str) -> tuple[Allocations, MemoryReport] | None:
    """Return `measure_allocations(run)`, or print a message and return None if the run does not fit on the device."""
    measured = unless_out_of_memory(partial(measure_allocations, run), torch.device(run.device))
    if measured is None:
        print(f"  {what}, {methods.by_name(run.method).title}: does not fit")
    return measured


def train_as_cells(run: MemoryRun) -> None:
    """Train with the kernels that cells are trained with, in a process that has not selected any."""
    with deterministic(torch.device(run.device)):
        train(run)


def sum_of_parts(report: MemoryReport) -> int:
    """Return the bytes that PETRA needs in any case (see the module)."""
    graph = max(stage.peak["graph"] for stage in report.stages)
    return report.peak(*LASTING) + report.now("inputs", "messages") + graph


def predict_peak(run: MemoryRun) -> int:
    """Predict the allocated peak in one process from shapes: everything held between ticks, and the work of one stage.

    Stages that work one at a time hold everything that they keep for their backwards, but only one message and, unless
    graphs are kept, one graph at a time.
    """
    method = methods.by_name(run.method)
    with torch.device("meta"):
        outlined, batch = run.stages(), run.micro_batch()
    stages = predict(outlined, method, *batch, accumulation=run.accumulation, optimizer=SGD)
    if method.pipelined:
        held = sum(sum(stage.held.values()) + stage.peak["gradients"] for stage in stages)
        return held + max(stage.peak["graph"] - stage.held["graph"] for stage in stages)
    at_once = ("messages",) if method.keeps_graph else ("messages", "graph")
    together = sum(count for stage in stages for kind, count in stage.peak.items() if kind not in at_once)
    return together + sum(max(stage.peak[kind] for stage in stages) for kind in at_once)


def largest(fits: Callable[[int], bool], guess: int) -> int:
    """Return the largest number of at least 1 that fits (0 if none does), if all below it fit. Starts near `guess`."""
    low = high = max(1, guess)
    step = max(1, guess // 8)
    if fits(low):
        while fits(high := low + step):
            low, step = high, 2 * step
    else:
        while (low := max(0, high - step)) > 0 and not fits(low):
            high, step = low, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def largest_batch(run: R, peak: Callable[[R], int], limit: int, guess: int, device: torch.device) -> int:
    """Return the largest `batch` of a run that fits in memory with a `peak` of at most `limit` bytes."""

    def fits(batch: int) -> bool:
        needed = unless_out_of_memory(lambda: peak(replace(run, batch=batch)), device)
        return needed is not None and needed <= limit

    return largest(fits, guess)


def along(recorder: Recorder, axis: str, runs: Sequence[tuple[int, MemoryRun]], chosen: Sequence[Method]) -> None:
    """Measure the peaks of every method along an axis."""
    for at, run in runs:
        for method in chosen:
            of_method = replace(run, method=method.name)
            measured = measure_unless_too_large(of_method, f"{axis} {at}")
            if measured is None:
                continue
            allocations, report = measured
            recorder.add(axis, method.title, "accounted peak", "B", report.peak(), at=at)
            recorder.add(axis, method.title, ALLOCATED, "B", allocations.peak, at=at)
            small = replace(of_method, network="chain1", width=1, size=4, batch=2, accumulation=1)
            if run.device == "cpu" and (grown := growth_of_fresh_process(train_as_cells, small, of_method)) is not None:
                recorder.add(axis, method.title, "process peak", "B", grown, at=at)


def parts_of_peak(recorder: Recorder, run: MemoryRun) -> None:
    """Measure PETRA's allocated peak against the sum of its parts."""
    measured = measure_unless_too_large(replace(run, method=methods.PETRA.name), "aim")
    if measured is None:
        return
    allocations, report = measured
    recorder.add("aim", "PETRA", "peak", "B", allocations.peak)
    if allocations.workspaces:
        recorder.notes.append(
            f"Not in PETRA's peak: {allocations.workspaces / 1e6:.1f} MB of cuBLAS workspaces, which do not depend on "
            f"the operands. The peak includes the workspaces of cuDNN for single operations."
        )
    recorder.add("aim", "sum of its parts", "peak", "B", sum_of_parts(report))
    recorder.comparisons.append(Comparison("aim", "peak", "PETRA", "sum of its parts"))


def budget(recorder: Recorder, run: MemoryRun, limit: int, chosen: Sequence[Method]) -> None:
    """Predict and measure the largest batch of each method under `limit` bytes."""
    device = torch.device(run.device)
    for method in chosen:
        of_method = replace(run, method=method.name)
        guess = largest_batch(of_method, predict_peak, limit, 64, device)
        most = largest_batch(of_method, lambda run: measure_allocations(run)[0].peak, limit, guess, device)
        recorder.add("budget", method.title, LARGEST_PREDICTED, "images", guess)
        recorder.add("budget", method.title, LARGEST_FOUND, "images", most)
        if most:
            peak = measure_allocations(replace(of_method, batch=most))[0].peak
            recorder.add("budget", method.title, "allocated peak there", "B", peak)
        print(f"  {method.title}: largest batch {guess} predicted, {most} found")


def complete(benchmark: Benchmark) -> Benchmark:
    """Add notes that explain curves and batches, and a finding: the method with the largest batch, and PETRA's."""
    most = {s.name: s.values[0] for s in benchmark.series if s.quantity == LARGEST_FOUND}
    notes = [BUDGET] if most else []
    notes += [AXES] if any(series.at is not None for series in benchmark.series) else []
    findings = []
    if ours := most.get(methods.PETRA.title):
        best = max(most, key=most.__getitem__)
        findings = [
            f"Memory: under {benchmark.setting['budget']:g} MB on one device the largest batch is {best}'s, "
            f"{most[best]:.0f} images; PETRA's is {ours:.0f}."
        ]
    return replace(benchmark, findings=(*benchmark.findings, *findings), notes=(*benchmark.notes, *notes))


def main(arguments: Sequence[str] | None = None) -> Benchmark:
    """Run the benchmark from the command line and return it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("batch", "depth", "k", "aim", "budget")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts, help="parts to measure (default all)")
    add_methods(parser)
    parser.add_argument("--network", type=network_name, default="revnet18", help=f"{NETWORKS} (default revnet18)")
    add_size(parser, width=16, batch=32, size=16)
    parser.add_argument(
        "--batches", type=count, nargs="+", default=[8, 16, 32, 64], help="batches along the batch axis"
    )
    parser.add_argument(
        "--stages",
        type=count,
        nargs="+",
        default=[4, 8, 16, 32],
        help="numbers of stages J along the depth axis (chains)",
    )
    parser.add_argument("--ks", type=count, nargs="+", default=[1, 4, 16, 32], help="values along the k axis")
    parser.add_argument("--budget", type=positive, default=64.0, help="memory for the largest batch in MB (default 64)")
    add_threads(parser)
    add_quick(parser)
    add_device(parser)
    add_options(parser, "memory")
    tiny = {"network": "chain2", "size": 4, "batches": [1], "stages": [3], "ks": [2], "budget": 0.1}
    options = parse_quick(parser, arguments, **tiny)
    if min(options.stages) < 3:
        parser.error(f"--stages {min(options.stages)}: expected at least 3: a stem, a block and a head")

    fixed = (options.network, options.width, options.size, options.batch)
    run = MemoryRun(*fixed, 1, methods.PETRA.name, options.device, options.threads)
    device = devices.take(options.device)
    recorder = Recorder("Memory", about(__doc__), command("benchmarks.memory", arguments), options, device)
    axes = {
        "batch": [(batch, replace(run, batch=batch)) for batch in options.batches],
        "depth": [(count, replace(run, network=f"chain{count - 2}")) for count in options.stages],
        "k": [(k, replace(run, accumulation=k)) for k in options.ks],
    }
    with deterministic(device):  # the kernels that cells are trained with: others need different workspaces
        for part in options.parts:
            if part == "aim":
                parts_of_peak(recorder, run)
            elif part == "budget":
                budget(recorder, run, int(options.budget * 1e6), options.methods)
            else:
                along(recorder, part, axes[part], options.methods)
        return recorder.finish(complete)


if __name__ == "__main__":
    main()
