"""Build the stages of a cell's network from its settings.

Importing this module does not import torch; building the first network does.
"""

from typing import TYPE_CHECKING

from petra_core.ledger import KINDS
from reproduce.cells import catalogue, own, transformers
from reproduce.cells.kinds import BLOCK_MODELS, FAMILIES, NetworkCell, ShapedCell, TrainedCell

if TYPE_CHECKING:
    from petra_core.stages import Stage


#: Kinds of bytes of stages without BDIA, which is the only coupling with side bits.
HELD = tuple(kind for kind in KINDS if kind != "side_bits")
TIMES = "\N{MULTIPLICATION SIGN}"


def build(cell: NetworkCell, num_classes: int) -> "list[Stage]":
    """Build the stages of the cell's network, one per block, initialised from torch's global generator.

    Raises:
        CellError: If a user's function cannot be called, or returns no network.

    """
    if own.is_own(cell.model):
        return own.build(cell.model)
    if cell.model in transformers.MODELS:
        return transformers.build(cell.model, cell.stem, cell.width, cell.image_size, num_classes, cell.coupling)
    if cell.model in BLOCK_MODELS:
        from reproduce.forward_gradients.blocks import local_resnet

        return local_resnet(BLOCK_MODELS[cell.model], num_classes=num_classes, width=cell.width)
    from petra_core.models import chain, resnet, revnet
    from reproduce.models.invertible_revnet import invertible_revnet

    family = cell.model.rstrip("0123456789")
    depth = int(cell.model.removeprefix(family))
    if family == "chain":
        stride = int(cell.stem.removeprefix("stride"))
        return chain(depth, num_classes=num_classes, channels=cell.width, stem_stride=stride)
    make = {"revnet": revnet, "resnet": resnet, "invertible_revnet": invertible_revnet}
    return make[family](depth, num_classes=num_classes, stem=cell.stem, width=cell.width)


def build_outline(cell: TrainedCell | ShapedCell) -> "list[Stage]":
    """Build the stages of the cell's network on the meta device, which allocates and draws nothing.

    A user's network is built on the CPU, since its function may read values of tensors.
    """
    import torch

    if own.is_own(cell.model):
        with torch.random.fork_rng(devices=[]):
            return own.build(cell.model)
    with torch.device("meta"):
        return build(cell, catalogue.by_name(cell.dataset).num_classes)


def default_stem(model: str, dataset: catalogue.Dataset, image_size: int) -> str:
    """Return the usual stem of a network (the name is not checked) for samples of this size from a data set."""
    if own.is_own(model):
        return own.STEM
    if model in transformers.MODELS:
        return transformers.default_stem(model, image_size)
    return "stride1" if model.startswith("chain") else dataset.stem


def title_of(cell: NetworkCell) -> str:
    """Return the network's name in tables, such as "RevNet-18, width 16"."""
    if own.is_own(cell.model):
        return f"own network {cell.model}"
    if cell.model in transformers.MODELS:
        return f"{transformers.title(cell.model, cell.coupling)}, width {cell.width}"
    if cell.model in BLOCK_MODELS:
        return f"ResNet-18 in {BLOCK_MODELS[cell.model]} blocks, width {cell.width}"
    return f"{title_of_convolutional(cell.model)}, width {cell.width}"


def title_of_convolutional(model: str) -> str:
    """Return the title of a network by its name: "RevNet-18" for "revnet18"."""
    family = model.rstrip("0123456789")
    depth = model.removeprefix(family)
    return f"Reversible chain of {depth}" if family == "chain" else f"{FAMILIES[family]}-{depth}"


def layers_of(stage: "Stage") -> str:
    """List the convolutions and linear layers of a stage: "linear 512→10", "conv 3x3 64→128/2" with a stride of 2."""
    from torch import nn

    layers = [
        f"conv {TIMES.join(map(str, layer.kernel_size))} {layer.in_channels}→{layer.out_channels}"
        + (f"/{layer.stride[0]}" if layer.stride[0] > 1 else "")
        if isinstance(layer, nn.Conv2d)
        else f"linear {layer.in_features}→{layer.out_features}"
        for layer in stage.modules()
        if isinstance(layer, nn.Conv2d | nn.Linear)
    ]
    return ", ".join(layers)
