"""Make the situations of Table 5: arithmetic on invented stage costs, and texts that name what is modelled."""

from pathlib import Path

from reproduce.cells.kinds import StageCostCell
from reproduce.exhibits import table5
from reproduce.grids.plans import PLANS
from tests import fake_records, sections

FOUR = [0.1, 0.4, 0.2, 0.1, *[0.0] * 6]  # forward times of RevNet-18's ten stages, only four of which cost anything


def cells(scale: str) -> list[StageCostCell]:
    return [cell for cell in PLANS["table5"](scale) if isinstance(cell, StageCostCell)]


@sections.situation(table5.EXHIBIT)
def narrow_networks_on_a_gpu(root: Path) -> None:
    """Modelled times follow from the stage costs. A narrow network is not compared with the published value.

    The first of 18 stages takes twice as long, and an even cut gives its device another one.
    """
    gpu = {**fake_records.ENVIRONMENT, "device": "A GPU", "threads": 2}
    revnet18, revnet34, *_ = cells("smoke")
    fake_records.begin(revnet18, root, environment=gpu).finish(fake_records.timed_stages(FOUR))
    fake_records.begin(revnet34, root).finish(fake_records.timed_stages([0.2, *[0.1] * 17]))


@sections.situation(table5.EXHIBIT, "table5")
def one_network_of_the_papers_size(root: Path) -> None:
    """The largest scale is compared with the published speed-up. The verdict stays open: modelled is not measured."""
    fake_records.begin(cells("smoke")[0], root).finish(fake_records.timed_stages(FOUR))
    fake_records.begin(cells("paper")[0], root).finish(fake_records.timed_stages([0.1] * 10))


@sections.situation(table5.EXHIBIT, "none")
def two_networks_of_the_papers_size(root: Path) -> None:
    """The sentence says that the published speed-up falls with J."""
    for cell, stages in zip(cells("paper"), (10, 18), strict=False):
        fake_records.begin(cell, root).finish(fake_records.timed_stages([0.1] * stages))


@sections.situation(table5.EXHIBIT)
def no_stage_is_timed(root: Path) -> None:
    """Without measurements only the published table is made."""
