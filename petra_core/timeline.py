"""What every device did when: the form of a run that was measured, and of one that was predicted.

`petra_core.tracing` makes a timeline of a run, `petra_core.prediction.simulation` one of costs and links. Both are
drawn, exported (`Timeline.chrome_trace`) and compared. Times are in seconds.
"""

from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

__all__ = ["Event", "Name", "Timeline"]

Name = tuple[str, int, int]  # kind, stage, micro-batch (of an update: its number)


class Event(NamedTuple):
    """An operation of a device with its begin and end, in seconds."""

    device: int
    name: Name
    begin: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """The operations of all devices in a run, with their times in seconds.

    Attributes:
        events: of all devices, in the order in which each device did them, device by device.
        devices: their number.

    """

    events: tuple[Event, ...]
    devices: int

    @property
    def seconds(self) -> float:
        """Length of the run, from the first begin to the last end."""
        if not self.events:
            return 0.0
        return max(event.end for event in self.events) - min(event.begin for event in self.events)

    def busy(self, device: int) -> float:
        """Seconds for which a device works; those in which it does two things at once count once."""
        seconds, until = 0.0, -inf
        for event in sorted((event for event in self.events if event.device == device), key=lambda event: event.begin):
            seconds += max(0.0, event.end - max(event.begin, until))
            until = max(until, event.end)
        return seconds

    def idle(self, device: int) -> float:
        """Seconds for which a device waits, from the first begin of any to the last end of any."""
        return self.seconds - self.busy(device)

    def seconds_per_micro_batch(self, skip: int = 0, drop: int = 0) -> float:
        """Time between the ends of micro-batches (of their last `B` or `W` anywhere).

        Args:
            skip: micro-batches at the beginning that do not count, while the pipeline fills.
            drop: micro-batches at the end that do not count, while it drains.

        Raises:
            ValueError: there are fewer than two micro-batches between those.

        """
        ends: dict[int, float] = {}
        for event in self.events:
            if event.name[0] in "BW":
                ends[event.name[2]] = max(ends.get(event.name[2], 0.0), event.end)
        steady = sorted(ends.values())[skip : max(0, len(ends) - drop)]
        if len(steady) < 2:
            raise ValueError(
                f"{len(ends)} micro-batches, less {skip} at the beginning and {drop} at the end, give no time between "
                f"two"
            )
        return (steady[-1] - steady[0]) / (len(steady) - 1)

    def chrome_trace(self) -> dict[str, Any]:
        """The timeline in the format that Perfetto and chrome://tracing open (microseconds)."""
        return {
            "traceEvents": [
                {
                    "name": f"{kind}{number}",
                    "cat": kind,
                    "ph": "X",
                    "ts": event.begin * 1e6,
                    "dur": (event.end - event.begin) * 1e6,
                    "pid": 0,
                    # A track shows what follows one another: what is done beside a backward has one of its own.
                    "tid": event.device + self.devices * (kind == "R"),
                    "args": {"stage": stage, "micro_batch": number},
                }
                for event in self.events
                for kind, stage, number in (event.name,)
            ],
            "displayTimeUnit": "ms",
        }
