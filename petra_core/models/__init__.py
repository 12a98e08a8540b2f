"""Networks of the paper as lists of stages, layers for your own reversible networks, and conversion to plain models."""

from petra_core.models.chain import chain
from petra_core.models.convert import from_sequential, group
from petra_core.models.pointwise import PointwiseConv2d
from petra_core.models.resnet import resnet
from petra_core.models.revnet import revnet
from petra_core.models.streams import ConcatStreams, DuplicateStreams, SplitStreams
from petra_core.stages import sequential

__all__ = ["ConcatStreams", "DuplicateStreams", "PointwiseConv2d", "SplitStreams", "chain", "from_sequential", "group"]
__all__ += ["resnet", "revnet", "sequential"]
