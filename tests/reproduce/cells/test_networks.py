"""Test the description of a stage's layers."""

import pytest

from petra_core import models
from reproduce.cells import catalogue, networks, timing, transformers
from reproduce.cells.kinds import StageCostCell
from reproduce.cells.networks import TIMES


def test_layers_of_lists_kernels_channels_and_strides() -> None:
    """The description of a stage lists the kernel, channels and stride of every layer."""
    stages = models.revnet(50, num_classes=10, width=2)
    assert networks.layers_of(stages[2]) == f"conv 1{TIMES}1 8→2, conv 3{TIMES}3 2→2, conv 1{TIMES}1 2→8"
    assert networks.layers_of(stages[4]).startswith(
        f"conv 1{TIMES}1 8→4, conv 3{TIMES}3 4→4/2, conv 1{TIMES}1 4→16, conv 1{TIMES}1 8→16/2"
    )
    assert networks.layers_of(stages[-1]) == "linear 128→10"


CIFAR = [f"{family}{depth}" for family in ("revnet", "resnet", "invertible_revnet") for depth in (18, 34, 50)]
BLOCKS = {
    **dict.fromkeys([*CIFAR, "resnet18_8b", "resnet18_16b"], "cifar"),
    **dict.fromkeys(("revswin_micro", "revswin_tiny", "revmvit_micro", "revmvit_tiny"), "patch1"),
    **dict.fromkeys(("vit_micro2", "revvit_micro2"), "patch4"),
    "chain3": "stride2",
    "revroberta_micro2": "bytes",
}


@pytest.mark.parametrize(("model", "stem"), BLOCKS.items())
def test_block_count_matches_network(model: str, stem: str) -> None:
    """The number of blocks computed from the settings equals that of the constructed network."""
    dataset = catalogue.PYDOC if stem == "bytes" else catalogue.CIFAR10
    width = transformers.MODELS[model].width if model in transformers.MODELS else 8
    data = {"dataset": dataset.name, "image_size": dataset.image_size, "batch_size": 2, "seed": 0}
    network = {"model": model, "stem": stem, "width": width, "method": "PETRA", "accumulation": 1}
    cell = StageCostCell(scale="custom", **data, **network, repetitions=1)
    assert timing.blocks(cell) == len(networks.build_outline(cell))
