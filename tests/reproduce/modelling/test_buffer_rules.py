"""Test the rules of Table 3: the published digits from the real networks, and the result of a consistent count."""

import math

import pytest
import torch

from petra_core.models import chain
from reproduce.grids.plans.table4 import METHODS
from reproduce.modelling.buffer_rules import (
    CONSISTENT_RULE,
    PUBLISHED_RULE,
    BufferRule,
    memory,
    revnet_sizes,
    stage_sizes,
)


@pytest.mark.parametrize(("rule", "accumulation"), [(PUBLISHED_RULE, 1), (CONSISTENT_RULE, 3)])
def test_buffers_of_revnet34_match_hand_calculation(rule: BufferRule, accumulation: int) -> None:
    """The sum over the stages of RevNet-34 equals a calculation by hand under both rules."""
    # The buffers from the shapes in the paper's text; parameters and statistics from the network.
    batch, ends = 64, 17
    groups = [(64, 56)] * 3 + [(64, 56)] + [(128, 28)] * 4 + [(256, 14)] * 6 + [(512, 7)] * 2  # input of stages 1..16
    inputs = {stage: batch * channels * side * side * 4 for stage, (channels, side) in enumerate(groups, start=1)}
    sizes = revnet_sizes(34)
    itself = sum(size.parameters + size.statistics for size in sizes)
    head = batch * 512 * 7 * 7 * 4
    streams = 2 if rule is CONSISTENT_RULE else 1
    images = batch * 3 * 224 * 224 * 4
    buffered = (4, 8, 14)
    expected = itself + images + streams * head
    for stage, stream in inputs.items():
        kept = 2 if stage in buffered else streams
        expected += kept * stream * (1 + (2 * (ends - stage) if stage in buffered else 0))
    assert memory(sizes, METHODS[3], rule, accumulation) == expected
    stash = sum(math.ceil(2 * (ends - size.stage) / accumulation) * size.parameters for size in sizes)
    assert memory(sizes, METHODS[2], rule, accumulation) == expected + stash
    extra = sum(2 * (ends - s) * streams * inputs[s] for s in inputs if s not in buffered)
    extra += 0 if rule is CONSISTENT_RULE else 2 * ends * images
    assert memory(sizes, METHODS[1], rule, accumulation) == expected + extra


@pytest.mark.parametrize("depth", [1, 4])
def test_stage_sizes_are_those_of_real_tensors(depth: int) -> None:
    """Stage sizes equal those of the tensors of a chain."""
    stages = chain(depth, num_classes=10, channels=6)
    sizes = stage_sizes(stages, torch.zeros(2, 3, 8, 8))
    assert [size.buffered for size in sizes] == [True] + [False] * (depth + 1)
    assert [size.streams for size in sizes[1:]] == [(2 * 6 * 8 * 8 * 4,) * 2] * (depth + 1)
    assert sizes[1].parameters == 4 * 2 * (6 * 6 * 9 + 6 + 2 * 6)
    assert sizes[1].statistics == 4 * 2 * 2 * 6
