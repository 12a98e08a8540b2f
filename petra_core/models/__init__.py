"""The networks of the paper as lists of stages, and conversions between stages and the plain model."""

from petra_core.models.chain import chain
from petra_core.models.convert import group, load_stages_state_dict, sequential, stages_state_dict
from petra_core.models.invertible_revnet import invertible_revnet
from petra_core.models.resnet import resnet
from petra_core.models.revnet import revnet
from petra_core.models.streams import ConcatStreams, SplitStreams
from petra_core.residual import check_residual

__all__ = [
    "ConcatStreams",
    "SplitStreams",
    "chain",
    "check_residual",
    "group",
    "invertible_revnet",
    "load_stages_state_dict",
    "resnet",
    "revnet",
    "sequential",
    "stages_state_dict",
]
