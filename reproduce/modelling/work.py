"""Predict the cost of each block of a network from shapes: FLOPs on the meta device, equal on every machine.

Times differ from machine to machine, and the stages of a cell are part of its identity. So a number of stages is turned
into sizes by predicted costs, never by measured ones. FLOPs include matrix products and convolutions, but no additions,
normalizations or activations. Importing this module does not import torch.
"""

from functools import cache
from types import SimpleNamespace
from typing import Any

from petra_core.prediction.partition import Cost, find_partition
from reproduce.cells import catalogue, networks
from reproduce.cells.kinds import CellError, TrainedCell
from reproduce.cells.timing import blocks

#: Settings of a cell that determine its network and its micro-batches.
NETWORK = ("model", "stem", "width", "image_size", "coupling", "dataset", "batch_size")


def choose_sizes(cell: TrainedCell, stages: int) -> tuple[int, ...]:
    """Return the number of blocks of each of `stages` stages, so that the most expensive stage is as cheap as possible.

    Args:
        cell: Cell of the network. For every method, costs are forward and backward by plain autograd.
        stages: Number of stages.

    Raises:
        CellError: The network has fewer blocks.

    """
    count = blocks(cell)
    if not 1 <= stages <= count:
        raise CellError(
            f"stages {stages}: {cell.model} has {count} blocks (stem and head included), so 1 to {count} stages"
        )
    if stages == count:
        return (1,) * count
    return find_partition([cost.forward + cost.backward for cost in predict_costs(cell)], stages).sizes


def predict_costs(cell: TrainedCell) -> tuple[Cost, ...]:
    """Return the cost of each block: FLOPs instead of seconds, for one forward and its backward."""
    return _predict(tuple((name, getattr(cell, name)) for name in NETWORK))


@cache
def _predict(settings: tuple[tuple[str, Any], ...]) -> tuple[Cost, ...]:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from petra_core.tape import as_streams, as_value
    from reproduce.measures.synthetic import micro_batch

    network: Any = SimpleNamespace(**dict(settings), seed=0)
    costs = []
    with torch.device("meta"):
        inputs, _ = micro_batch(network, catalogue.by_name(network.dataset).num_classes)
        streams = tuple(stream.to("meta") for stream in as_streams(inputs))
        for index, stage in enumerate(networks.build_outline(network)):
            stage.to("meta")
            streams = tuple(
                stream.detach().requires_grad_(index > 0 and stream.is_floating_point()) for stream in streams
            )
            with FlopCounterMode(display=False) as forward:
                outputs = as_streams(stage(as_value(streams)))
            with FlopCounterMode(display=False) as backward:
                ends = [output for output in outputs if output.requires_grad]
                torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
            costs.append(Cost(forward.get_total_flops(), backward.get_total_flops()))
            streams = outputs
    return tuple(costs)
