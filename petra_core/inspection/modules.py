"""Reject stages, parameters and optimizers that the engine cannot train."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from petra_core.ledger import storage_of
from petra_core.optimizers import required_arguments
from petra_core.stages import HeadStage, ReversibleStage, Stage

#: Wrappers that combine the gradients of several processes in hooks that only a call of `backward` reaches.
SYNCHRONIZED = {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}


def check_stages(stages: Sequence[Stage]) -> None:
    """Check that the stages form a pipeline.

    Raises:
        TypeError: If an element is not a stage.
        ValueError: If the last stage is not a head, a trained parameter belongs to two stages or to two parts of a
            merged stage, two parameters share memory, a norm with statistics belongs to two stages, a residual function
            can never learn, a trained parameter has less than float32 precision, or a parameter or buffer has no shape
            yet or is sparse.

    """
    owners: dict[nn.Parameter | nn.Module, tuple[int, int]] = {}
    for index, stage in enumerate(stages):
        if not isinstance(stage, Stage):
            raise TypeError(
                f"stage {index} is a {type(stage).__name__}, which is neither invertible nor buffered; wrap it: "
                f"ReversibleStage(module), BufferedStage(module), or HeadStage(module) at the end"
            )
        for position, part in enumerate(stage.parts()):
            is_last = index == len(stages) - 1 and part is stage.parts()[-1]
            if isinstance(part, HeadStage) != is_last:
                raise ValueError(
                    f"stage {index} ({type(part).__name__}) of {len(stages)}: the last stage must be a HeadStage, "
                    f"and only the last"
                )
            _check_part(part, (index, position), owners)
            if isinstance(part, ReversibleStage):
                check_residual(part.residual)
    if not stages:
        raise ValueError("a pipeline needs at least one stage, the head; got none")
    _check_memory(stages)


def _check_memory(stages: Sequence[Stage]) -> None:
    """Check that no element of a trained parameter is an element of another parameter.

    Raises:
        ValueError: If a parameter is a view of another one.

    """
    storages: dict[tuple[int, torch.dtype], dict[nn.Parameter, str]] = {}
    for index, stage in enumerate(stages):
        for name, parameter in stage.named_parameters():
            sharing = storages.setdefault((storage_of(parameter), parameter.dtype), {})
            sharing.setdefault(parameter, f"{name} of stage {index}")
    for parameters in storages.values():
        if len(parameters) == 1 or not any(parameter.requires_grad for parameter in parameters):
            continue
        elements = torch.zeros(next(iter(parameters)).untyped_storage().nbytes(), dtype=torch.bool)
        for parameter, name in parameters.items():
            its_elements = elements.as_strided(parameter.shape, parameter.stride(), parameter.storage_offset())
            if its_elements.any():
                raise ValueError(
                    f"parameter {name} shares memory with {' or '.join(n for n in parameters.values() if n != name)}: "
                    f"an update of one would change the other, and stashed weights would separate them; use one "
                    f"parameter in both places of one stage, or clone() one"
                )
            its_elements.fill_(True)


def _check_part(part: Stage, place: tuple[int, int], owners: dict[nn.Parameter | nn.Module, tuple[int, int]]) -> None:
    """Check that the engine can train the parameters of a part of a stage, and that no other one has them.

    Args:
        part: The part.
        place: Numbers of the stage and of the part.
        owners: Places of the trained parameters and of the norms with running statistics. Those of the part are added.

    Raises:
        ValueError: If the engine cannot train a parameter, or one or a norm belongs to an earlier place too.

    """
    index = place[0]
    for name, tensor in (*part.named_parameters(), *part.named_buffers()):
        if is_lazy(tensor):
            raise ValueError(
                f"{name} of stage {index} has no shape before the first forward of its lazy module; evaluate the "
                f"network once before: petra_core.models.sequential(stages)(inputs)"
            )
        if tensor.layout is not torch.strided:
            raise ValueError(
                f"{name} of stage {index} has layout {tensor.layout}, but the engine keeps dense tensors only; "
                f"register its parts, such as indices and values, and make the sparse tensor in the forward"
            )
    for name, parameter in part.named_parameters():
        where = f"parameter {name} of stage {index}"
        if not parameter.requires_grad:
            continue  # two stages may share a frozen parameter, also one in bfloat16
        if parameter.is_floating_point() and parameter.element_size() < torch.float32.itemsize:
            raise ValueError(
                f"{where} is {parameter.dtype}, but streams between stages are float32; keep weights in float32 "
                f"(stage.float()) and give the pipeline autocast=torch.bfloat16"
            )
        if (owner := owners.setdefault(parameter, place)) != place:
            other = f"stage {owner[0]}" if owner[0] != index else "another of the stages that it was merged from"
            raise ValueError(
                f"{where} belongs to {other} too; weights cannot be tied across stages, which update at different "
                f"times: put both uses into the module of one stage, or untie them with copy.deepcopy of the module, "
                f"which makes another network"
            )
    for name, module in part.named_modules():
        if synchronized := SYNCHRONIZED.intersection(kind.__name__ for kind in type(module).__mro__):
            raise ValueError(
                f"{name} of stage {index} is a {synchronized.pop()}, whose hooks on gradients are never called, so "
                f"replicas would train apart; give the plain module, and average gradients in before_update"
            )
        tracks = isinstance(module, _NormBase) and module.track_running_stats
        first, _ = owners.setdefault(module, place) if tracks else place
        if first != index:
            raise ValueError(
                f"{name}, a {type(module).__name__} of stage {index} tracks statistics in stage {first} too, but "
                f"stages in different processes have separate copies; give each stage a norm"
            )


def check_residual(residual: nn.Module) -> None:
    """Reject a residual function that always returns zero and can never learn.

    Its last layer is a ReLU, right after an affine layer (BatchNorm, convolution, linear) with zero weights and no
    positive bias.

    Initialising the last BatchNorm weight of every residual function to zero is a well-known trick (Goyal et al. 2017).
    In a ResNet it works: the block starts as the identity, and the weight's gradient is not zero. A RevNet's residual
    function ends in a ReLU *after* that BatchNorm. There the trick fails: ReLU(0) is 0 with derivative 0, so neither
    the BatchNorm nor any layer before it ever receives a gradient.

    Args:
        residual: The function F of a reversible stage. Its layers are examined in the order of their registration.

    Raises:
        ValueError: If F can never learn.

    """
    layers = [m for m in residual.modules() if next(m.children(), None) is None and not isinstance(m, nn.Identity)]
    if len(layers) < 2 or not isinstance(layers[-1], nn.ReLU | nn.ReLU6):
        return
    weight, bias = getattr(layers[-2], "weight", None), getattr(layers[-2], "bias", None)
    if not isinstance(weight, Tensor) or weight.is_meta or torch.count_nonzero(weight):
        return
    if isinstance(bias, Tensor) and bool((bias > 0).any()):
        return
    kind = type(layers[-2]).__name__
    raise ValueError(
        f"the residual function ends in {kind} and ReLU, and all {weight.numel()} weights of that {kind} are 0: "
        f"ReLU passes no gradient at 0, so the block would stay 0 forever; initialise the weight to 1 "
        f"(zero initialisation is for residual functions without a ReLU at their end)"
    )


def check_optimizer(optimizer: Any, stage: int, parameters: Sequence[nn.Parameter]) -> None:
    """Check the optimizer that a factory made for a stage.

    Args:
        optimizer: The result of the factory.
        stage: Index of the stage.
        parameters: Parameters of the stage.

    Raises:
        TypeError: If it is not an optimizer, or its step needs an argument.
        ValueError: If it has parameters of other stages.

    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"the optimizer factory returned a {type(optimizer).__name__} for stage {stage}, expected a "
            f"torch.optim.Optimizer"
        )
    if needed := required_arguments(type(optimizer).step)[1:]:  # without self
        raise TypeError(
            f"the optimizer of stage {stage} is {type(optimizer).__name__}, whose step() needs {', '.join(needed)}: it "
            f"evaluates the whole network, which a stage cannot do; choose one whose step() needs no argument, such as "
            f"SGD or AdamW"
        )
    own = set(parameters)
    if foreign := sum(parameter not in own for group in optimizer.param_groups for parameter in group["params"]):
        raise ValueError(
            f"the optimizer of stage {stage} has {foreign} parameters of other stages, which its steps would change, "
            f"too; create it with the list of parameters that is passed to the factory"
        )


def check_factory(optimizer: Any) -> None:
    """Check the function that makes the optimizers.

    Raises:
        TypeError: If it is neither None nor callable, or is a class with a further required argument or a function with
            a required learning rate, which would get the index of the stage.

    """
    if optimizer is not None and not callable(optimizer):
        raise TypeError(
            f"optimizer is a {type(optimizer).__name__}, expected a function that makes one for each stage; give "
            f"lambda parameters: torch.optim.SGD(parameters, lr=0.1)"
        )
    needed = [] if optimizer is None else required_arguments(optimizer)
    if len(needed) == 2 and (isinstance(optimizer, type) or needed[1] in ("lr", "learning_rate")):
        name = getattr(optimizer, "__name__", "factory")
        raise TypeError(
            f"optimizer={name} requires an argument after the parameters, which would get the index of the stage; set "
            f"it: functools.partial({name}, {needed[1]}=0.1)"
        )
