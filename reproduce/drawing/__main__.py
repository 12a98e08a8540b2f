"""Run small pipelines and draw the actions that they executed: `python -m reproduce.drawing docs/schedule.svg`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from petra_core import methods
from petra_core.files import replacing
from petra_core.methods import Method
from petra_core.shares import run_name, runs
from petra_core.staleness import lockstep, one_f_one_b, per_device
from reproduce.cells.timing import even_partition
from reproduce.drawing.execution import execute, lay_out
from reproduce.drawing.gantt import Panel, to_svg

WINDOW = 64  # forwards, of the axis of time


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Raises:
        SystemExit: If an argument is invalid or the file cannot be written.

    """
    parser = argparse.ArgumentParser(prog="python -m reproduce.drawing", description=__doc__)
    parser.add_argument("file", type=Path, help="the SVG to write")
    parser.add_argument("--method", default="PETRA", help="such as DSP (default PETRA)")
    parser.add_argument("--stages", type=int, default=8, help="J (default 8)")
    parser.add_argument(
        "--devices", type=int, help="of the last picture, in which they share stages (default half of J)"
    )
    parser.add_argument("--micro-batches", type=int, default=16, help="that enter before the drain (default 16)")
    parser.add_argument("-k", "--accumulation", type=int, default=1, help="micro-batches of an update (default 1)")
    given = parser.parse_args(arguments)
    try:
        method = methods.by_name(given.method)
        devices = max(1, given.stages // 2) if given.devices is None else given.devices
        drawing = pictures(method, given.stages, devices, given.micro_batches, given.accumulation)
    except ValueError as error:
        parser.error(str(error))
    try:
        with replacing(given.file) as file:
            file.write(f"{drawing}\n".encode())
    except OSError as error:
        parser.error(f"{given.file} cannot be written: {error.strerror}")


def pictures(method: Method, stages: int, devices: int, micro_batches: int, accumulation: int) -> str:
    """Return one SVG with the schedules of a method, one below the other.

    A pipelined method is drawn in lockstep, in asynchronous 1F1B and in asynchronous 1F1B on fewer devices. Any other
    method has a single schedule.

    Args:
        method: The method.
        stages: Number of stages J.
        devices: Number of devices in the last picture.
        micro_batches: Number of micro-batches before the drain.
        accumulation: Micro-batches per update, k.

    Raises:
        ValueError: If a number is out of range.

    """
    single, shared = (1,) * stages, even_partition(stages, devices)
    ways = [("one stage per device, one micro-batch at a time", single, (0,) * stages)]
    if method.pipelined:
        ways = [
            ("lockstep", single, lockstep(stages)),
            ("asynchronous 1F1B", single, one_f_one_b(stages)),
            (f"asynchronous 1F1B on {devices} devices", shared, per_device(shared)),
        ]
    panels = []
    for name, partition, staleness in ways:
        timeline = lay_out(execute(method, stages, micro_batches, accumulation, staleness), partition)
        lanes = [f"stages {run_name(run)}" if len(run) > 1 else f"stage {run.start}" for run in runs(partition)]
        title = f"{method.title}, {name}: staleness {', '.join(map(str, staleness))}"
        panels.append(Panel(title, timeline, (0, WINDOW), lanes))
    title = f"{method.title} on {stages} stages, k = {accumulation}"
    return to_svg(panels, key="schedule", title=title, unit="forwards")


if __name__ == "__main__":
    main()
