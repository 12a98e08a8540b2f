"""Bytes of the paper's RevNets and of those that are down-sampled invertibly, at the paper's size.

They are computed by `petra_core.prediction.memory` from the shapes of the networks, which its tests compare with
measurements; nothing is allocated.
"""

from collections.abc import Mapping
from functools import cache

from petra_core import methods
from petra_core.ledger import KINDS
from petra_core.recipe import learning_rate, sgd
from reproduce.grids.plans.invertible import OURS, PAPERS

__all__ = ["BATCH", "DEPTHS", "predicted"]

DEPTHS = (18, 50)
BATCH, IMAGE_SIZE, CLASSES = 64, 224, 1000  # Table 3's


@cache
def predicted(family: str, depth: int) -> Mapping[str, Mapping[str, int]]:
    """Memory of PETRA with k = 1 on ImageNet at batch 64, float32, all stages together.

    Args:
        family: one of the plan's `OURS` and `PAPERS`.
        depth: 18, 34 or 50.

    Returns:
        Bytes by kind and their sum: "held" between ticks, so without gradients and the graphs of a single backward,
        and "peak", within a tick, each kind at its largest.

    """
    import torch  # with what is below: the plan of a grid does not wait for it

    from petra_core import models
    from petra_core.prediction.memory import predict

    make = {OURS: models.invertible_revnet, PAPERS: models.revnet}[family]
    with torch.device("meta"):
        stages = make(depth, num_classes=CLASSES, stem="imagenet")
        images, labels = torch.empty(BATCH, 3, IMAGE_SIZE, IMAGE_SIZE), torch.empty(BATCH, dtype=torch.int64)
    found = predict(stages, methods.PETRA, images, labels, optimizer=sgd(learning_rate(BATCH)))
    bytes_of = {}
    for when in ("held", "peak"):
        kinds = {kind: sum(getattr(stage, when).get(kind, 0) for stage in found) for kind in KINDS}
        bytes_of[when] = {**kinds, "sum": sum(kinds.values())}
    return bytes_of
