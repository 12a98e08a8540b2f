"""Simulate a run: calculate begin and end of every operation from measured costs and a model of the links.

The time of a pipelined run is often estimated as the number of ticks times the time of the slowest stage. This ignores
waiting and the transfer of messages, which determine whether a schedule is useful. Here each device executes its
operations in order, each as soon as the device is free and its inputs have arrived. A link transfers one message at a
time in each direction. This simulates any schedule: those of the engine (`make_schedule`) and synchronous ones. The
result is a `Timeline` like the trace of a real run, so the two can be compared.

Stages and micro-batches are numbered from 0. Times are in seconds, sizes in bytes.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from petra_core.methods import Method
from petra_core.prediction.partition import Cost
from petra_core.shares import stage_ranges
from petra_core.staleness import Action, Kind, backward_actions, resolve
from reproduce.drawing.timeline import Event, Name, ScheduleError, Timeline

Schedule = list[list[Name]]  # by device, in the order of execution


@dataclass(frozen=True)
class Link:
    """Connection between two devices, the same in both directions.

    Attributes:
        latency: Seconds that an empty message takes.
        bandwidth: Bytes per second.

    """

    latency: float = 0.0
    bandwidth: float = float("inf")

    def seconds(self, size: int) -> float:
        """Return the seconds for which a message of `size` bytes occupies the link, without the latency."""
        return size / self.bandwidth


INSTANT = Link()
DIRECTIONS = {"F": 1, "B": -1}  # results are sent to the same operation of the stage above or below
OWN = {"B": "F"}  # operation of the same stage and micro-batch that must be complete before


def merge_costs(costs: Sequence[Cost], partition: Sequence[int]) -> list[Cost]:
    """Return the costs of stages merged by `petra_core.merge` into one per device, so that J is the number of devices.

    In lockstep, gradients return sooner: after 2(P - 1 - p) micro-batches instead of 2(J - 1 - j). The unmerged stages
    with the staleness of `petra_core.staleness.per_device` compute the same.

    Raises:
        ValueError: If the partition does not match the costs.

    """
    return [
        Cost(
            sum(costs[stage].forward for stage in part),
            sum(costs[stage].backward for stage in part),
            sum(costs[stage].update for stage in part),
            costs[part[-1]].up,
            costs[part[0]].down,
            sum(costs[stage].weights for stage in part),
        )
        for part in stage_ranges(partition, len(costs))
    ]


def make_schedule(
    method: Method,
    partition: Sequence[int],
    micro_batches: int,
    accumulation: int = 1,
    staleness: Sequence[int] | None = None,
) -> Schedule:
    """Return the operations of each device when the engine runs a method over several processes.

    Args:
        method: Training method, not one that overlaps: a simulated device runs one operation at a time.
        partition: Number of stages of each device. The sum is J.
        micro_batches: Number of micro-batches.
        accumulation: Number of micro-batches per update, k.
        staleness: Staleness of each stage. None for lockstep, or for zero if the method is not pipelined.

    Raises:
        ValueError: If the staleness does not match the method or the partition.

    """
    stages = sum(partition)
    vector = resolve(method, stages, accumulation, staleness)

    def step_actions(own: range, step: int) -> Iterator[tuple[int, Action]]:
        """Yield the actions of a device in a step with their stages: forwards upwards, then backwards downwards."""
        if step < micro_batches:
            yield from ((stage, Action(Kind.FORWARD, step)) for stage in own)
        for stage in reversed(own):
            number = step - vector[stage]
            if 0 <= number < micro_batches:
                for action in backward_actions(method, number, accumulation, head=stage == stages - 1):
                    yield stage, action

    return [
        [
            (action.kind.value, stage, action.number)
            for step in range(micro_batches + vector[0])
            for stage, action in step_actions(own, step)
            if action.kind is not Kind.RECONSTRUCT  # its cost is part of the backward
        ]
        for own in stage_ranges(partition, stages)
    ]


def simulate(schedule: Schedule, costs: Sequence[Cost], link: Link = INSTANT) -> Timeline:
    """Simulate the operations of all devices, each as early as possible.

    Args:
        schedule: Operations of each device in the order of execution: `F` (forward), `B` (backward) and `U`
            (update).
        costs: Cost of each stage.
        link: Link between any two devices.

    Raises:
        ScheduleError: If a device waits for an operation that no device runs, or for one that depends on the waiting
            one (a deadlock).

    """
    device_of = {name: device for device, names in enumerate(schedule) for name in names}
    seconds = {
        "F": [cost.forward for cost in costs],
        "B": [cost.backward for cost in costs],
        "U": [cost.update for cost in costs],
    }
    sizes = {"F": [cost.up for cost in costs], "B": [cost.down for cost in costs]}
    arrived: dict[Name, float] = {}  # when the result of an operation is on the device of the stage that it is sent to
    free = [0.0] * len(schedule)
    link_free: dict[tuple[int, int], float] = {}
    queues = [deque(names) for names in schedule]
    events: list[list[Event]] = [[] for _ in schedule]
    waiting: dict[Name, list[int]] = {}  # by operation: the devices that wait for it
    able = list(range(len(schedule)))
    while able:
        device = able.pop()
        queue = queues[device]
        while queue:
            name = kind, stage, number = queue[0]
            begin = free[device]
            missing = None
            for need in _needs(name, len(costs)):
                if need not in arrived:
                    missing = need
                    break
                if need[1] != stage and arrived[need] > begin:
                    begin = arrived[need]
            if missing is not None:
                waiting.setdefault(missing, []).append(device)
                break
            queue.popleft()
            arrived[name] = end = free[device] = begin + seconds[kind][stage]
            events[device].append(Event(device, name, begin, end))
            if kind in DIRECTIONS:
                receiver = device_of.get((kind, stage + DIRECTIONS[kind], number), device)
                if receiver != device:
                    gone = max(end, link_free.get((device, receiver), 0.0)) + link.seconds(sizes[kind][stage])
                    link_free[device, receiver] = gone
                    arrived[name] = gone + link.latency
            able += waiting.pop(name, ())
    stuck = {device: queue[0] for device, queue in enumerate(queues) if queue}
    if stuck:
        raise ScheduleError(
            "; ".join(
                f"device {device} waits before {_text(name)} for "
                + ", ".join(_text(need) for need in _needs(name, len(costs)) if need not in arrived)
                for device, name in stuck.items()
            )
        )
    return Timeline(tuple(event for on_device in events for event in on_device), len(schedule))


def _needs(name: Name, stages: int) -> list[Name]:
    """Return the operations that must be complete before an operation."""
    kind, stage, number = name
    needs = [(OWN[kind], stage, number)] if kind in OWN else []
    if kind in DIRECTIONS and 0 <= stage - DIRECTIONS[kind] < stages:
        needs.append((kind, stage - DIRECTIONS[kind], number))
    return needs


def _text(name: Name) -> str:
    return f"{name[0]}{name[2]} of stage {name[1]}"
