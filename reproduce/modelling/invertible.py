"""Bytes of the paper's RevNets and of those that are down-sampled invertibly, at the paper's size.

They are predicted from the shapes of the networks, which tests compare with measurements; nothing is allocated.
"""

from collections.abc import Mapping
from functools import cache

from petra_core import methods
from petra_core.ledger import KINDS
from reproduce.cells.catalogue import IMAGENET
from reproduce.cells.kinds import MemoryCell

__all__ = ["BATCH", "DEPTHS", "predicted"]

DEPTHS = (18, 50)
BATCH = 64  # Table 3's


@cache
def predicted(family: str, depth: int) -> Mapping[str, Mapping[str, int]]:
    """Memory of PETRA with k = 1 on ImageNet at batch 64, float32, all stages together.

    Args:
        family: `revnet` or `invertible_revnet`.
        depth: 18, 34 or 50.

    Returns:
        Bytes by kind and their sum: "held" between ticks, so without gradients and the graphs of a single backward,
        and "peak", within a tick, each kind at its largest.

    """
    from reproduce.measures import held_memory  # torch, for which the plan of a grid does not wait

    stages = held_memory.predicted(
        MemoryCell(
            scale="paper",
            dataset=IMAGENET.name,
            image_size=IMAGENET.image_size,
            model=f"{family}{depth}",
            stem=IMAGENET.stem,
            width=64,
            method=methods.PETRA.name,
            accumulation=1,
            batch_size=BATCH,
            seed=0,
        )
    )
    bytes_of = {}
    for when in ("held", "peak"):
        kinds = {kind: sum(getattr(stage, when).get(kind, 0) for stage in stages) for kind in KINDS}
        bytes_of[when] = {**kinds, "sum": sum(kinds.values())}
    return bytes_of
