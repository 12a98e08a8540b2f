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


BLOCKS = {
    "revnet18": "cifar",
    "revnet34": "cifar",
    "revnet50": "cifar",
    "resnet18": "cifar",
    "resnet34": "cifar",
    "resnet50": "cifar",
    "invertible_revnet18": "cifar",
    "invertible_revnet34": "cifar",
    "invertible_revnet50": "cifar",
    "resnet18_8b": "cifar",
    "resnet18_16b": "cifar",
    "chain3": "stride2",
    "vit_micro2": "patch4",
    "revvit_micro2": "patch4",
    "revswin_micro": "patch1",
    "revswin_tiny": "patch1",
    "revmvit_micro": "patch1",
    "revmvit_tiny": "patch1",
    "revroberta_micro2": "bytes",
}


@pytest.mark.parametrize(("model", "stem"), BLOCKS.items())
def test_block_count_matches_network(model: str, stem: str) -> None:
    """The number of blocks computed from the settings equals that of the constructed network."""
    dataset = catalogue.PYDOC if stem == "bytes" else catalogue.CIFAR10
    cell = StageCostCell(
        scale="custom",
        dataset=dataset.name,
        image_size=dataset.image_size,
        model=model,
        stem=stem,
        width=transformers.MODELS[model].width if model in transformers.MODELS else 8,
        method="PETRA",
        accumulation=1,
        batch_size=2,
        seed=0,
        repetitions=1,
    )
    assert timing.blocks(cell) == len(networks.build_outline(cell))
