"""Check that a change leaves losses and weights bitwise equal: 18 short trainings against their stored hashes.

    python -m tests.bitwise            compare with the hashes of this kind of machine
    python -m tests.bitwise --write    store them, from a commit that is known to be right

Bits depend on the kernels that torch chooses, so hashes are stored for each torch version and processor. On another
kind of machine, write them at the commit before the change, then compare at the commit after it. Six methods train a
chain of 8 blocks, a RevNet-18 and a RevViT for one epoch of the digits data set with k = 2, in one thread.
"""

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from petra_core import Pipeline, methods
from petra_core.methods import Method
from reproduce.cells import networks
from reproduce.cells.kinds import TrainingCell
from reproduce.data.sources import open_data
from reproduce.grids import recipes
from reproduce.grids.plans import transformers
from reproduce.measures.training import optimizer
from reproduce.records import provenance

FILE = Path(__file__).parent / "golden" / "bitwise.json"
NETWORKS = ("chain8", "revnet18", "revvit_micro2")
ACCUMULATION = 2
SEED = 0

Hashes = dict[str, dict[str, str]]  # by training: of its losses and of its final weights


def cell(network: str, method: Method) -> TrainingCell:
    """Return the settings of a training: those of the smoke scale."""
    for study in transformers.STUDIES:
        if study.scale == "smoke" and study.model == network:
            return study.cell(method, ACCUMULATION, SEED)
    return recipes.cell("smoke", network, method, ACCUMULATION, SEED)


def train(settings: TrainingCell) -> tuple[list[float], dict[str, Tensor]]:
    """Train one epoch at a constant learning rate; return the losses in the order of micro-batches, and the weights."""
    data = open_data(settings, torch.device("cpu"))
    torch.manual_seed(SEED)
    pipeline = Pipeline(
        networks.build(settings, data.train.num_classes),
        methods.by_name(settings.method),
        accumulation=settings.accumulation,
        optimizer=optimizer(settings),
        seed=SEED,
    )
    losses = [pipeline.step(images, labels) for images, labels in data.train.epoch(0)]
    pipeline.drain()
    return [float(loss) for loss in losses if loss is not None], pipeline.model.state_dict()


def hashes(networks_chosen: Iterable[str] = NETWORKS) -> Hashes:
    """Return the SHA-256 of the losses and of the final weights of every training."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            return {
                f"{network} {method.name}": _hash(cell(network, method))
                for network in networks_chosen
                for method in methods.PAPER
            }
    finally:
        torch.set_num_threads(threads)


def _hash(settings: TrainingCell) -> dict[str, str]:
    losses, weights = train(settings)
    of_weights = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        of_weights.update(name.encode() + tensor.contiguous().numpy().tobytes())
    of_losses = hashlib.sha256(torch.tensor(losses, dtype=torch.float64).numpy().tobytes())
    return {"losses": of_losses.hexdigest(), "weights": of_weights.hexdigest()}


def machine() -> str:
    """Describe everything that the bits depend on: torch, the processor, and the kernels of torch and oneDNN."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "")
    kernels = torch.backends.cpu.get_cpu_capability() + (f" (oneDNN at most {limit})" if limit else "")
    return f"torch {torch.__version__}, {provenance.processor()}, {kernels}"


def differences(expected: Hashes, found: Hashes) -> list[str]:
    """Return a line for each training whose losses or weights differ from the expected ones."""
    lines = []
    for training in sorted(expected.keys() | found.keys()):
        one, other = expected.get(training, {}), found.get(training, {})
        if parts := [part for part in ("losses", "weights") if one.get(part) != other.get(part)]:
            lines.append(f"{training}: {' and '.join(parts)} differ")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status: 0 if all bits are equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="store the hashes of this commit for this kind of machine")
    options = parser.parse_args(arguments)
    stored: dict[str, Hashes] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    here = machine()
    if not options.write and here not in stored:
        print(
            f"no hashes are stored for {here}; check out the commit before your change, run "
            "`python -m tests.bitwise --write` there, and compare afterwards",
            file=sys.stderr,
        )
        return 2
    found = hashes()
    if options.write:
        FILE.write_text(json.dumps({**stored, here: found}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(f"stored {len(found)} trainings for {here}")
        return 0
    lines = differences(stored[here], found)
    print(*lines, f"{len(found) - len(lines)} of {len(found)} trainings are bitwise equal on {here}", sep="\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
