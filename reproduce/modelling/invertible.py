"""Predict the bytes of the paper's RevNets and of those with invertible down-sampling, at the paper's size.

They are predicted from the shapes of the networks, without allocating anything. Tests compare them with measurements.
"""

from collections.abc import Mapping
from functools import cache

from petra_core import methods
from petra_core.ledger import KINDS
from petra_core.prediction.footprint import predict_stages
from petra_core.settings import Settings
from reproduce.grids.plans import table3
from reproduce.modelling.network import predict_footprints

DEPTHS = (18, 50)


@cache
def predict_bytes(family: str, depth: int) -> Mapping[str, Mapping[str, int]]:
    """Predict the memory of PETRA in the setting of Table 3, in float32, all stages together.

    Args:
        family: `revnet` or `invertible_revnet`.
        depth: 18, 34 or 50.

    Returns:
        Bytes by kind and their sum: "held" between ticks, so without gradients and the graphs of a single backward, and
        "peak", within a tick, each kind at its largest.

    """
    cell = table3.held("paper", "imagenet", f"{family}{depth}", methods.PETRA)
    settings = Settings(method=methods.PETRA, accumulation=cell.accumulation)
    stages = predict_stages(predict_footprints(cell, methods.PETRA), settings)
    bytes_of = {}
    for when in ("held", "peak"):
        kinds = {kind: sum(getattr(stage, when).get(kind, 0) for stage in stages) for kind in KINDS}
        bytes_of[when] = {**kinds, "sum": sum(kinds.values())}
    return bytes_of
