"""Define `run`: run a grid of cells, from its plan to the conclusion.

Running cells needs torch, which takes seconds to import. It is imported only when there is something to run, so that
help, errors and the plan stay fast.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from reproduce.cells import catalogue
from reproduce.commands.common import CORES, FOLDER, THREADS, check_writable, how_options, shared_by
from reproduce.commands.options import GroupedCommand, ListOption, grouped
from reproduce.grids import scales, selection
from reproduce.measures.how import How
from reproduce.records import provenance, speed
from reproduce.records.record import DEFAULT_ROOT
from reproduce.running import devices, planning
from reproduce.text import count

WHICH, MANY = grouped("Which cells"), grouped("Which cells", ListOption)
WHERE, WHERE_MANY, HOW = grouped("Where"), grouped("Where", ListOption), grouped("How")


@click.command(cls=GroupedCommand)
@click.argument("scale", metavar="SCALE")
@MANY("--tables", metavar="NAME,…", help="Cells of these tables and figures, such as table2,figure4,stability.")
@MANY("--models", metavar="MODEL,…", help="Networks, such as revnet18,resnet50.")
@MANY("--methods", metavar="METHOD,…", help="Methods, such as petra,backpropagation.")
@MANY("--k", "-k", metavar="K,…", help="Accumulation factors, such as 1,4.")
@MANY("--datasets", metavar="NAME,…", help=f"Data sets: {', '.join(catalogue.DATASETS)}.")
@MANY(
    "--seeds",
    metavar="N | SEED,SEED,…",
    help="The first N seeds, or a list of seeds such as 0,2. For a single seed: --only seed=2.",
)
@WHICH(
    "--only",
    metavar="SETTING=VALUE[,VALUE]",
    multiple=True,
    help="Cells with these values of a setting, such as --only kind=training --only batch_size=64. Repeatable.",
)
@WHICH("--loader", help="ffcv, memory or torchvision. These are separate cells.")
@WHICH("--precision", help="float32, tf32 (CUDA) or bf16. These are separate cells.")
@WHICH("--timing", help="lockstep, 1f1b or 1f1b+S, for pipelined methods. These are separate cells.")
@WHICH("--retry-failed", is_flag=True, show_default=False, help="Run cells again that diverged or ran out of memory.")
@WHERE("--records", "root", type=FOLDER, default=DEFAULT_ROOT, help="Folder of records; machines may share it.")
@WHERE_MANY(
    "device_names",
    "--devices",
    "--device",
    metavar="DEVICE,…",
    show_default="cpu",
    help="cuda for all GPUs, with one cell each; cuda:0,cuda:1 for these two; cpu.",
)
@WHERE(
    "--jobs",
    type=click.IntRange(1),
    show_default="one per GPU; on the CPU cores / threads",
    help="Worker processes; those on one GPU share its memory evenly.",
)
@WHERE(
    "--threads",
    type=click.IntRange(1),
    default=THREADS,
    help="Threads of each worker. Changing it changes results in the last bits.",
)
@how_options(HOW)
@HOW(
    "--dry-run",
    is_flag=True,
    show_default=False,
    help="Only show the plan: done and locked cells, and the remaining hours from recorded speeds.",
)
@HOW("-v", "--verbose", is_flag=True, show_default=False, help="With --dry-run: one line per cell.")
@click.help_option("-h", "--help")
def run(
    scale: str,
    tables: Sequence[str],
    seeds: Sequence[str],
    only: Sequence[str],
    loader: str | None,
    precision: str | None,
    timing: str | None,
    retry_failed: bool,
    root: Path,
    device_names: Sequence[str],
    jobs: int | None,
    threads: int,
    how: How,
    dry_run: bool,
    verbose: bool,
    **conditions: Sequence[str],
) -> None:
    """Run all cells of SCALE that have no result yet.

    If the run is stopped, in any way, the same command resumes it and gives the same records.

    Scales: smoke, small, narrow, paper. Separate several values by commas: --k 1,4.
    """
    if verbose and not dry_run:
        raise click.UsageError("--verbose: --dry-run is missing; --verbose lists every cell of its plan")
    from reproduce.grids.grid import grid_of

    grid = grid_of(scale)
    chosen = selection.select(grid, conditions, tables=tables, seeds=seeds, only=only)
    chosen = selection.with_settings(chosen, loader=loader, precision=precision, timing=timing)
    where = devices.choose(device_names or ["cpu"])
    devices.check_graphs(how.cuda_graphs, where)
    workers = devices.workers(where, jobs, threads, CORES)
    if dry_run:
        kind = speed.Device(
            provenance.device_name(where[0]),
            provenance.processor(),
            threads,
            sharing=devices.sharing(where, workers),
            cuda_graphs=how.cuda_graphs,
            compiled=how.compiled_as_recorded,
        )
        plan = planning.read(chosen, scale, root, kind, retry_failed=retry_failed)
        click.echo(planning.listing(plan, workers) if verbose else planning.table(plan, workers))
        sys.exit(1 if any(item.problem for items in plan.values() for item in items) else 0)
    check_writable(root, "--records")
    from reproduce.commands.conclusion import conclude
    from reproduce.running.runner import run_grid
    from reproduce.running.worker import Settings

    settings = Settings(root=root, jobs=workers, threads=threads, devices=where, how=shared_by(how, workers))
    each = f"{count(workers, 'worker')} with {count(threads, 'thread')} each"
    click.echo(f"{count(len(chosen), 'cell')} of the scale {scale} -> {root} ({each})", err=True)
    outcome = run_grid(chosen, settings, retry_failed=retry_failed)
    conclude(scales.by_name(scale), outcome, root)
