"""Networks as lists of stages: those of the paper and reversible transformers, with conversion to plain models."""

from petra_core.models.bdia import BdiaStage
from petra_core.models.chain import chain
from petra_core.models.convert import group, load_stages_state_dict, renamed_state_dict, stages_state_dict
from petra_core.models.invertible_revnet import invertible_revnet
from petra_core.models.pointwise import PointwiseConv2d
from petra_core.models.resnet import resnet
from petra_core.models.revmvit import revmvit
from petra_core.models.revnet import revnet
from petra_core.models.revroberta import revroberta
from petra_core.models.revswin import revswin
from petra_core.models.revvit import revvit
from petra_core.models.streams import ConcatStreams, DuplicateStreams, SplitStreams
from petra_core.models.vit import gpt, vit
from petra_core.sizes import HierarchicalSize, TransformerSize
from petra_core.stages import sequential

__all__ = [
    "BdiaStage",
    "ConcatStreams",
    "DuplicateStreams",
    "HierarchicalSize",
    "PointwiseConv2d",
    "SplitStreams",
    "TransformerSize",
    "chain",
    "gpt",
    "group",
    "invertible_revnet",
    "load_stages_state_dict",
    "renamed_state_dict",
    "resnet",
    "revmvit",
    "revnet",
    "revroberta",
    "revswin",
    "revvit",
    "sequential",
    "stages_state_dict",
    "vit",
]
