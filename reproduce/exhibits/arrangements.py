"""Ten devices put to use in different ways: equal numbers of stages, balanced cuts, replicas of what is heavy.

The paper's speed-up of 3.0 on 10 devices was held back by stages of unequal cost. This table shows what the remedies
would give, each simulated from the measured costs of the same stages: the best cut, stages made one, a heavy stage on
several devices that take its micro-batches in turn, and the whole network on every device.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from petra_core import methods
from petra_core.prediction.footprint import joined
from petra_core.prediction.holding import holding
from petra_core.prediction.orders import delays, merged, of_method
from petra_core.prediction.partition import Cut
from petra_core.prediction.simulation import INSTANT, Cost, Link, simulate
from petra_core.shares import runs
from petra_core.timeline import Timeline
from reproduce.modelling.balance import Balance
from reproduce.modelling.modelled import Modelled, seconds_without_overlap
from reproduce.show.content import MEGABYTE, Column, Entry, Table, Tone, number, text

__all__ = ["DEVICES", "INTRODUCTION", "table"]

DEVICES = 10
REPLICATED_WITH = (2, 4, 8, DEVICES)  # k, of which the numbers of replicas are divisors

INTRODUCTION = (
    f"One device a stage leaves most devices waiting for the slowest. On {DEVICES} devices, modelled: the cut into "
    "equal numbers of stages; the cut that makes the slowest device fastest, its stages apart (the delay is that of J "
    "stages) or made one (that of as many stages as devices, so fewer micro-batches wait, at the same pace; what is "
    "lost is the time in which a message travels while other stages of its device work); and heavy stages replicated "
    "over r devices that take micro-batches in turn and add up their gradients at every update, for which k is a "
    "multiple of r and the delay longer. All devices as replicas of everything are data parallelism: balanced and "
    "without delay, every device with all weights; its backward rebuilds graphs here as everywhere in this table."
)


@dataclass(frozen=True)
class _Way:
    """One way to use the devices.

    Attributes:
        name: of it.
        plan: what is on which device.
        accumulation: k.
        made_one: whether the stages of a part are made one.

    """

    name: str
    plan: Cut
    accumulation: int = 1
    made_one: bool = False


def table(own: Sequence[Modelled], link: Link, link_name: str, setting: str) -> Table:
    """All ways for all networks.

    Args:
        own: networks of one scale.
        link: over which messages and gradients pass in one of the columns.
        link_name: as the table calls it.
        setting: of the measurements, in a few words.

    """
    return Table(
        key="table5-arrangements",
        caption=f"Ways to use {DEVICES} devices for PETRA, modelled from measured stage costs, {setting}.",
        columns=[
            Column("network", numeric=False),
            Column("way", numeric=False),
            Column("stages of each part", numeric=False, hint="4 on 2: four stages, replicated over two devices"),
            Column("devices"),
            Column("k"),
            Column("delay", hint="micro-batches between forward and backward at stage 0"),
            Column("ms", group="a micro-batch"),
            Column("speed-up", group="a micro-batch", hint="over reversible backpropagation without overlap"),
            Column(f"at {link_name}", group="a micro-batch", hint="speed-up if everything passes over such links"),
            Column("idle, %", hint="mean over the devices"),
            Column("peak memory, MB", hint="of the device that holds most"),
        ],
        rows=[_row(m, way, link) for m in own for way in _ways(m)],
        notes=(
            "Modelled: simulated event by event; published for 10 devices is the measured speed-up of the table above. "
            "Memory: weights, gradients, momentum, what waits, messages and the graph of one backward, followed "
            "through the simulated run.",
        ),
        grouped=True,
    )


def _ways(m: Modelled) -> Iterator[_Way]:
    stages = len(m.costs)
    yield _Way("one device a stage", m.balance.even(stages))
    if stages > DEVICES:
        best = m.balance.best(DEVICES)
        yield _Way("equal numbers", m.balance.even(DEVICES))
        yield _Way("balanced", best)
        yield _Way("balanced, made one", best, made_one=True)
    for k in REPLICATED_WITH:
        balance = Balance(replace(m.run.cell, accumulation=k), m.costs)
        plan = balance.replicated(DEVICES, INSTANT)
        if max(plan.replicas) == 1:
            continue
        yield _Way("data parallelism" if plan.replicas == (DEVICES,) else "heavy stages replicated", plan, k, True)


def _row(m: Modelled, way: _Way, link: Link) -> list[Entry]:
    plan, k = way.plan, way.accumulation
    costs, footprints, partition = m.costs, m.footprints(methods.PETRA), plan.partition
    if way.made_one:
        footprints = tuple(joined(footprints[run.start : run.stop]) for run in runs(partition))
        costs, partition = tuple(merged(costs, partition)), (1,) * len(partition)
    timeline, pace = _run(costs, partition, plan.replicas, k, INSTANT)
    _, pace_with_link = _run(costs, partition, plan.replicas, k, link)
    work = sum(cost.forward + cost.backward + cost.update / k for cost in m.costs)
    return [
        text(m.title),
        text(way.name),
        text(_parts(plan)),
        number(plan.devices, 0, tone=Tone.PLAIN),
        number(k, 0, tone=Tone.PLAIN),
        number(delays(partition, plan.replicas)[0], 0),
        number(1e3 * pace, 1),
        number(seconds_without_overlap(m.costs, INSTANT, k) / pace, 2),
        number(seconds_without_overlap(m.costs, link, k) / pace_with_link, 2),
        number(100 * (1 - work / (plan.devices * pace)), 1),
        number(max(history.peak for history in holding(timeline, footprints)) / MEGABYTE, 0),
    ]


@cache
def _run(
    costs: tuple[Cost, ...], partition: tuple[int, ...], replicas: tuple[int, ...], k: int, link: Link
) -> tuple[Timeline, float]:
    """The simulated run, and seconds for a micro-batch in its steady state."""
    fill = -(-(delays(partition, replicas)[0] + 8) // k) * k
    measured = -(-16 // k) * k
    order = of_method(methods.PETRA, costs, partition, 2 * fill + measured, k, replicas, exchange=link)
    timeline = simulate(order, link)
    return timeline, timeline.seconds_per_micro_batch(skip=fill, drop=fill - 1)


def _parts(plan: Cut) -> str:
    return ", ".join(
        f"{size}" if count == 1 else f"{size} on {count}"
        for size, count in zip(plan.partition, plan.replicas, strict=True)
    )
