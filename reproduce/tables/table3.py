"""Table 3: memory of RevNet-50 under the four buffer configurations (arXiv 2406.02052, ImageNet, batch 64, k = 1).

The published numbers are no measurement but a sum over stages. With J stages, stage j (0-based) of staleness
s = 2(J - 1 - j), float32 and 1 GB = 1e9 bytes, a stage holds

    itself               parameters + BatchNorm statistics + one input
    its input buffer     s inputs                       where inputs are buffered; non-reversible stages always do
    its parameter buffer ceil(s / k) * parameters       where parameters are buffered

To get the published digits, an input must be counted in two inconsistent ways, so there are two rules:

    published    an input is both streams at non-reversible stages, one stream at reversible ones and at the head; the
                 stem's buffer of images counts only in the rows with an input buffer
    consistent   an input is what the stage takes, both streams; the images wait in nobody's buffer (they can be read
                 again)

Everything is computed from the networks themselves, whose tensors are made on the meta device and so cost nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from petra_core.methods import PETRA
from petra_core.models import revnet
from petra_core.stages import HeadStage, Stage
from petra_core.tape import Streams, as_streams, as_value
from reproduce import published
from reproduce.tables.content import GIGABYTE, Column, Entry, Finding, Section, Table, Tone, number, signed, text
from reproduce.tables.content import published as published_entry

DEPTHS = (18, 34, 50)
BATCH, ACCUMULATION, IMAGE_SIZE, CLASSES = 64, 1, 224, 1000


@dataclass(frozen=True)
class StageSize:
    """What one stage is made of, in bytes.

    Attributes:
        stage: j.
        staleness: micro-batches between its forward and its backward, 2(J - 1 - j).
        buffered: whether it keeps its inputs under every configuration, because it cannot be inverted.
        parameters: weights.
        statistics: BatchNorm's running mean and variance.
        streams: one micro-batch's input, stream by stream.

    """

    stage: int
    staleness: int
    buffered: bool
    parameters: int
    statistics: int
    streams: tuple[int, ...]


@dataclass(frozen=True)
class Configuration:
    """Which buffers are held: a row of the table."""

    input_buffer: bool
    parameter_buffer: bool


@dataclass(frozen=True)
class Rule:
    """How an input is counted (see the module's docstring).

    Attributes:
        title: how tables call it.
        both_streams: whether the second stream of reversible stages and of the head counts.
        stem_buffer: whether the stem's images count as an input buffer, in the configurations that have one.

    """

    title: str
    both_streams: bool
    stem_buffer: bool


CONFIGURATIONS = tuple(Configuration(inputs, weights) for inputs in (True, False) for weights in (True, False))
PUBLISHED_RULE = Rule("published rule", both_streams=False, stem_buffer=True)
CONSISTENT_RULE = Rule("consistent rule", both_streams=True, stem_buffer=False)


def stage_sizes(stages: Sequence[Stage], images: Tensor) -> tuple[StageSize, ...]:
    """Sizes of the stages of a network; on the meta device nothing is allocated.

    Args:
        stages: the network.
        images: one micro-batch on the device of the stages, [batch, channels, height, width].

    """
    sizes = []
    streams: Streams = (images,)
    for index, stage in enumerate(stages):
        sizes.append(
            StageSize(
                stage=index,
                staleness=PETRA.delay(index, len(stages)),
                buffered=not stage.invertible and not isinstance(stage, HeadStage),
                parameters=sum(map(_bytes, stage.parameters())),
                statistics=sum(_bytes(buffer) for buffer in stage.buffers() if buffer.is_floating_point()),
                streams=tuple(map(_bytes, streams)),
            )
        )
        streams = as_streams(stage(as_value(streams)))
    return tuple(sizes)


def memory(
    sizes: Sequence[StageSize], configuration: Configuration, rule: Rule, accumulation: int = ACCUMULATION
) -> int:
    """Bytes of all stages together under a configuration, by a rule, with an update after every k backwards."""
    return sum(_stage_memory(size, configuration, rule, accumulation) for size in sizes)


def saving(
    sizes: Sequence[StageSize], configuration: Configuration, rule: Rule, accumulation: int = ACCUMULATION
) -> float:
    """Percent saved against the configuration that holds both buffers."""
    everything = memory(sizes, CONFIGURATIONS[0], rule, accumulation)
    return 100 * (1 - memory(sizes, configuration, rule, accumulation) / everything)


@cache
def revnet_sizes(depth: int) -> tuple[StageSize, ...]:
    """Stage sizes of a RevNet for ImageNet at the paper's batch."""
    with torch.device("meta"):
        stages = revnet(depth, num_classes=CLASSES, stem="imagenet")
        return stage_sizes(stages, torch.empty(BATCH, 3, IMAGE_SIZE, IMAGE_SIZE))


def section() -> Section:
    """The table of the paper beside both rules, and both rules for the other depths."""
    rows = published.read("table3_memory")
    sizes = revnet_sizes(50)
    reproduced = sum(
        f"{memory(sizes, c, PUBLISHED_RULE) / GIGABYTE:.1f}" == row["memory_gb"]
        and f"{saving(sizes, c, PUBLISHED_RULE):.1f}" == row["saving_percent"]
        for c, row in zip(CONFIGURATIONS, rows, strict=True)
    )
    consistent = saving(sizes, CONFIGURATIONS[-1], CONSISTENT_RULE)
    exact = reproduced == len(rows)
    return Section(
        key="table3",
        title="Table 3: memory of the buffers",
        blocks=(
            "The published table is an estimate by formula: every stage holds its parameters, its BatchNorm "
            "statistics and one input, and, where they are buffered, one input and one copy of the parameters for "
            "every micro-batch of delay. The published digits follow from the networks built here, but only if "
            "inputs are counted in two ways: both streams at non-reversible stages, one stream at reversible ones "
            "and at the head, and the images in the stem's buffer in the first two rows only. Counted consistently "
            "(both streams everywhere, no buffer of images), the memory of the first rows is larger, and so is the "
            "saving.",
            _published_table(rows, sizes),
            _depths_table(),
        ),
        findings=(
            Finding(
                f"Table 3: {reproduced} of {len(rows)} rows of the published memory of RevNet-50 follow to the digit "
                f"from the published rule; counted consistently, PETRA saves {consistent:.1f} % instead of "
                f"{rows[-1]['saving_percent']} %.",
                Tone.GOOD if exact else Tone.ALERT,
            ),
        ),
        coverage=f"computed from the networks: {reproduced} of {len(rows)} rows to the digit; not measured",
    )


def _stage_memory(size: StageSize, configuration: Configuration, rule: Rule, accumulation: int) -> int:
    counted = size.streams if rule.both_streams or size.buffered else size.streams[:1]
    held = size.parameters + size.statistics + sum(counted)
    if size.stage == 0:
        buffers_inputs = rule.stem_buffer and configuration.input_buffer
    else:
        buffers_inputs = size.buffered or configuration.input_buffer
    if buffers_inputs:
        held += size.staleness * sum(counted)
    if configuration.parameter_buffer:
        held += math.ceil(size.staleness / accumulation) * size.parameters
    return held


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _published_table(rows: Sequence[published.Row], sizes: Sequence[StageSize]) -> Table:
    columns = [
        Column("input buffer", numeric=False),
        Column("parameter buffer", numeric=False),
        Column("GB", group="published"),
        Column("saving, %", group="published"),
        *(Column(name, group=PUBLISHED_RULE.title) for name in ("GB", "difference", "saving, %")),
        *(Column(name, group=CONSISTENT_RULE.title) for name in ("GB", "saving, %")),
    ]
    body = []
    for configuration, row in zip(CONFIGURATIONS, rows, strict=True):
        gigabytes = memory(sizes, configuration, PUBLISHED_RULE) / GIGABYTE
        rounded = round(gigabytes, 1)
        body.append(
            [
                _yes(configuration.input_buffer),
                _yes(configuration.parameter_buffer),
                published_entry(row["memory_gb"], row.mark, value=row.number("memory_gb")),
                published_entry(row["saving_percent"], row.mark, value=row.number("saving_percent")),
                number(gigabytes, 2),
                signed(rounded - row.number("memory_gb"), 1, hint="after rounding to the published digits"),
                number(saving(sizes, configuration, PUBLISHED_RULE), 1),
                number(memory(sizes, configuration, CONSISTENT_RULE) / GIGABYTE, 2),
                number(saving(sizes, configuration, CONSISTENT_RULE), 1),
            ]
        )
    return Table(
        key="table3",
        caption=(
            f"Memory of RevNet-50, ImageNet, batch {BATCH}, k = {ACCUMULATION}, float32, by formula. 1 GB = 10⁹ bytes."
        ),
        columns=columns,
        rows=body,
        notes=(
            "Input buffer “no” and parameter buffer “no” is PETRA; “yes” and “yes” holds what delayed gradients hold. "
            "Difference: published rule, rounded to one decimal, less the published value.",
        ),
    )


def _depths_table() -> Table:
    columns = [
        Column("model", numeric=False),
        Column("input buffer", numeric=False),
        Column("parameter buffer", numeric=False),
        *(Column(name, group=rule.title) for rule in (PUBLISHED_RULE, CONSISTENT_RULE) for name in ("GB", "saving, %")),
    ]
    body = []
    for depth in DEPTHS:
        sizes = revnet_sizes(depth)
        for configuration in CONFIGURATIONS:
            values = [
                entry
                for rule in (PUBLISHED_RULE, CONSISTENT_RULE)
                for entry in (
                    number(memory(sizes, configuration, rule) / GIGABYTE, 2),
                    number(saving(sizes, configuration, rule), 1),
                )
            ]
            head = text(f"RevNet-{depth}, J = {len(sizes)}")
            body.append([head, _yes(configuration.input_buffer), _yes(configuration.parameter_buffer), *values])
    return Table(
        key="table3-depths",
        caption=f"The same for all three RevNets (ImageNet, batch {BATCH}, k = {ACCUMULATION}); not in the paper.",
        columns=columns,
        rows=body,
        grouped=True,
    )


def _yes(value: bool) -> Entry:
    return text("yes" if value else "no")
