"""Predict the memory of each stage from shapes and the method.

The ledger (`petra_core.ledger`) measures the memory of a run. This module calculates the same quantities without
allocating anything: shapes and graph sizes come from one pass with fake tensors (`footprints`), the rest from Table 1
of the paper (`petra_core.prediction.footprint`). The two are independent, so tests compare them. Neither counts
temporary tensors inside an operation.

What a graph saves depends on the kernel, and the kernel on the device: fused attention saves its output and one number
for each query, the plain form saves the probabilities of all pairs of tokens. The meta device only has plain kernels.
So the fake tensors claim to be on the device of the run, and PyTorch chooses the kernels that it would choose there.

In two cases the prediction is not exact, and a warning is issued:

    a device that this machine lacks   its kernels are not available, so the prediction uses those of the CPU
    LSTM                               its kernel saves a workspace of unknown size, so the prediction is too small
"""

import copy
import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from petra_core.ledger import SavedTensors, payload
from petra_core.methods import Method
from petra_core.optimizers import OptimizerFactory, optimizer_of
from petra_core.prediction.footprint import Footprint, StagePrediction, merge_footprints, predict_stages
from petra_core.settings import Settings
from petra_core.stages import HeadStage, Stage
from petra_core.tape import Streams, Value, as_streams, at_least_float32, autocast_dtype, mixed_precision
from petra_core.targets import Target, convert_tensors, flatten
from petra_core.worker import devices_of

CPU = torch.device("cpu")


def footprints(
    stages: Sequence[Stage],
    method: Method,
    inputs: Value,
    target: Target,
    *,
    optimizer: OptimizerFactory | None = None,
    autocast: torch.dtype | None = None,
    device: torch.device | None = None,
) -> tuple[Footprint, ...]:
    """Return the footprint of each stage for micro-batches like `inputs`, `target`; arguments as in `predict`."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    streams = as_streams(inputs)
    per_stage = []
    for index, (stage, where) in enumerate(zip(stages, _places(stages, device), strict=True)):
        blocks = []
        for part in stage.parts():
            streams = tuple(_imitate(mode, stream, where) for stream in streams)
            fake = _imitate_block(mode, part, where)
            try:
                block, streams = _of_block(fake, method, mode, streams, target, autocast)
                prefix = next(f"{name}." if name else "" for name, module in stage.named_modules() if module is part)
                of_optimizer = _optimizer_bytes(fake, optimizer, index, prefix)
            except Exception as error:
                error.add_note(
                    f"stage {index} was evaluated with fake tensors, which have shapes and no values, to predict its "
                    f"memory. The memory of a function that reads values of tensors, as in `if x.sum() > 0`, cannot be "
                    f"predicted: read Pipeline.memory() of a run"
                )
                raise
            blocks.append(replace(block, optimizer=of_optimizer))
        whole = merge_footprints(blocks)
        if method.overlapped and not isinstance(stage.parts()[-1], HeadStage):  # R makes the graphs of all blocks
            whole = replace(whole, passing=sum(block.passing for block in blocks))
        per_stage.append(whole)
    return tuple(per_stage)


def predict(
    stages: Sequence[Stage],
    method: Method,
    inputs: Value,
    target: Target,
    *,
    optimizer: OptimizerFactory | None = None,
    device: torch.device | None = None,
    **settings: Any,
) -> tuple[StagePrediction, ...]:
    """Predict the bytes of each stage when `method` trains `stages` on micro-batches like `inputs`, `target`.

    Args:
        stages: Stages as for `Pipeline`. They are not changed, and may be on any device, including the meta device.
        method: Training method.
        inputs: Inputs of a micro-batch, of which only shapes and dtypes are used.
        target: Target of the micro-batch, of which only shapes and dtypes are used.
        optimizer: Factory of the optimizers, as for `Pipeline`.
        device: Device on which the stages will be trained, whose kernels determine what graphs save. None for the
            device of each stage, and the CPU for stages on the meta device. If this machine lacks the device, its
            kernels are unknown: a warning reports this, and the prediction is the one for the CPU.
        **settings: `accumulation`, `staleness`, `delay` and `autocast`, as for `Pipeline`.

    Raises:
        TypeError: If a setting has the wrong type, or is unknown.
        ValueError: If a setting is out of range, or two settings contradict each other.

    """
    given = Settings(method=method, **settings)
    per_stage = footprints(stages, method, inputs, target, optimizer=optimizer, autocast=given.autocast, device=device)
    return predict_stages(per_stage, given)


def _places(stages: Sequence[Stage], device: torch.device | None) -> list[torch.device]:
    """Return the device whose kernels are used to predict each stage, and warn if a prediction is not exact."""
    wanted = devices_of(stages) if device is None else [device] * len(stages)
    places = [CPU if place.type == "meta" else place for place in wanted]
    if absent := sorted({place.type for place in places if not _is_here(place)}):
        warnings.warn(
            f"memory is predicted with the kernels of the CPU, since this machine has no {' or '.join(absent)} device: "
            f"attention, recurrent layers and autocast may save more or less there. For an exact prediction, predict "
            f"on a machine that has the device",
            stacklevel=4,
        )
    if recurrent := [j for j, stage in enumerate(stages) if any(isinstance(m, nn.LSTM) for m in stage.modules())]:
        warnings.warn(
            f"memory of stages {recurrent} is predicted too small: an LSTM saves a workspace for its backward, whose "
            f"size only its kernel knows. Read Pipeline.memory() of a short run",
            stacklevel=4,
        )
    return [place if _is_here(place) else CPU for place in places]


def _is_here(device: torch.device) -> bool:
    return device.type == "cpu" or bool(torch.get_device_module(device).is_available())


def _imitate(mode: FakeTensorMode, tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor without memory that claims to be on `device`, with the layout of `tensor`."""
    with mode:
        fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return nn.Parameter(fake, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake


def _imitate_block(mode: FakeTensorMode, block: Stage, device: torch.device) -> Stage:
    """Return a copy of a block whose parameters, buffers and other tensors take no memory."""
    attributes = (value for module in block.modules() for value in vars(module).values() if isinstance(value, Tensor))
    tensors = chain(block.parameters(), block.buffers(), attributes)
    return copy.deepcopy(block, {id(tensor): _imitate(mode, tensor, device) for tensor in tensors})


#: Names of operations whose results, except for the first, are statistics.
NORMALIZATIONS = ("native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit")


class _MixedStatistics(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch's has no types
    """Dispatch mode that corrects the dtype of normalization statistics in mixed precision on the CPU to float32.

    With float32 weights the real kernels save float32 statistics. PyTorch's fake kernels return them in the dtype of
    the input.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        mixed = any(isinstance(weight, Tensor) and weight.dtype is torch.float32 for weight in args[1:])
        if func.overloadpacket.__name__ in NORMALIZATIONS and mixed and args[0].device.type == "cpu":
            return (result[0], *(statistics.float() for statistics in result[1:]))
        return result


def _of_block(
    block: Stage, method: Method, mode: FakeTensorMode, streams: Streams, target: Target, autocast: torch.dtype | None
) -> tuple[Footprint, Streams]:
    """Return the footprint of a block of fake tensors without its optimizer, and its output."""
    device, is_head = streams[0].device, isinstance(block, HeadStage)
    lasts, reconstructs = is_head or method.keeps_graph, method.reconstructs and block.invertible
    recorded = at_least_float32(streams) if reconstructs else streams  # a reconstructed input is not narrower
    with (
        mode,
        _MixedStatistics(),  # type: ignore[no-untyped-call]  # PyTorch's has no types
        device,  # for tensors that the block creates
        mixed_precision(device, autocast_dtype(device, autocast)),
        torch.enable_grad(),
        SavedTensors([*recorded, *block.parameters(), *block.buffers()]) as saved,
    ):
        if isinstance(block, HeadStage):
            tape = block.record_loss(streams, convert_tensors(target, lambda tensor: _imitate(mode, tensor, device)))
        else:
            tape = block.record(recorded)
    sent = 0 if is_head else payload(tape.outputs)
    trainable = payload(parameter for parameter in block.parameters() if parameter.requires_grad)
    footprint = Footprint(
        parameters=payload(block.parameters()),
        buffers=payload(block.buffers()),
        optimizer=0,
        trainable=trainable,
        block=trainable,
        kept=0 if reconstructs else payload(block.keep(streams)),
        side=payload(block.inversion_state(streams)) if reconstructs else 0,
        lasting=saved.bytes if lasts else 0,
        passing=0 if lasts else saved.bytes,
        below=payload(streams),
        above=2 * sent if reconstructs else sent,
        target=payload(flatten(target)[1]) if is_head else 0,
    )
    return footprint, tape.outputs


def _optimizer_bytes(block: Stage, factory: OptimizerFactory | None, index: int, prefix: str) -> int:
    """Return the bytes of the optimizer's state after its first step with the fake parameters of a block."""
    named = [(prefix + name, p) for name, p in block.named_parameters() if p.requires_grad]
    if factory is None or not named:
        return 0
    optimizer = optimizer_of(factory, index, named)
    for _, parameter in named:
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    return payload(value for value in tree_leaves([*optimizer.state.values()]) if isinstance(value, Tensor))
