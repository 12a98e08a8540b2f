"""Cost of a micro-batch for one inner stage of a chain of equal blocks, in counts: FLOPs and bytes of messages.

These are the rows of the paper's Table 1, measured by `reproduce.measures.complexity`.
"""

from petra_core import methods
from reproduce.cells.kinds import ComplexityCell
from reproduce.measures.complexity import measure_complexity

from .setting import METHODS, open_device

#: Method -> FLOPs, bytes of the message to the stage above, bytes of the message to the stage below.
Costs = dict[str, tuple[float, int, int]]


def cell(method: str) -> ComplexityCell:
    """Return a chain that is small enough to be measured in a fraction of a second."""
    return ComplexityCell(
        scale="smoke",
        model="chain3",
        stem="stride2",
        image_size=16,
        width=8,
        method=method,
        accumulation=1,
        batch_size=4,
        seed=0,
    )


class Chain:
    """Measure the first of three blocks of 8 channels, with micro-batches of 4 images of 16 pixels."""

    params = (METHODS,)
    param_names = ("method",)
    version = "1"

    def setup_cache(self) -> Costs:
        open_device("cpu")
        costs: Costs = {}
        for method in methods.PAPER:
            measured = measure_complexity(cell(method.name))
            row = measured["rows"][1]
            costs[method.name] = measured["stage_flops"], row["message_up"], row["message_down"]
        return costs

    def track_flops(self, costs: Costs, method: str) -> float:
        return costs[method][0]

    def track_message_up(self, costs: Costs, method: str) -> int:
        return costs[method][1]

    def track_message_down(self, costs: Costs, method: str) -> int:
        return costs[method][2]

    track_flops.unit = "FLOP"  # type: ignore[attr-defined]  # asv reads it
    track_message_up.unit = track_message_down.unit = "bytes"  # type: ignore[attr-defined]  # asv reads it
