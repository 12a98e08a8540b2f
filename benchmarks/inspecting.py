"""Time of a tick in steady state: a pipeline that inspected its first micro-batches against one that never did.

The inspection (`petra_core.inspection`) ends after the first micro-batches, so the ratio should be 1. Two pipelines of
the same network are filled and make ticks in turn within one process, so other load slows both. The measured quantity
is processor time, which excludes other programs. A round is the median of several such ticks of each pipeline. The goal
bounds the upper end of the 95 % interval of the median ratio, an order statistic of the rounds.

Usage with the defaults:

    python -m benchmarks.inspecting --record
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from benchmarks.arguments import NETWORKS, count, network, network_name, paper_method
from benchmarks.recording import Recorder, about, add_options, command
from benchmarks.tick import full_pipeline
from petra_core import methods
from petra_core.inspection.evaluations import INSPECTED
from reproduce.records.benchmarks import Benchmark, Comparison, Goal

INSPECTING, PLAIN = "inspected at first", "never inspected"
BOUND, QUANTITY = "upper 95 % bound of the ratio", "processor time of a tick"
AIM = 1.03


def main(arguments: Sequence[str] | None = None) -> Benchmark:
    """Run the benchmark from the command line and return it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", type=network_name, default="chain8", help=NETWORKS)
    parser.add_argument("--width", type=count, default=8, help="channels of the first stage (default 8)")
    parser.add_argument("--batch", type=count, default=8, help="images in a micro-batch (default 8)")
    parser.add_argument("--size", type=count, default=8, help="side of an image in pixels (default 8)")
    parser.add_argument(
        "--methods",
        type=paper_method,
        nargs="+",
        default=methods.PAPER,
        help="methods to measure (default: the paper's)",
    )
    parser.add_argument("--rounds", type=count, default=25, help="number of rounds (default 25)")
    parser.add_argument("--ticks", type=count, default=9, help="ticks of each pipeline per round (default 9)")
    parser.add_argument("--threads", type=count, default=1, help="CPU threads (default 1)")
    add_options(parser, "inspecting")
    options = parser.parse_args(arguments)

    recorder = Recorder(
        "A tick after an inspection", about(__doc__), command("benchmarks.inspecting", arguments), options
    )
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    x = torch.randn(options.batch, 3, options.size, options.size)
    y = torch.randint(0, 10, (options.batch,))
    for method in dict.fromkeys(options.methods):
        pipelines = {
            name: full_pipeline(network(options.network, options.width), method, x, y, inspect=name == INSPECTING)
            for name in (INSPECTING, PLAIN)
        }
        ticks = [partial(pipeline.step, x, y) for pipeline in pipelines.values()]
        for _ in range(INSPECTED):  # the last is a backward of stage 0 that is still inspected
            for tick in ticks:
                tick()
        ratios = []
        for _ in range(options.rounds):
            seconds: tuple[list[float], list[float]] = ([], [])
            for turn in range(options.ticks):
                for side in (0, 1) if turn % 2 else (1, 0):
                    seconds[side].append(processor_time(ticks[side]))
            one, other = map(statistics.median, seconds)
            ratios.append(one / other)
            recorder.add(method.title, INSPECTING, QUANTITY, "s", one)
            recorder.add(method.title, PLAIN, QUANTITY, "s", other)
        recorder.add(method.title, BOUND, "ratio", "", upper_bound(ratios))
        recorder.comparisons.append(Comparison(method.title, QUANTITY, INSPECTING, PLAIN))
        recorder.goals.append(Goal(method.title, "ratio", BOUND, high=AIM))
    return recorder.finish()


def processor_time(function: Callable[[], object]) -> float:
    """Return the processor time of a call in seconds."""
    begin = time.process_time()
    function()
    return time.process_time() - begin


def upper_bound(values: Sequence[float], level: float = 0.95) -> float:
    """Return the smallest value that is above the median of its distribution with a probability of `level`.

    The r-th smallest of n values is above the median if fewer than r values are below the median, each with probability
    1/2.
    With too few values for the level this is the largest value.
    """
    n = len(values)
    below = 0
    for place, value in enumerate(sorted(values)):
        below += math.comb(n, place)
        if below / 2**n >= level:
            return value
    return max(values)


if __name__ == "__main__":
    main()
