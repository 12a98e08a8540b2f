"""The benchmark "tick" in the report: what of a ratio is the engine's doing, and what has to be evaluated anyway.

Beside a tick and its rival the benchmark measures one of them with the evaluations that tell it from the other. So it
is known, from the same rounds, what ratio an engine that costs nothing would have on this machine and network.
"""

from reproduce.records.benchmarks import Benchmark, Comparison
from reproduce.show.content import Block, Finding

__all__ = ["PLAIN", "PLAIN_AND_FORWARD", "TICK", "TICK_AND_FUNCTIONS", "blocks", "findings"]

TICK, PLAIN = "tick", "autograd step"
#: An autograd step and, without a graph, the forward of all stages but the head: no tick evaluates less.
PLAIN_AND_FORWARD = f"{PLAIN} and a forward"
#: A tick of PETRA and, without a graph, once more the residual functions: what a tick that inverts first evaluates.
TICK_AND_FUNCTIONS = f"{TICK} and its residual functions"


def blocks(benchmark: Benchmark) -> list[Block]:
    """None: the table of ratios has them all."""
    del benchmark
    return []


def findings(benchmark: Benchmark) -> list[Finding]:
    """For each ratio with an aim, what an engine that costs nothing would have; nothing where that was not measured."""
    found = []
    for sought in benchmark.comparisons:
        alone = _of_evaluations(benchmark, sought)
        if not sought.aim or alone is None:
            continue
        within = sought.holds(alone)
        found.append(
            Finding(
                f"A tick, {sought.group}: the evaluations alone, without an engine, give a ratio of {alone:.3f} to one "
                f"{sought.second}; the tick has {benchmark.spread(sought).median:.3f}. The aim of {sought.aim} is "
                + ("within" if within else "out of")
                + " reach of an engine that costs nothing, on this machine and network."
            )
        )
    return found


def _of_evaluations(benchmark: Benchmark, sought: Comparison) -> float | None:
    """The ratio that `sought` would have if both sides did nothing but evaluate."""
    limits = ((PLAIN_AND_FORWARD, sought.second), (sought.first, TICK_AND_FUNCTIONS))
    for other in benchmark.comparisons:
        alike = (other.group, other.quantity) == (sought.group, sought.quantity)
        if alike and (other.first, other.second) in limits:
            return benchmark.spread(other).median
    return None
