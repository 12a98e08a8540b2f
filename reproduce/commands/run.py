"""`run`: a grid of cells, from its plan to the conclusion.

What runs cells needs torch, which takes seconds to import. It comes where there is something to run: to explain, to
refuse or to show the plan does not wait for it.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from reproduce.cells import catalogue
from reproduce.commands.common import (
    COMPILED,
    CORES,
    DATA_WORKERS,
    FOLDER,
    GRAPHS,
    THREADS,
    check_writable,
    checked,
    data_workers_of,
)
from reproduce.commands.options import GroupedCommand, ListOption, grouped
from reproduce.commands.reading import kind_of_device, read_plan
from reproduce.grids import selection
from reproduce.measures.how import How
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
@WHICH("--retry-failed", is_flag=True, show_default=False, help="Also cells that diverged or ran out of memory.")
@WHERE("--records", "root", type=FOLDER, default=DEFAULT_ROOT, help="Their folder; machines may share it.")
@WHERE("--data-root", type=FOLDER, default=catalogue.DEFAULT_ROOT, help="Folder of prepared data sets.")
@WHERE_MANY(
    "device_names",
    "--devices",
    "--device",
    metavar="DEVICE,…",
    show_default="cpu",
    help="cuda: all GPUs, a cell each; cuda:0,cuda:1: these; cpu.",
)
@WHERE("--jobs", type=click.IntRange(1), show_default="one a GPU; on the CPU cores / threads", help="Worker processes.")
@WHERE("--threads", type=click.IntRange(1), default=THREADS, help="Of each worker; another number gives other bits.")
@WHERE(
    "--data-workers",
    type=click.IntRange(1),
    show_default=f"cores / jobs, at most {DATA_WORKERS}",
    help="Decode images, of each worker.",
)
@WHERE("--cuda-graphs", type=click.IntRange(0), default=0, metavar="STREAMS", help=GRAPHS)
@WHERE("--compile", "compiled", is_flag=True, show_default=False, help=COMPILED)
@HOW(
    "--dry-run",
    is_flag=True,
    show_default=False,
    help="Only show the plan: what is done, what is locked, hours left by recorded speed.",
)
@HOW("-v", "--verbose", is_flag=True, show_default=False, help="With --dry-run: every cell on a line of its own.")
@HOW("--checkpoint-minutes", type=click.FloatRange(0), default=5, help="Between checkpoints within an epoch.")
@click.help_option("-h", "--help")
def run(
    scale: str,
    tables: Sequence[str],
    models: Sequence[str],
    methods: Sequence[str],
    k: Sequence[str],
    datasets: Sequence[str],
    seeds: Sequence[str],
    only: Sequence[str],
    loader: str | None,
    precision: str | None,
    retry_failed: bool,
    root: Path,
    data_root: Path,
    device_names: Sequence[str],
    jobs: int | None,
    threads: int,
    data_workers: int | None,
    cuda_graphs: int,
    compiled: bool,
    dry_run: bool,
    verbose: bool,
    checkpoint_minutes: float,
) -> None:
    """Run all cells of SCALE that have no result yet.

    Stopped in any way, the same command goes on where it was, and ends with the same records.

    Scales: smoke, small, paper. Several values are joined by commas: --k 1,4.
    """
    from reproduce.grids.grid import grid_of

    grid = checked(lambda: grid_of(scale))
    conditions = {"models": models, "methods": methods, "k": k, "datasets": datasets}
    chosen = checked(lambda: selection.select(grid, conditions, tables=tables, seeds=seeds, only=only))
    chosen = checked(lambda: selection.with_settings(chosen, loader=loader, precision=precision))
    where = checked(lambda: devices.choose(device_names or ["cpu"]))
    checked(lambda: devices.check_graphs(cuda_graphs, where))
    workers = devices.workers(where, jobs, threads, CORES)
    if dry_run:
        kind = kind_of_device(where[0], threads, cuda_graphs=cuda_graphs, compiled=compiled)
        plan = read_plan(chosen, grid.name, root, kind, workers, retry_failed=retry_failed)
        click.echo(planning.listing(plan) if verbose else planning.table(plan))
        sys.exit(1 if any(item.problem for item in plan.items) else 0)
    check_writable(root, "--records")
    from reproduce.commands.conclusion import conclude
    from reproduce.running.runner import run_grid
    from reproduce.running.worker import Settings

    settings = Settings(
        root=root,
        jobs=workers,
        threads=threads,
        devices=where,
        how=How(
            checkpoint_seconds=60 * checkpoint_minutes,
            data_root=data_root,
            data_workers=data_workers or data_workers_of(workers),
            cuda_graphs=cuda_graphs,
            compiled=compiled,
        ),
    )
    each = f"{count(workers, 'worker')} of {count(threads, 'thread')} each"
    click.echo(f"{count(len(chosen), 'cell')} of the scale {grid.name} -> {root} ({each})", err=True)
    outcome = run_grid(chosen, settings, retry_failed=retry_failed)
    conclude(grid.scale, outcome, root)
