"""Run a small pipeline and draw the schedule that it executed: `python -m petra_core.drawing docs/schedule.svg`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from petra_core import methods
from petra_core.drawing.execution import executed
from petra_core.drawing.schedules import to_svg
from petra_core.files import replacing


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line. Raises: SystemExit: it is wrong."""
    parser = argparse.ArgumentParser(prog="python -m petra_core.drawing", description=__doc__)
    parser.add_argument("file", type=Path, help="the SVG to write")
    parser.add_argument("--method", default="PETRA", help="such as DSP (default PETRA)")
    parser.add_argument("--stages", type=int, default=4, help="J (default 4)")
    parser.add_argument("--micro-batches", type=int, default=7, help="that enter before the drain (default 7)")
    parser.add_argument("-k", "--accumulation", type=int, default=1, help="micro-batches of an update (default 1)")
    parser.add_argument("--highlight", type=int, help="micro-batch whose way is traced (default the second)")
    given = parser.parse_args(arguments)
    try:
        method = methods.by_name(given.method)
        schedule = executed(method, given.stages, given.micro_batches, given.accumulation)
        second = min(1, given.micro_batches - 1)
        drawing = to_svg(schedule, highlight=second if given.highlight is None else given.highlight)
    except ValueError as error:
        parser.error(str(error))
    try:
        with replacing(given.file) as file:
            file.write(f"{drawing}\n".encode())
    except OSError as error:
        parser.error(f"{given.file} cannot be written: {error.strerror}")


if __name__ == "__main__":
    main()
