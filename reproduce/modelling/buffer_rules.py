"""Compute memory by the rules of Table 3 (arXiv 2406.02052) for any network, next to the bytes that the engine held.

The published numbers are not measured; they are a sum over stages. With J stages, a staleness s of stage j, counted
from 0 (2(J - 1 - j) in lockstep, as published), float32 and 1 GB = 1e9 bytes, a stage holds

    itself               parameters + BatchNorm statistics + one input
    its input buffer     s inputs                       if inputs are buffered; always for non-reversible stages
    its parameter buffer ceil(s / k) * parameters       if parameters are buffered

The published digits require counting an input in two inconsistent ways, so there are two rules:

    published    an input is both streams at non-reversible stages, one stream at reversible ones and at the head; the
                 stem's buffer of images counts only in the rows with an input buffer
    consistent   an input is everything that the stage takes, both streams; the images are not buffered (they can be
                 read again)

Sizes are computed from the networks, whose tensors are on the meta device and need no memory.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from pandas import DataFrame

from petra_core import methods
from petra_core.ledger import KINDS
from petra_core.methods import Method
from petra_core.staleness import lockstep
from reproduce.cells import catalogue
from reproduce.grids.plans.table3 import ACCUMULATION, BATCH
from reproduce.grids.plans.table4 import METHODS
from reproduce.records.frames import Frames, RunSet

if TYPE_CHECKING:  # torch is slow to import, and the plan of a grid does not need it
    from torch import Tensor

    from petra_core.stages import Stage
    from petra_core.tape import Streams


@dataclass(frozen=True)
class StageSize:
    """Sizes of one stage, in bytes."""

    stage: int
    buffered: bool  # whether it keeps its inputs under every method, since it cannot be inverted
    parameters: int
    statistics: int  # BatchNorm's running mean and variance
    streams: tuple[int, ...]  # of one micro-batch's input, stream by stream


@dataclass(frozen=True)
class BufferRule:
    """A way of counting inputs (see the module's docstring)."""

    title: str
    both_streams: bool  # whether the second stream of reversible stages and of the head counts
    stem_buffer: bool  # whether the stem's images count as an input buffer, under the methods that have one


COUNTED = ("parameters", "buffers", "inputs", "stashed_weights")  # kinds that the rules count
PUBLISHED_RULE = BufferRule("published rule", both_streams=False, stem_buffer=True)
CONSISTENT_RULE = BufferRule("consistent rule", both_streams=True, stem_buffer=False)


def stage_sizes(stages: "Sequence[Stage]", images: "Tensor") -> tuple[StageSize, ...]:
    """Return the sizes of the stages of a network. On the meta device nothing is allocated.

    BatchNorm is skipped: it changes no shape, and would take nine tenths of the time there.

    Args:
        stages: Stages of the network.
        images: One micro-batch on the device of the stages, [batch, channels, height, width].

    """
    from torch import nn
    from torch.overrides import TorchFunctionMode

    from petra_core.stages import HeadStage
    from petra_core.tape import as_streams, as_value

    class WithoutNorms(TorchFunctionMode):
        def __torch_function__(
            self, function: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            return args[0] if function is nn.functional.batch_norm else function(*args, **(kwargs or {}))

    sizes = []
    streams: Streams = (images,)
    for index, stage in enumerate(stages):
        sizes.append(
            StageSize(
                stage=index,
                buffered=not stage.invertible and not isinstance(stage, HeadStage),
                parameters=sum(parameter.nbytes for parameter in stage.parameters()),
                statistics=sum(buffer.nbytes for buffer in stage.buffers() if buffer.is_floating_point()),
                streams=tuple(stream.nbytes for stream in streams),
            )
        )
        with WithoutNorms():
            streams = as_streams(stage(as_value(streams)))
    return tuple(sizes)


def memory(sizes: Sequence[StageSize], method: Method, rule: BufferRule, accumulation: int = ACCUMULATION) -> int:
    """Return the bytes of all stages under a method in lockstep, by a rule, with an update after every k backwards.

    Args:
        sizes: Sizes of the stages.
        method: Training method.
        rule: Rule for counting inputs.
        accumulation: Accumulation k.

    """
    staleness = lockstep(len(sizes))
    return sum(_stage_memory(size, method, rule, accumulation, s) for size, s in zip(sizes, staleness, strict=True))


@cache
def revnet_sizes(
    depth: int, dataset: str = "imagenet", batch_size: int = BATCH, width: int = 64
) -> tuple[StageSize, ...]:
    """Return the stage sizes of a RevNet for images and classes of a data set."""
    import torch

    from petra_core.models import revnet

    images = catalogue.by_name(dataset)
    with torch.device("meta"):
        stages = revnet(depth, num_classes=images.num_classes, stem=images.stem, width=width)
        return stage_sizes(stages, torch.empty(batch_size, 3, images.image_size, images.image_size))


def _stage_memory(size: StageSize, method: Method, rule: BufferRule, accumulation: int, staleness: int) -> int:
    inputs = size.streams if rule.both_streams or size.buffered else size.streams[:1]
    held = size.parameters + size.statistics + sum(inputs)
    if size.stage == 0:
        buffers_inputs = rule.stem_buffer and not method.reconstructs
    else:
        buffers_inputs = size.buffered or not method.reconstructs
    if buffers_inputs:
        held += staleness * sum(inputs)
    if method.stashes_weights:
        held += math.ceil(staleness / accumulation) * size.parameters
    return held


# --- next to the bytes that the engine held


def by_kind(frames: Frames, runs: DataFrame) -> DataFrame:
    """Return the rows of these runs with the peak bytes of each kind of tensors of each stage, as `value`."""
    parts = frames.parts(runs["cell"])
    return runs.drop(columns="kind").merge(parts[(parts["of"] == "peak") & parts["kind"].isin(KINDS)], on="cell")


def held(run_set: RunSet, unit: float) -> DataFrame:
    """Return the runs, methods in the paper's order, with the memory of all stages together; NaN if not measured.

    Args:
        run_set: Runs of Table 3's plan.
        unit: Unit of the amounts, in bytes.

    Returns:
        The columns of the runs and images, subject (network and images), counted (kinds that the rules count), held,
        predicted, at_once (sum over stages of the largest total at one moment), process (growth of the process).

    """
    place = run_set.runs["method"].map([m.name for m in METHODS].index)
    runs = run_set.runs.assign(place=place).sort_values(["dataset", "model", "batch_size", "place"])
    titles = runs["dataset"].map(lambda name: catalogue.by_name(name).title)
    runs["images"] = titles + ", batch " + runs["batch_size"].astype(str)
    runs["subject"] = runs["network"].str.removesuffix(", width 64") + ", " + runs["images"]
    parts = run_set.frames.parts(runs["cell"])
    columns = [("counted", "peak", COUNTED), ("held", "peak", KINDS), ("predicted", "predicted", KINDS)]
    for name, source, kinds in columns:
        chosen = parts[(parts["of"] == source) & parts["kind"].isin(kinds)]
        runs[name] = runs["cell"].map(chosen.groupby("cell")["value"].sum()).astype(float) / unit
    results = {run.cell.name: run.result for run in run_set.finished}
    runs["at_once"] = runs["cell"].map({cell: result["at_once"] / unit for cell, result in results.items()})
    grown = {cell: result["process"] for cell, result in results.items()}  # None if the system does not report it
    runs["process"] = runs["cell"].map({cell: growth["peak"] / unit for cell, growth in grown.items() if growth})
    return runs


def with_rules(runs: DataFrame, unit: float) -> DataFrame:
    """Add the results of both rules to the runs of `held`, as published_rule and consistent_rule.

    For these, counted and held, also add `…_saved`: percent less than under delayed gradients with the same network,
    images and batch.
    """
    runs = runs.assign(
        published_rule=_apply_rule(PUBLISHED_RULE, runs, unit), consistent_rule=_apply_rule(CONSISTENT_RULE, runs, unit)
    )
    delayed = runs[runs["method"] == METHODS[0].name].groupby("subject")
    for name in ("published_rule", "consistent_rule", "counted", "held"):
        runs[f"{name}_saved"] = 100 * (1 - runs[name] / runs["subject"].map(delayed[name].first()))
    return runs


def _apply_rule(rule: BufferRule, runs: DataFrame, unit: float) -> list[float]:
    return [
        memory(
            revnet_sizes(int(run["model"].removeprefix("revnet")), run["dataset"], run["batch_size"], run["width"]),
            methods.by_name(run["method"]),
            rule,
            run["k"],
        )
        / unit
        for run in runs.to_dict("records")
    ]
