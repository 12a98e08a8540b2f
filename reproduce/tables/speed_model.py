"""How fast a pipeline would be with one device a stage, from what each stage costs on one: Table 5, modelled.

Two ways of training the same stages are compared, both of which rebuild inputs:

    one at a time   reversible backpropagation without overlap: a micro-batch passes all stages up and down, and the
                    next one enters when it is done. All forwards and backwards in a row, and all messages; an update is
                    waited for at stage 0 alone, the others happen while stages below work
    pipelined       PETRA: every device has a turn of its own (forward, backward, share of an update, its messages) at
                    every tick, and the slowest sets the pace

This is the steady state by arithmetic, without waiting queues: it holds because in PETRA's pipeline nobody waits for
anything but the tick. A simulator of timelines, or devices, may replace it: whoever shows Table 5 asks for two times.

Times are in seconds for a micro-batch, sizes in bytes.

This module exports Cost, Link, NO_LINK, devices_enough, one_at_a_time, pipelined, slowest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["NO_LINK", "Cost", "Link", "devices_enough", "one_at_a_time", "pipelined", "slowest"]


@dataclass(frozen=True)
class Link:
    """What a message between two devices costs.

    Attributes:
        bandwidth: bytes a second.
        latency: seconds that an empty message takes.

    """

    bandwidth: float = math.inf
    latency: float = 0.0

    def seconds(self, size: int) -> float:
        """Time of a message; nothing to send takes none."""
        return self.latency + size / self.bandwidth if size else 0.0


NO_LINK = Link()


@dataclass(frozen=True)
class Cost:
    """What a micro-batch costs at one stage.

    Attributes:
        forward: seconds.
        backward: seconds, with what it rebuilds.
        update: seconds of an update, divided by the k micro-batches that share it.
        up, down: bytes of the messages to the stages above and below.

    """

    forward: float
    backward: float
    update: float
    up: int
    down: int

    @property
    def turn(self) -> float:
        """Everything that the stage's device does for a micro-batch."""
        return self.forward + self.backward + self.update


def one_at_a_time(costs: Sequence[Cost], link: Link = NO_LINK) -> float:
    """Seconds for a micro-batch if the next one enters when it is done."""
    work = sum(cost.forward + cost.backward for cost in costs) + costs[0].update
    return work + sum(link.seconds(cost.up) + link.seconds(cost.down) for cost in costs)


def pipelined(costs: Sequence[Cost], link: Link = NO_LINK) -> float:
    """Seconds for a micro-batch in the full pipeline; a device receives its messages before it begins its turn."""
    below = [0, *(cost.up for cost in costs[:-1])]
    above = [*(cost.down for cost in costs[1:]), 0]
    return max(
        cost.turn + link.seconds(up) + link.seconds(down) for cost, up, down in zip(costs, below, above, strict=True)
    )


def slowest(costs: Sequence[Cost]) -> int:
    """The stage that sets the pace."""
    return max(range(len(costs)), key=lambda stage: costs[stage].turn)


def devices_enough(costs: Sequence[Cost]) -> int:
    """Devices that give the same pace when neighbouring stages that are quick share one."""
    pace, devices, used = costs[slowest(costs)].turn, 0, math.inf
    for cost in costs:
        if used + cost.turn > pace * (1 + 1e-9):
            devices, used = devices + 1, 0.0
        used += cost.turn
    return devices
