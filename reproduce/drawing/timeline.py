"""Timelines: begin and end of each operation on each device, measured or simulated.

`reproduce.modelling.simulation` computes a timeline from costs and links. The events of a run, which an executor can
record (`petra_core.devices.execution`), make one too. Both can be drawn, exported (`Timeline.chrome_trace`) and
compared. Times are in seconds.
"""

from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

from petra_core.errors import PetraError

Name = tuple[str, int, int]  # kind, stage, and number of the micro-batch or update


class ScheduleError(PetraError):
    """The error of a schedule that breaks a dependency. The message names the stage and the action."""


class Event(NamedTuple):
    """Operation on a device.

    Attributes:
        device: Index of the device.
        name: Kind, stage, and number of the micro-batch or update.
        begin: Begin in seconds.
        end: End in seconds.

    """

    device: int
    name: Name
    begin: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """Operations of all devices in a run, with times in seconds.

    Attributes:
        events: Events, device by device, each device's in the order of execution.
        devices: Number of devices.

    """

    events: tuple[Event, ...]
    devices: int

    @property
    def seconds(self) -> float:
        """Duration of the run, from the first begin to the last end."""
        if not self.events:
            return 0.0
        return max(event.end for event in self.events) - min(event.begin for event in self.events)

    def busy(self, device: int) -> float:
        """Return the seconds for which a device works. Overlapping operations are not counted twice."""
        seconds, until = 0.0, -inf
        for event in sorted((event for event in self.events if event.device == device), key=lambda event: event.begin):
            seconds += max(0.0, event.end - max(event.begin, until))
            until = max(until, event.end)
        return seconds

    def idle(self, device: int) -> float:
        """Return the seconds for which a device is idle between the first begin and the last end of all devices."""
        return self.seconds - self.busy(device)

    def seconds_per_micro_batch(self, skip: int = 0, drop: int = 0) -> float:
        """Return the mean time between the ends of successive micro-batches.

        A micro-batch ends with its last `B` or `W` on any device.

        Args:
            skip: Micro-batches to ignore at the beginning, while the pipeline fills.
            drop: Micro-batches to ignore at the end, while the pipeline drains.

        Raises:
            ValueError: If fewer than two micro-batches remain.

        """
        ends: dict[int, float] = {}
        for event in self.events:
            if event.name[0] in "BW":
                ends[event.name[2]] = max(ends.get(event.name[2], 0.0), event.end)
        steady = sorted(ends.values())[skip : max(0, len(ends) - drop)]
        if len(steady) < 2:
            raise ValueError(
                f"the time per micro-batch needs at least two micro-batches, got {len(steady)}: {len(ends)} minus "
                f"{skip} at the beginning and {drop} at the end; trace a longer run"
            )
        return (steady[-1] - steady[0]) / (len(steady) - 1)

    def chrome_trace(self) -> dict[str, Any]:
        """Return the timeline in the format of Perfetto and chrome://tracing (microseconds)."""
        return {
            "traceEvents": [
                {
                    "name": f"{kind}{number}",
                    "cat": kind,
                    "ph": "X",
                    "ts": event.begin * 1e6,
                    "dur": (event.end - event.begin) * 1e6,
                    "pid": 0,
                    # Events of a track must not overlap. Reconstructions may overlap with backwards, so they have a
                    # separate track.
                    "tid": event.device + self.devices * (kind == "R"),
                    "args": {"stage": stage, "micro_batch": number},
                }
                for event in self.events
                for kind, stage, number in (event.name,)
            ],
            "displayTimeUnit": "ms",
        }
