"""Write a Chrome trace of some micro-batches of a run for `train --trace FILE`, all processes in one file.

Tracing starts after the pipeline has been filled, because the first micro-batches are dominated by cache warm-up and
kernel selection. Open the file with Perfetto (https://ui.perfetto.dev) or chrome://tracing.
"""

import contextlib
from pathlib import Path

import click

from petra_core import Pipeline
from reproduce.distributed.group import Group
from reproduce.distributed.tracing import Trace, gather_events, make_timeline, tracing
from reproduce.records.storage import write_json


class TraceFile:
    """Trace micro-batches of a run after its pipeline has been filled, and write the file.

    If the file cannot be written, a warning is printed and the run continues.

    Args:
        path: File to write.
        micro_batches: Number of micro-batches to trace.
        group: Processes of the run.

    """

    def __init__(self, path: Path, micro_batches: int, group: Group) -> None:
        self._path, self._count, self._group = path, micro_batches, group
        self._contexts = contextlib.ExitStack()
        self._trace: Trace | None = None
        self._first: int | None = None  # first micro-batch to trace, counted from the start or resumption of the run
        self._written = False

    def before_step(self, pipeline: Pipeline) -> None:
        """Begin or end the trace if it is time. Call this before every step."""
        number = pipeline.micro_batches
        if self._first is None:
            self._first = number + pipeline.staleness[0] + 2
        if number == self._first:
            self._trace = self._contexts.enter_context(tracing(pipeline, self._group.rank))
        if number == self._first + self._count:
            self.finish()

    def finish(self) -> None:
        """Write the trace unless it was written already. Call this at the end of the run."""
        self._contexts.close()
        if self._trace is None and self._group.is_leader:
            first = "" if self._first is None else f"; the first micro-batch to trace would have been {self._first}"
            click.echo(f"--trace: nothing was traced: the run ended before its pipeline was full{first}", err=True)
        if self._trace is None or self._written:
            return
        events = gather_events(self._trace, self._group.gather)
        self._written = True
        if self._group.is_leader:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_json(self._path, make_timeline(events, waits=True).chrome_trace())
            except OSError as error:
                click.echo(f"WARNING: --trace: no trace was written ({error}); the run continues", err=True)
