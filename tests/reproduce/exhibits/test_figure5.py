"""Test Figures 5 and 6: claims can disagree with the paper, and unknown values are marked."""

from collections.abc import Iterable
from pathlib import Path

from reproduce.cells.kinds import GradientsCell
from reproduce.exhibits import figure5, figure6
from reproduce.grids.plans import gradients as plan
from reproduce.records.gradients import BETWEEN, METHOD
from tests import fake_probes
from tests.sections import situation

SMALL, PAPER = ([c for c in plan.cells(scale) if isinstance(c, GradientsCell)] for scale in ("small", "paper"))


def closer_below_stage(boundary: int, seed: int) -> fake_probes.Value:
    """Return values with PETRA closer by cosine below a stage and further above it, and undecided by relative error."""

    def value(pair: str, measure: str, stage: int, epoch: int) -> float:
        if pair == BETWEEN or measure == "norm_ratio" or stage == 9:
            return 1.0
        ours = 0.05 + 0.001 * seed if stage < boundary else -0.05 - 0.001 * seed
        if measure == "relative_error":
            ours = 0.1 * (-1) ** seed
        return 0.5 + (ours if pair == METHOD else 0.0) + 0.01 * epoch

    return value


def measure(root: Path, cells: Iterable[GradientsCell], boundary: int, epochs: int | None = None) -> None:
    for cell in cells:
        if cell.accumulation == 1:
            fake_probes.measure(cell, root, closer_below_stage(boundary, cell.seed), epochs=epochs)


@situation(figure5.EXHIBIT)
def chain_and_revnet_at_the_small_scale(root: Path) -> None:
    """RevNet-18 computes with a reconstructed input in only one of ten stages, so the chain decides the claim."""
    measure(root, (cell for cell in SMALL if cell.model == "chain8"), 0)
    measure(root, (cell for cell in SMALL if cell.model == "revnet18"), 3)


@situation(figure5.EXHIBIT, "none")
def papers_scale(root: Path) -> None:
    """At scale paper, the claim is judged on the network of the paper."""
    measure(root, PAPER, 9)


@situation(figure5.EXHIBIT)
def single_seeds(root: Path) -> None:
    """A single unfinished seed is drawn and labelled, without a finding; an undefined measure is marked."""

    def no_cosine(pair: str, measure: str, stage: int, epoch: int) -> float | None:
        return None if measure == "cosine" else closer_below_stage(9, 0)(pair, measure, stage, epoch)

    fake_probes.measure(SMALL[0], root, no_cosine)
    measure(root, PAPER[:1], 9, epochs=1)


def no_measure_is_defined(root: Path) -> None:
    """A cell without any measure gives no table, sentence or finding."""
    fake_probes.measure(SMALL[0], root, lambda *_: None, epochs=1)


for exhibit in (figure5.EXHIBIT, figure6.EXHIBIT):
    situation(exhibit)(no_measure_is_defined)


def later_worse(seed: int) -> fake_probes.Value:
    """Return values with PETRA's gradient closer in the first epoch by both measures, and further in the last."""

    def value(pair: str, measure: str, stage: int, epoch: int) -> float | None:
        if stage == 9:
            return 1.0
        gain = (0.1 + 0.01 * seed) * (2 - epoch) * (-1 if measure == "relative_error" else 1)
        return 0.5 + 0.01 * stage + (gain if pair == METHOD else 0.3 if pair == BETWEEN else 0.0)

    return value


@situation(figure6.EXHIBIT)
def gains_of_each_part_of_the_training(root: Path) -> None:
    """The gains are computed for each part of the training, as the mean over stages 0 to 8."""
    for cell in SMALL[:3]:
        fake_probes.measure(cell, root, later_worse(cell.seed), probes=31)


@situation(figure6.EXHIBIT)
def unfinished_training(root: Path) -> None:
    """An unfinished run has rows for its epochs, and its progress is stated."""
    for cell in SMALL[:3]:
        fake_probes.measure(cell, root, later_worse(cell.seed), probes=31, epochs=2)


@situation(figure6.EXHIBIT)
def undefined_at_the_stem(root: Path) -> None:
    """An undefined value at one stage leaves a gap, and the other values are reported, in few rows."""

    def nothing_at_the_stem(pair: str, measure: str, stage: int, epoch: int) -> float | None:
        return None if stage == 0 else later_worse(0)(pair, measure, stage, epoch)

    fake_probes.measure(SMALL[0], root, nothing_at_the_stem, singly=True, probes=31)
