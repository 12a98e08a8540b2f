"""Test the study of depth on records with known answers: differences of methods, broken runs, and large gaps."""

from collections.abc import Callable
from pathlib import Path

from petra_core import methods
from petra_core.methods import Method
from reproduce.cells.kinds import ReconstructionCell, TrainedCell
from reproduce.exhibits import depth
from reproduce.grids.plans.depth import cells
from tests import fake_probes, fake_records
from tests.sections import situation

CELLS = [cell for cell in cells("small") if isinstance(cell, TrainedCell)]


def error(cause: str, stream: str, stage: int, epoch: int) -> float:
    return {"rounding": 1e-7, "rounding_bfloat16": 1e-3, "training": 0.1 * epoch}[cause] / stage if stage else 0.0


def write(root: Path, blocks: tuple[int, ...], accuracy: Callable[[Method, int, int], float], seeds: int = 3) -> None:
    """Write seeds of some depths at k = 1."""
    for cell in CELLS:
        n = int(cell.model.removeprefix("chain"))
        if n in blocks and cell.accumulation == 1 and cell.seed < seeds:
            reached = accuracy(methods.by_name(cell.method), n, cell.seed)
            if isinstance(cell, ReconstructionCell):
                fake_probes.measure(cell, root, error, accuracy=reached)
            else:
                fake_probes.train(cell, root, reached)


@situation(depth.EXHIBIT)
def sound_runs_and_broken_ones(root: Path) -> None:
    """Effects of reconstruction and delay are separate. At J = 50 both methods are broken, and not compared."""
    petra, dsp, exact = (60.0, 60.12, 60.2), (60.0, 60.13, 60.26), (70.0, 70.1, 70.2)
    reached = {methods.PETRA: petra, methods.DSP: dsp, methods.BACKPROPAGATION: exact}
    write(root, (2,), lambda m, n, seed: reached[m][seed])
    write(root, (48,), lambda m, n, seed: 70.0 + seed if m is methods.BACKPROPAGATION else 10.0 + 0.01 * seed)


@situation(depth.EXHIBIT)
def seed_broken_for_both_methods(root: Path) -> None:
    """A seed that is broken for both methods is excluded, and the other seeds are compared."""

    def accuracy(method: Method, blocks: int, seed: int) -> float:
        if method is methods.BACKPROPAGATION:
            return 70.0
        return 10.0 if seed == 0 else 60.0 + seed + 2 * (method is methods.DSP)

    write(root, (48,), accuracy)


@situation(depth.EXHIBIT)
def failed_and_unfinished_runs(root: Path) -> None:
    """Failed runs count as broken, unfinished ones have their progress, and one seed gives no interval."""
    for cell in CELLS:
        if (cell.model, cell.method, cell.accumulation) == ("chain48", "DSP", 1):
            fake_records.begin(cell, root).fail("diverged", "the loss is nan")
    first = next(cell for cell in CELLS if isinstance(cell, ReconstructionCell))
    fake_probes.measure(first, root, error, epochs=1)
    write(root, (8,), lambda m, n, seed: 70.0 if m is methods.BACKPROPAGATION else 40.0, seeds=1)
