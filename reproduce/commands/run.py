"""Define `run`: run a grid of cells, from its plan to the conclusion.

Running cells needs torch, which takes seconds to import. It is imported only when there is something to run, so that
help, errors and the plan stay fast.
"""

import sys
from dataclasses import replace

import click

from reproduce.commands.common import CORES, check_writable
from reproduce.commands.options import Command, options_of
from reproduce.grids import scales
from reproduce.grids.selection import Selection
from reproduce.running import devices, planning
from reproduce.running.grid_options import GridOptions
from reproduce.text import count


@click.command(cls=Command)
@click.argument("scale", metavar="SCALE", type=click.Choice(list(scales.SCALES)))
@options_of(Selection, "selection")
@options_of(GridOptions, "options")
@click.help_option("-h", "--help")
def run(scale: str, selection: Selection, options: GridOptions) -> None:
    """Run all cells of SCALE that have no result yet.

    If the run is stopped, in any way, the same command resumes it and gives the same records.

    Scales: smoke, small, narrow, paper. Separate several values by commas: --k 1,4.
    """
    if options.verbose and not options.dry_run:
        raise click.UsageError("--verbose: --dry-run is missing; --verbose lists every cell of its plan")
    from reproduce.grids.grid import grid_of

    chosen = selection.variants(selection.select(grid_of(scale)))
    where = devices.choose(options.devices)
    devices.check_cuda(options.cuda_graphs, selection.precision, where)
    options = replace(options, devices=where, jobs=devices.workers(where, options.jobs, options.threads, CORES))
    if options.dry_run:
        plan = planning.read_plan(chosen, scale, options)
        click.echo((planning.listing if options.verbose else planning.table)(plan, options.jobs))
        for sentence in planning.missing_data(plan, options.data_root):
            click.echo(sentence, err=True)
        sys.exit(1 if any(item.problem for items in plan.values() for item in items) else 0)
    check_writable(options.root, "--records")
    from reproduce.commands.conclusion import conclude
    from reproduce.running.runner import run_grid

    each = f"{count(options.jobs, 'worker')} with {count(options.threads, 'thread')} each"
    click.echo(f"{count(len(chosen), 'cell')} of the scale {scale} -> {options.root} ({each})", err=True)
    outcome = run_grid(chosen, options.share_cores(CORES, options.jobs))
    conclude(scales.by_name(scale), outcome, options.root)
