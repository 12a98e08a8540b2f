"""Write records with made-up numbers through the records API, for tests of their readers."""

import dataclasses
import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

from petra_core import methods
from petra_core.methods import Method
from reproduce.cells.kinds import Cell, ComplexityCell, TrainingCell
from reproduce.data.manifest import built_in
from reproduce.drawing.timeline import Event, Timeline
from reproduce.grids import recipes
from reproduce.grids.plans.table1 import chains
from reproduce.measures.complexity import measure_complexity
from reproduce.records import volumes
from reproduce.records.benchmarks import Benchmark, Comparison, Series
from reproduce.records.record import Record, Run
from reproduce.records.storage import write_json

ENVIRONMENT = {
    "python": "3.11.7",
    "platform": "Linux x86_64 glibc 2.36",
    "packages": {"torch": "2.15.0", "numpy": "2.4.0"},
    "processor": "A Processor with <angle> brackets",
    "cores": 2,
    "device": "cpu",
    "cuda": None,
    "cudnn": None,
    "threads": 1,
    "deterministic_algorithms": True,
    "cudnn_benchmark": False,
    "tf32": False,
}
CLEAN = {"version": "0.1.0", "commit": "0123456789abcdef0123456789abcdef01234567", "clean": True, "untracked": []}
DIRTY = {**CLEAN, "clean": False, "untracked": ["reproduce/new.py"]}
PATCH = "diff --git a/x.py b/x.py\n-a < b\n+a & b\n"


def complexity_cell(method: Method, accumulation: int = 1) -> ComplexityCell:
    """Return a cell of Table 1 that takes a fraction of a second."""
    return ComplexityCell(
        scale="smoke",
        model="chain3",
        stem="stride2",
        image_size=8,
        width=4,
        method=method.name,
        accumulation=accumulation,
        batch_size=2,
        seed=0,
    )


def begin(
    cell: Cell, root: Path, *, code: dict[str, Any] = CLEAN, patch: str = "", environment: dict[str, Any] | None = None
) -> Record:
    """Write a record with a configuration, an environment and code."""
    record = Record.for_cell(cell, root)
    record.begin(
        ENVIRONMENT if environment is None else environment, dict(code), patch.encode(errors="surrogateescape")
    )
    return record


def in_folder(record: Record) -> Record:
    """Move a finished record from its volume to a folder, as it is before publication."""
    unpack(record.read(), record.path)
    assert record.root is not None
    volumes.remove(record.cell, record.root)
    return record


def unpack(run: Run[Cell], folder: Path) -> None:
    """Write the files of a finished record into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", {"schema": 1, "identity": run.cell.identity, "cell": run.cell.to_dict()})
    write_json(folder / "environment.json", {"schema": 1, "entries": list(run.environments)})
    write_json(folder / "code.json", {"schema": 1, "entries": list(run.codes)})
    if run.metrics:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in run.metrics))
    for name, patch in run.patches.items():
        (folder / name).write_bytes(patch)
    write_json(folder / "result.json", run.result)


def finish(record: Record, accuracy: float, **changes: Any) -> None:
    """Add a result to a training record with all epochs. `changes` modify the result."""
    lines = record.read().metrics
    best = max(lines, key=lambda line: line["test_accuracy"])
    record.finish(
        {
            "test_accuracy": accuracy,
            "best_test_accuracy": best["test_accuracy"],
            "best_epoch": best["epoch"],
            "train_loss": lines[-1]["train_loss"],
            "train_seconds": 1.0,
            "evaluation_seconds": 0.1 * len(lines),
            "images_per_second": 900.0,
            "parameters": 174_970,
            "micro_batches": 45 * len(lines),
            "peak_bytes": 1_234_567,
            "stages": [],
            **changes,
        }
    )


def train(
    cell: TrainingCell,
    root: Path,
    accuracy: float,
    *,
    epochs: int | None = None,
    code: dict[str, Any] = CLEAN,
    patch: str = "",
    data: dict[str, Any] | None = None,
    extra: dict[str, Any] | None = None,
    environment: dict[str, Any] | None = None,
    seconds: float = 1.5,
) -> Record:
    """Write a training record that ends at `accuracy` percent, or stops after `epochs`, each of which takes `seconds`.

    `extra` extends the result.
    """
    record = begin(cell, root, code=code, patch=patch, environment=environment)
    noise = random.Random(cell.identity)
    for epoch in range(1, (cell.epochs if epochs is None else epochs) + 1):
        reached = (
            accuracy
            - (accuracy - 10) * math.exp(-1.2 * epoch) * (epoch < cell.epochs)
            + noise.uniform(-1, 1) * (epoch < cell.epochs)
        )
        record.append(
            {
                "epoch": epoch,
                "train_loss": 2.3 * math.exp(-epoch),
                "learning_rate": cell.learning_rate,
                "test_accuracy": min(reached, 100.0),
                "train_seconds": seconds,
                "evaluation_seconds": 0.1,
                "images_per_second": 900.0,
                "peak_bytes": 1_234_567,
            }
        )
    if epochs is None:
        total = seconds * cell.epochs
        finish(record, accuracy, train_seconds=total, data=data or built_in(cell.dataset), **(extra or {}))
    return record


def write(root: Path) -> None:
    """Write a smoke grid as a run leaves it, finished except for two cells, of which one diverged; and Table 1."""
    noise = random.Random(0)
    for network, method, k, seed in itertools.product(("revnet18", "chain8"), methods.PAPER, (1, 4), (0, 1)):
        cell = recipes.cell("smoke", network, method, k, seed)
        last = (network, method, k) == ("chain8", methods.PETRA, 4)
        if last and seed == 1:
            train(cell, root, 97.0, epochs=2)
        elif last:
            record = train(cell, root, 97.0, epochs=1)
            record.fail("diverged", "the loss of micro-batch 77 is nan", {"micro_batch": 77, "stage": 3})
        else:
            accuracy = 97.5 - 0.1 * k + noise.uniform(-0.8, 0.8)
            train(cell, root, accuracy, code=DIRTY if seed else CLEAN, patch=PATCH if seed else "")
    for measured in chains():
        if measured.method in ("BACKPROPAGATION", "PETRA"):  # measuring takes a second each
            begin(measured, root).finish(measure_complexity(measured))


FAST, SLOW, MEMORY = "fast", "slow", "memory"
RATE = "throughput"
FASTER = Comparison("track", RATE, FAST, SLOW)


def benchmark(*comparisons: Comparison, name: str = "race", patch: str = "") -> Benchmark:
    """Return a benchmark with ratios fast / slow of 2, 3, 4 within the rounds; medians give 300 / 20 = 15."""
    return Benchmark(
        name=name,
        title="A race",
        about="Two run.",
        command="python -m benchmarks.race --laps 3",
        setting={"laps": 3, "quick": False},
        series=(
            Series("track", FAST, RATE, "laps/s", (20.0, 300.0, 400.0)),
            Series("track", SLOW, RATE, "laps/s", (10.0, 100.0, 100.0)),
            Series("track", FAST, MEMORY, "MB", (5.0,)),
            Series("track", FAST, MEMORY, "MB", (0.0, 7.0), at=2),
        ),
        comparisons=comparisons,
        notes=("It rained.",),
        timelines={"a lap": Timeline((Event(1, ("F", 2, 3), 0.25, 0.5),), 2)},
        environment=ENVIRONMENT,
        code=CLEAN,
        patch=patch,
        load=(0.5, 1.5),
        date="2026-01-02",
    )


def with_slow(*values: float) -> Benchmark:
    slow = Series("track", SLOW, RATE, "laps/s", values)
    return dataclasses.replace(benchmark(FASTER), series=(benchmark().series[0], slow))


def timed_stages(forwards: list[float], update: float = 0.0) -> dict[str, Any]:
    """Return a result in which a backward takes twice a forward, and the update of every stage takes `update`."""
    last = len(forwards) - 1

    def times(seconds: float) -> dict[str, float]:
        return {"median": seconds, "lowest": seconds, "highest": 2 * seconds}

    rows = [
        {
            "stage": stage,
            "invertible": stage not in (0, last),
            "parameters": 4000,
            "bytes_up": 0 if stage == last else 10**6,
            "bytes_down": 0 if stage == 0 else 2 * 10**6,
            "forward": times(seconds),
            "backward": times(2 * seconds),
            "update": times(update),
        }
        for stage, seconds in enumerate(forwards)
    ]
    return {"stages": rows, "load": [0.5, 1.5], "cores": 2}


def snapshot(root: Path) -> dict[str, bytes]:
    """Return all files below a folder, except locks."""
    ours = (file for file in root.rglob("*") if file.is_file() and file.name not in ("record.lock", "record.lease"))
    return {str(file.relative_to(root)): file.read_bytes() for file in ours}
