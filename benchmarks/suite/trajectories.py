"""Losses of a short training under each method, and the file that stores them with their provenance.

Seeds, one thread and float32 make them bitwise reproducible on one kind of processor. A deliberate change of the
arithmetic needs a new file, in the same commit, written from a clean checkout:
    python -m benchmarks.suite.trajectories
"""

import json
from pathlib import Path
from typing import Any

import torch

from petra_core import Pipeline, methods, models

from .setting import sgd

FILE = Path(__file__).with_name("trajectories.json")
MICRO_BATCHES = 40
#: A run of three reversible blocks, in which inputs are reconstructed from reconstructed ones. At this rate rounding
#: does not grow into a difference, but a lost or doubled update does.
SETTING = {"blocks": 3, "channels": 8, "image_size": 8, "batch": 4, "accumulation": 2, "learning_rate": 0.01}


def losses(method: str) -> list[float]:
    """Return the losses of all micro-batches, oldest first, and restore the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            return _losses(method)
    finally:
        torch.set_num_threads(threads)


def _losses(method: str) -> list[float]:
    torch.manual_seed(0)
    stages = models.chain(int(SETTING["blocks"]), num_classes=10, channels=int(SETTING["channels"]), stem_stride=2)
    optimizer = sgd(SETTING["learning_rate"], weight_decay=5e-4)
    accumulation = int(SETTING["accumulation"])
    pipeline = Pipeline(stages, methods.by_name(method), accumulation=accumulation, optimizer=optimizer, seed=0)
    batch, size = int(SETTING["batch"]), int(SETTING["image_size"])
    stepped = [
        pipeline.step(torch.randn(batch, 3, size, size), torch.randint(10, (batch,))) for _ in range(MICRO_BATCHES)
    ]
    return [float(loss) for loss in stepped if loss is not None]


def largest_difference(measured: list[float], expected: list[float]) -> float:
    """Return the largest relative difference of two series of equal length; 0 only if they are bitwise equal."""
    return max(abs(new - old) / abs(old) for new, old in zip(measured, expected, strict=True))


def stored() -> dict[str, Any]:
    """Read the file of `write`: `losses` by method, `setting`, and `environment` and `code` as in a record."""
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content


def write() -> None:
    """Store the losses of all methods on this machine."""
    from reproduce.records import provenance  # not at the top: older commits, which asv measures too, lack it
    from reproduce.records.storage import write_atomically

    code, _ = provenance.code()
    content = {
        "setting": {**SETTING, "micro_batches": MICRO_BATCHES},
        "environment": {**provenance.environment(torch.device("cpu")), "threads": 1},
        "code": code,
        "losses": {method.name: losses(method.name) for method in methods.PAPER},
    }
    write_atomically(FILE, (json.dumps(content, indent=1) + "\n").encode())
    print(f"wrote {FILE}")


if __name__ == "__main__":
    write()
