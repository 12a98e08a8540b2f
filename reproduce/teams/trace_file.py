"""`train --trace FILE`: some micro-batches of a real run as a Chrome trace, all processes in one file.

Traced is what comes after the pipeline has been filled, since the first micro-batches show caches and kernels that are
chosen rather than the schedule. Perfetto (https://ui.perfetto.dev) and chrome://tracing open the file.
"""

import contextlib
from pathlib import Path

import click

from petra_core import Pipeline
from petra_core.tracing import Trace, gathered, timeline
from reproduce.records.storage import write_json
from reproduce.teams.team import Team


class TraceFile:
    """Traces so many micro-batches of a run from the moment at which its pipeline is full, and writes the file.

    Where the file cannot be written, as on a full disk, that is said, and the run goes on without it.
    """

    def __init__(self, path: Path, micro_batches: int, team: Team) -> None:
        self._path, self._count, self._team = path, micro_batches, team
        self._contexts = contextlib.ExitStack()
        self._trace: Trace | None = None
        self._first: int | None = None  # micro-batch that is traced, counted from the run's start or resumption
        self._written = False

    def before_step(self, pipeline: Pipeline) -> None:
        """Begin or end the trace where it is time; to be called before every step."""
        number = pipeline.micro_batches
        if self._first is None:
            self._first = number + pipeline.staleness[0] + 2
        if number == self._first:
            self._trace = self._contexts.enter_context(pipeline.tracing(self._team.rank))
        if number == self._first + self._count:
            self.finish()

    def finish(self) -> None:
        """Write the trace, unless it has been done; to be called at the end of the run."""
        self._contexts.close()
        if self._trace is None and self._team.leads:
            first = "" if self._first is None else f", and the first to be traced would have been {self._first}"
            click.echo(f"--trace: nothing was traced: the run was over before its pipeline was full{first}", err=True)
        if self._trace is None or self._written:
            return
        traces = gathered(self._trace) if self._team.size > 1 else [self._trace]
        self._written = True
        if self._team.leads:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_json(self._path, timeline(traces, waits=True).chrome_trace())
            except OSError as error:
                click.echo(f"WARNING: --trace: no trace was written ({error}); the run continues", err=True)
