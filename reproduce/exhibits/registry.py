"""All exhibits, in the order of the report: those of the paper as it has them, studies, then the ground.

Each can be made without the others, so several processes can.
"""

from reproduce.exhibits import (
    accuracy,
    benchmarks,
    corrections,
    depth,
    figure4,
    figure5,
    figure6,
    history,
    invertible,
    length,
    pareprop,
    provenance,
    scale_study,
    schedules,
    stability,
    table1,
    table2,
    table3,
    table4,
    table5,
    table6,
    tradeoff,
    transformers,
)
from reproduce.exhibits._exhibit import Exhibit

__all__ = ["EXHIBITS"]

EXHIBITS: tuple[Exhibit, ...] = (
    accuracy.EXHIBIT,
    table1.EXHIBIT,
    table2.EXHIBIT,
    table3.EXHIBIT,
    table4.EXHIBIT,
    table5.EXHIBIT,
    table6.EXHIBIT,
    figure4.EXHIBIT,
    figure5.EXHIBIT,
    figure6.EXHIBIT,
    length.EXHIBIT,
    corrections.EXHIBIT,
    depth.EXHIBIT,
    stability.EXHIBIT,
    invertible.EXHIBIT,
    scale_study.EXHIBIT,
    tradeoff.EXHIBIT,
    transformers.EXHIBIT,
    pareprop.EXHIBIT,
    benchmarks.EXHIBIT,
    history.EXHIBIT,
    schedules.EXHIBIT,
    provenance.EXHIBIT,
)
