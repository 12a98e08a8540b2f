"""`run`: a grid of cells, from its plan to the conclusion.

What runs cells needs torch, which takes seconds to import. It comes where there is something to run: to explain, to
refuse or to show the plan does not wait for it.
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
from reproduce.words import count

WHICH, MANY = grouped("Which cells"), grouped("Which cells", ListOption)
WHERE, WHERE_MANY, HOW = grouped("Where"), grouped("Where", ListOption), grouped("How")


@click.command(cls=GroupedCommand)
@click.argument("scale", metavar="SCALE")
@MANY("--tables", metavar="NAME,…", help="Cells that these tables and figures need: table2, figure4, stability, …")
@MANY("--models", metavar="MODEL,…", help="Such as revnet18,resnet50.")
@MANY("--methods", metavar="METHOD,…", help="Such as petra,backpropagation.")
@MANY("--k", "-k", metavar="K,…", help="Accumulation factors, such as 1,4.")
@MANY("--datasets", metavar="NAME,…", help=f"Of {', '.join(catalogue.DATASETS)}.")
@MANY(
    "--seeds",
    metavar="N | SEED,SEED,…",
    help="The first N, or several seeds themselves, such as 0,2. Seed 2 alone: --only seed=2.",
)
@WHICH(
    "--only",
    metavar="SETTING=VALUE[,VALUE]",
    multiple=True,
    help="Cells with these values of any setting, such as --only kind=training --only batch_size=64. Repeatable.",
)
@WHICH("--loader", help="Deliver batches by ffcv, memory or torchvision: cells of their own, recorded apart.")
@WHICH("--precision", help="float32, tf32 (CUDA) or bf16: cells of their own, recorded apart.")
@WHICH("--timing", help="lockstep, 1f1b or 1f1b+S of pipelined methods: cells of their own, recorded apart.")
@WHICH("--retry-failed", is_flag=True, show_default=False, help="Also cells that diverged or ran out of memory.")
@WHERE("--records", "root", type=FOLDER, default=DEFAULT_ROOT, help="Their folder; machines may share it.")
@WHERE_MANY(
    "device_names",
    "--devices",
    "--device",
    metavar="DEVICE,…",
    show_default="cpu",
    help="cuda: all GPUs, a cell each; cuda:0,cuda:1: these; cpu.",
)
@WHERE(
    "--jobs",
    type=click.IntRange(1),
    show_default="one a GPU; on the CPU cores / threads",
    help="Worker processes; those of one GPU share its memory evenly.",
)
@WHERE("--threads", type=click.IntRange(1), default=THREADS, help="Of each worker; another number gives other bits.")
@how_options(HOW)
@HOW(
    "--dry-run",
    is_flag=True,
    show_default=False,
    help="Only show the plan: what is done, what is locked, hours left by recorded speed.",
)
@HOW("-v", "--verbose", is_flag=True, show_default=False, help="With --dry-run: every cell on a line of its own.")
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

    Stopped in any way, the same command goes on where it was, and ends with the same records.

    Scales: smoke, small, narrow, paper. Several values are joined by commas: --k 1,4.
    """
    if verbose and not dry_run:
        raise click.UsageError("--verbose: --dry-run is missing, the plan of which it shows every cell")
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
    each = f"{count(workers, 'worker')} of {count(threads, 'thread')} each"
    click.echo(f"{count(len(chosen), 'cell')} of the scale {scale} -> {root} ({each})", err=True)
    outcome = run_grid(chosen, settings, retry_failed=retry_failed)
    conclude(scales.by_name(scale), outcome, root)
