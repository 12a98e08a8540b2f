"""Losses of a short training under each method, and the file in which they are stored with where they came from.

Seeds, one thread and float32 fix them to the bit on one kind of processor. A deliberate change of the arithmetic calls
for a new file, in the same commit, from a clean checkout:

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
#: A run of three reversible blocks, in which inputs are reconstructed from reconstructed ones. The rate is so small
#: that rounding does not grow into a difference, and so large that a lost or doubled update does.
SETTING = {"blocks": 3, "channels": 8, "image_size": 8, "batch": 4, "accumulation": 2, "learning_rate": 0.01}


def losses(method: str) -> list[float]:
    """The losses of all micro-batches, oldest first; the number of threads is afterwards as it was before."""
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
    """The largest difference of two series of one length, relative to the second; 0 only if they are bitwise equal."""
    return max(abs(new - old) / abs(old) for new, old in zip(measured, expected, strict=True))


def stored() -> dict[str, Any]:
    """The content that `write` wrote: `losses` by method, `setting`, and `environment` and `code` as in a record."""
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content


def write() -> None:
    """Store the losses of all methods as they are here and now."""
    from reproduce.records import provenance  # where older commits, which are measured too, have no such module
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
