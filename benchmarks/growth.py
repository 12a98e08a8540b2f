"""Time and bytes against the number of stages J, k, width and batch: the curves behind the growth exponents.

The claims about PETRA concern growth. The time of a tick is proportional to the depth, and the memory of a stage of a
reversible chain does not grow with the staleness 2(J-1-j), the price of delayed gradients. One network of one size can
show neither. So a narrow chain is trained at many sizes: starting from a base, one parameter is varied.

The time of a micro-batch is a tick of the full pipeline on one device, or all ticks of the micro-batch under a method
that passes one micro-batch through the stages at a time. Every round measures every method at every size, with the
methods of a size one after the other. The bytes of an inner stage are the most that any stage except stem and head has
held for its backwards, as the engine counts it (inputs, stashed weights, messages and graph, each at its peak). They
are equal in every run.

Two claims are tested. A tick of PETRA grows linearly in depth: a straight line explains at least 99 % of the variance
of its time over J, and the upper end of the exponent's interval is at most 1.1. The memory of an inner stage under
PETRA does not grow with the staleness: the interval of the exponent of its bytes lies within ±0.02.

Usage with the defaults:

    python -m benchmarks.growth --axes J --record growth-depth
    python -m benchmarks.growth --axes k width batch --record growth

Depth is a separate run because it takes long: a pipeline of 64 stages is full after 127 ticks, and its weight stashes
are full after 253.
"""

import argparse
import gc
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from benchmarks.arguments import add_methods, count
from benchmarks.recording import Recorder, about, add_options, command
from benchmarks.slopes import Growth, growth
from benchmarks.tick import HELD, in_turn, rounds
from petra_core import Pipeline, methods, models
from petra_core.methods import Method
from reproduce.measures.synthetic import SGD
from reproduce.records.benchmarks import Benchmark, Goal, Series

TIME, BYTES = "time of a micro-batch", "bytes of an inner stage"
STRAIGHT, AT_MOST_LINEAR, FLAT = 0.99, 1.1, 0.02
NOTE = "width: channels of a stream; batch: images of a micro-batch."


@dataclass(frozen=True)
class Size:
    """Size of a run.

    Attributes:
        J: Number of stages.
        k: Accumulation.
        width: Channels per stream.
        batch: Images per micro-batch.

    """

    J: int
    k: int
    width: int
    batch: int


BASE = Size(J=8, k=1, width=8, batch=8)
AXES = {
    "J": (4, 8, 16, 32, 64),
    "k": (1, 2, 4, 8, 16, 32),
    "width": (8, 16, 32, 64),
    "batch": (8, 16, 32, 64),
}
QUICK_BASE = Size(J=4, k=1, width=2, batch=2)
QUICK = {"J": (4, 6, 8), "k": (1, 2), "width": (2, 4), "batch": (2, 4)}


def full_pipeline(size: Size, method: Method, pixels: int) -> tuple[Pipeline, torch.Tensor, torch.Tensor]:
    """Return a pipeline whose buffers have stopped growing, and its micro-batch [batch, 3, pixels, pixels], [batch]."""
    torch.manual_seed(0)
    stages = models.chain(size.J - 2, num_classes=10, channels=size.width)
    images, labels = torch.randn(size.batch, 3, pixels, pixels), torch.randint(10, (size.batch,))
    pipeline = Pipeline(stages, method, accumulation=size.k, optimizer=SGD, seed=0)
    for _ in range(method.ticks_to_steady(size.J, size.k)):
        pipeline.step(images, labels)
    return pipeline, images, labels


def bytes_of_inner_stage(pipeline: Pipeline) -> int:
    """Return the most bytes that any stage except stem and head has held for its backwards."""
    inner = pipeline.memory().stages[1:-1]
    return max(sum(stage.peak[kind] for kind in HELD) for stage in inner)


def measure(recorder: Recorder, axis: str, values: Sequence[int], options: argparse.Namespace, base: Size) -> None:
    """Measure every method along one axis, all methods at all sizes in turn."""
    gc.collect()  # free the pipelines of the previous axis
    start, turns = time.perf_counter(), {}
    for value in values:
        for method in options.methods:
            pipeline, images, labels = full_pipeline(replace(base, **{axis: value}), method, options.pixels)
            recorder.add(axis, method.title, BYTES, "B", bytes_of_inner_stage(pipeline), at=value)
            # Whole accumulations, so that every turn contains its share of the updates.
            steps = math.ceil(options.steps / pipeline.accumulation) * pipeline.accumulation
            turns[method.title, value, steps] = in_turn(*[partial(pipeline.step, images, labels)] * steps)
    for seconds in rounds(list(turns.values()), options.rounds, torch.device("cpu")):
        for (title, value, steps), of_turn in zip(turns, seconds, strict=True):
            recorder.add(axis, title, TIME, "s", of_turn / steps, at=value)
    print(f"  along {axis}: {time.perf_counter() - start:.0f} s")


def complete(benchmark: Benchmark) -> Benchmark:
    """Add the fits of the claims, their goals and a finding, if J was varied for PETRA."""
    time, held = (_along_depth(benchmark, quantity) for quantity in (TIME, BYTES))
    if time is None or held is None or time.half_width is None or held.half_width is None:
        return replace(benchmark, notes=(*benchmark.notes, NOTE))
    name, group = methods.PETRA.title, "growth with J"
    fits = (
        (f"{TIME}: variance that a straight line explains", time.straight, {"low": STRAIGHT}),
        (f"{TIME}: exponent, upper end", max(0.0, time.exponent + time.half_width), {"high": AT_MOST_LINEAR}),
        (f"{BYTES}: exponent, farthest from 0", abs(held.exponent) + held.half_width, {"high": FLAT}),
    )
    finding = (
        f"Growth: a straight line explains {100 * time.straight:.1f} % of the time of a tick of PETRA over J, exponent "
        f"{time.words()}; what an inner stage holds has the exponent {held.words()}."
    )
    return replace(
        benchmark,
        series=(*benchmark.series, *(Series(group, name, quantity, "", (value,)) for quantity, value, _ in fits)),
        goals=(*benchmark.goals, *(Goal(group, quantity, name, **bound) for quantity, _, bound in fits)),
        findings=(*benchmark.findings, finding),
        notes=(*benchmark.notes, NOTE),
    )


def _along_depth(benchmark: Benchmark, quantity: str) -> Growth | None:
    curve = benchmark.curve("J", methods.PETRA.title, quantity)
    return growth(*zip(*curve, strict=True)) if len({at for at, _ in curve}) > 2 else None


def main(arguments: Sequence[str] | None = None) -> Benchmark:
    """Run the benchmark from the command line and return it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--axes", nargs="+", choices=list(AXES), default=list(AXES), help="parameters to vary (default all)"
    )
    add_methods(parser)
    parser.add_argument("--pixels", type=count, default=8, help="side of an image in pixels (default 8)")
    parser.add_argument("--rounds", type=count, default=5, help="timings at each size (default 5)")
    parser.add_argument("--steps", type=count, default=2, help="micro-batches per timing, at least k (default 2)")
    parser.add_argument(
        "--threads", type=count, default=1, help="CPU threads (default 1: the operations are too small to split)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="override other options by tiny settings, to test that it runs"
    )
    add_options(parser, "growth")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.steps = 1, 1
    torch.set_num_threads(options.threads)
    axes, base = (QUICK, QUICK_BASE) if options.quick else (AXES, BASE)

    recorder = Recorder("Growth", about(__doc__), command("benchmarks.growth", arguments), options)
    recorder.setting["base"] = f"J = {base.J}, k = {base.k}, {base.width} channels a stream, batch {base.batch}"
    for axis in options.axes:
        measure(recorder, axis, axes[axis], options, base)
    return recorder.finish(complete)


if __name__ == "__main__":
    main()
