"""Time the stages of a network on this machine, and balance them over devices.

Each stage is timed in isolation with the work that its device has in every tick of a full pipeline
(`petra_core.prediction.stage_alone`). The results are medians over turns after a warm-up (caches, kernel selection, the
optimizer's state). A median is robust against single turns that another process disturbed, but not against a machine
that is always busy.

The stages are copied one at a time, so their weights, buffers and optimizers are not changed, and torch's global
generators are restored.
"""

import copy
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from petra_core.errors import check_int
from petra_core.ledger import payload
from petra_core.methods import REVERSIBLE_BACKPROPAGATION, Method
from petra_core.optimizers import OptimizerFactory
from petra_core.prediction.memory import predict
from petra_core.prediction.partition import Partition, find_partition
from petra_core.prediction.simulation import Cost
from petra_core.prediction.stage_alone import StageAlone, feeds
from petra_core.stages import Stage
from petra_core.tape import Value
from petra_core.targets import Target
from petra_core.worker import devices_of

__all__ = ["StageTimes", "balance", "measure", "time_stages"]

WARM_UP = 2  # turns that are not timed


@dataclass(frozen=True)
class StageTimes:
    """Seconds of the timed turns of one stage, and the bytes that it sends.

    Attributes:
        forward: Seconds of each forward.
        backward: Seconds of each backward, including the evaluation that reconstructs the graph if there is one.
        update: Seconds of each optimizer step. Only every k-th turn has one.
        up: Bytes of a message to the stage above.
        down: Bytes of a message to the stage below.
        weights: Bytes of the parameters.

    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    update: tuple[float, ...]
    up: int
    down: int
    weights: int

    @property
    def cost(self) -> Cost:
        """Cost of the stage, with the medians of the seconds."""
        forward, backward, update = map(statistics.median, (self.forward, self.backward, self.update))
        return Cost(forward, backward, update, self.up, self.down, self.weights)


def time_stages(
    stages: Sequence[Stage],
    method: Method,
    inputs: Value,
    target: Target,
    *,
    accumulation: int = 1,
    optimizer: OptimizerFactory | None = None,
    autocast: torch.dtype | None = None,
    repetitions: int = 5,
) -> Iterator[StageTimes]:
    """Time one stage after the other, as `method` would run it on a separate device, and yield the times.

    Args:
        stages: Stages of a pipeline; they are not changed.
        method: Training method, except PAREPROP.
        inputs: Inputs of a micro-batch.
        target: Target of the micro-batch.
        accumulation: Number of micro-batches per update, k, as in `Pipeline`.
        optimizer: As in `Pipeline`; None times no updates.
        autocast: As in `Pipeline`.
        repetitions: Number of timed turns of each stage, at least k.

    Raises:
        ValueError: If k or the repetitions are below 1, or the method overlaps stages.

    """
    check_int("accumulation", accumulation, 1)
    check_int("repetitions", repetitions, 1)
    if method.overlapped:
        raise ValueError(
            f"{method} overlaps the work of two stages, so a stage cannot be timed in isolation; "
            f"{REVERSIBLE_BACKPROPAGATION} does the same work in order"
        )
    devices = devices_of(stages)
    cuda = [device for device in {*devices} if device.type == "cuda"]
    precision = torch.autocast(devices[0].type, dtype=autocast, enabled=autocast is not None)
    with torch.random.fork_rng(devices=cuda), precision:
        arriving = feeds(copy.deepcopy(list(stages)), method, inputs, target)
    for index, (stage, feed) in enumerate(zip(stages, arriving, strict=True)):
        with torch.random.fork_rng(devices=cuda):
            # At most k waiting micro-batches are needed for forward and backward to use different weights.
            waiting = min(method.staleness(index, len(stages)), accumulation)
            alone = StageAlone(
                *(copy.deepcopy(stage), index, method, feed),
                waiting=waiting,
                accumulation=accumulation,
                optimizer=optimizer,
                autocast=autocast,
            )
            for _ in range(max(WARM_UP, accumulation)):
                alone.turn()
            turns = [alone.turn() for _ in range(max(repetitions, accumulation))]  # only every k-th turn has an update
        yield StageTimes(
            forward=tuple(turn.forward for turn in turns),
            backward=tuple(turn.backward for turn in turns),
            update=tuple(turn.update for turn in turns if turn.update is not None),
            up=alone.bytes_up,
            down=alone.bytes_down,
            weights=payload(stage.parameters()),
        )


def measure(
    stages: Sequence[Stage], method: Method, inputs: Value, target: Target, **settings: Any
) -> tuple[Cost, ...]:
    """Time every stage as `method` would run it on a separate device, and return the cost of each stage.

    Args:
        stages: Stages of a pipeline; they are not changed.
        method: Training method, except PAREPROP.
        inputs: Inputs of a micro-batch.
        target: Target of the micro-batch.
        **settings: `accumulation`, `optimizer`, `autocast` and `repetitions`, as in `time_stages`.

    Returns:
        Costs for `petra_core.prediction.simulation`.

    Raises:
        TypeError: If a setting is unknown.
        ValueError: If k or the repetitions are below 1, or the method overlaps stages.

    """
    return tuple(stage.cost for stage in time_stages(stages, method, inputs, target, **settings))


def balance(
    stages: Sequence[Stage],
    method: Method,
    inputs: Value,
    target: Target,
    devices: int,
    *,
    accumulation: int = 1,
    staleness: Sequence[int] | None = None,
    repetitions: int = 5,
    limit: int | None = None,
    **settings: Any,
) -> Partition:
    """Time every stage now and return the partition over devices whose slowest device is fastest.

    `Partition.sizes` is the argument of `petra_core.distributed.ProcessChannel`. Call this in one process and send the
    sizes to the others: two processes would measure different times. Print the partition to see times and bytes.

    Args:
        stages: As in `measure`.
        method: As in `measure`.
        inputs: As in `measure`.
        target: As in `measure`.
        devices: Number of devices, each of which gets at least one stage.
        accumulation: As in `time_stages`.
        staleness: As in `Pipeline`, for the prediction of memory.
        repetitions: As in `time_stages`.
        limit: Maximum predicted bytes of a device, or None.
        **settings: `optimizer` and `autocast`, as in `time_stages`.

    Raises:
        TypeError: If a setting is unknown.
        ValueError: As in `measure`, and if there are fewer stages than devices, or no partition stays below the limit.

    """
    network = stages, method, inputs, target
    held = predict(*network, accumulation=accumulation, staleness=staleness, **settings)
    costs = measure(*network, accumulation=accumulation, repetitions=repetitions, **settings)
    seconds = [cost.forward + cost.backward + cost.update / accumulation for cost in costs]
    return find_partition(seconds, devices, held=[stage.total for stage in held], limit=limit)
