"""Simulate a run: calculate begin and end of every operation from measured costs and a model of the links.

The time of a pipelined run is often estimated as the number of ticks times the time of the slowest stage. This ignores
waiting and the transfer of messages, which determine whether a schedule is useful. Here each device executes its
operations in order, each as soon as the device is free and its inputs have arrived. A link transfers one message at a
time in each direction. This simulates any schedule: those of the engine (`petra_core.prediction.orders`) and
synchronous ones. The result is a `Timeline` like the trace of a real run (`petra_core.prediction.tracing`), so the two
can be compared.

Times are in seconds, sizes in bytes.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from petra_core.errors import ScheduleError
from petra_core.prediction.timeline import Event, Name, Timeline

__all__ = ["INSTANT", "Cost", "Link", "Operation", "simulate"]


@dataclass(frozen=True)
class Cost:
    """Seconds and bytes that one stage takes for one micro-batch.

    Attributes:
        forward: Seconds of a forward that keeps no graph.
        backward: Seconds of a backward, including the evaluation that reconstructs the graph if the method needs one.
        update: Seconds of an optimizer step.
        up: Bytes of the output, which is sent to the stage above.
        down: Bytes of the message to the stage below: a gradient, and the input if the stage below reconstructs.
        weights: Bytes of the gradients of the weights, which replicas of the stage exchange at an update.

    """

    forward: float
    backward: float
    update: float = 0.0
    up: int = 0
    down: int = 0
    weights: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value >= 0:
                raise ValueError(f"{name} must not be negative, got {value}")


@dataclass(frozen=True)
class Link:
    """Connection between two devices, the same in both directions.

    Attributes:
        latency: Seconds that an empty message takes.
        bandwidth: Bytes per second.

    """

    latency: float = 0.0
    bandwidth: float = float("inf")

    def __post_init__(self) -> None:
        if not (self.latency >= 0 and self.bandwidth > 0):
            raise ValueError(f"a link has a latency of at least 0 and a bandwidth above 0, got {self}")

    def seconds(self, size: int) -> float:
        """Return the seconds for which a message of `size` bytes occupies the link, without the latency."""
        return size / self.bandwidth

    def all_reduce(self, size: int, devices: int) -> float:
        """Return the seconds of a ring all-reduce of `size` bytes over `devices` devices (Patarasuk and Yuan 2009).

        It takes 2 (devices - 1) steps, and each transfers size / devices bytes.
        """
        return 2 * (devices - 1) * (self.latency + self.seconds(size) / devices)


INSTANT = Link()


class Operation(NamedTuple):
    """Operation of a device, with its duration and dependencies.

    Attributes:
        name: Kind, stage and micro-batch. The kind is `F`, `B`, `W` (gradients of weights only) or `U`. An update has
            its number instead of a micro-batch, counted over all replicas of the stage. Names are unique.
        seconds: Duration.
        needs: Operations that must be complete before, on any device, with the bytes to transfer if it is another
            device.

    """

    name: Name
    seconds: float
    needs: tuple[tuple[Name, int], ...] = ()


def simulate(devices: Sequence[Sequence[Operation]], link: Link = INSTANT) -> Timeline:
    """Simulate the operations of all devices, each as early as possible.

    Args:
        devices: Operations of each device in the order of execution.
        link: Link between any two devices.

    Raises:
        ScheduleError: If a device waits for an operation that no device runs, or for one that depends on the waiting
            one (a deadlock).

    """
    receivers = _receivers(devices)
    known: list[dict[Name, float]] = [{} for _ in devices]  # by device: when each result is available there
    free = [0.0] * len(devices)
    link_free: dict[tuple[int, int], float] = {}
    queues = [deque(operations) for operations in devices]
    events: list[list[Event]] = [[] for _ in devices]
    waiting: dict[Name, list[int]] = {}  # by operation: the devices that wait for it
    able = list(range(len(devices)))
    while able:
        device = able.pop()
        queue, here = queues[device], known[device]
        while queue:
            operation = queue[0]
            missing = next((need for need, _ in operation.needs if need not in here), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(device)
                break
            queue.popleft()
            begin = max(free[device], *[here[need] for need, _ in operation.needs]) if operation.needs else free[device]
            end = free[device] = here[operation.name] = begin + operation.seconds
            events[device].append(Event(device, operation.name, begin, end))
            for receiver, size in receivers.get(operation.name, {}).items():
                gone = max(end, link_free.get((device, receiver), 0.0)) + link.seconds(size)
                link_free[device, receiver] = gone
                known[receiver][operation.name] = gone + link.latency
            able += waiting.pop(operation.name, ())
    stuck = {device: queue[0] for device, queue in enumerate(queues) if queue}
    if stuck:
        raise ScheduleError(
            "; ".join(
                f"device {device} waits before {_text(operation.name)} for "
                + ", ".join(_text(need) for need, _ in operation.needs if need not in known[device])
                for device, operation in stuck.items()
            )
        )
    return Timeline(tuple(event for of_device in events for event in of_device), len(devices))


def _receivers(devices: Sequence[Sequence[Operation]]) -> dict[Name, dict[int, int]]:
    """Return the devices that receive each operation's result from another device: operation -> device -> bytes."""
    place = {operation.name: device for device, operations in enumerate(devices) for operation in operations}
    receivers: dict[Name, dict[int, int]] = {}
    for device, operations in enumerate(devices):
        for operation in operations:
            for need, size in operation.needs:
                if place.get(need, device) != device:
                    receivers.setdefault(need, {})[device] = size
    return receivers


def _text(name: Name) -> str:
    return f"{name[0]}{name[2]} of stage {name[1]}"
