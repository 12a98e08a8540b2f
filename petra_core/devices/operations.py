"""Turn the operations of a step into functions that a compiler can fuse.

A recorded step repeats operations on fixed memory (`petra_core.devices.captured`). Compiling the modules of the stages
leaves out the operations of the engine around them: the additions of the coupling, casts of messages, copies to static
buffers and the optimizer's update. These are most of the kernels of a step. Writing forward, reconstruction and
backward as one traceable function would duplicate the engine. But the operations of a step that Python has run are
already a function of the memory that they read, with side effects on the memory that they write. So this module logs
each operation with its *branch*, and makes an FX graph of every branch:

    Python's step ──OperationLog──▶ operations of a branch ──branch_functions──▶ fx.GraphModule ──▶ torch.compile

A branch is a set of operations that may run concurrently with other branches, such as those of one stage. An argument
of an operation that is not a result of the same branch becomes an input of the graph. A result that another branch
reads becomes an output, which is copied to the memory that the other branch reads. All other writes are in place: they
are mutations of inputs, which PyTorch's compilers preserve.
"""

import operator
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from petra_core.ledger import storage_of

aten = torch.ops.aten


@dataclass(frozen=True)
class Operation:
    """Operation of the dispatcher, with its arguments and results."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any

    def inputs(self) -> Iterator[Tensor]:
        """Yield the tensors among the arguments."""
        return _tensors((self.args, self.kwargs))

    def made(self) -> Iterator[Tensor]:
        """Yield the results, except arguments that were written in place."""
        given = {id(tensor) for tensor in self.inputs()}
        return (tensor for tensor in _tensors(self.result) if id(tensor) not in given)


class OperationLog(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives its base no types
    """Dispatch mode that logs every operation inside the context under the current `branch`.

    The log keeps all tensors of the operations alive.

    Attributes:
        branch: Branch of the next operations. It can be set at any time.
        operations: Operations by branch, in the order in which branches began.

    """

    def __init__(self, branch: Hashable = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives it no types
        self.branch = branch
        self.operations: dict[Hashable, list[Operation]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run and log an operation."""
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        if not (name.startswith(("prim::", "profiler::")) or "_record_function" in name):
            self.operations.setdefault(self.branch, []).append(Operation(func, tuple(args), dict(kwargs or {}), result))
        return result


@dataclass(frozen=True)
class BranchFunction:
    """Operations of one branch as a function.

    Attributes:
        branch: Name of the branch.
        module: Graph of the operations, from the inputs to the outputs.
        inputs: Tensors that the logged operations read or wrote and that the branch did not make, in the order of the
            module's arguments.
        outputs: Tensors that the branch made and other branches read, in the order of the module's results.
        after: Branches whose outputs this branch reads.

    """

    branch: Hashable
    module: fx.GraphModule
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    after: frozenset[Hashable]


def branch_functions(log: OperationLog) -> list[BranchFunction]:
    """Return a function for each branch of the log, in the order in which branches began.

    Raises:
        ValueError: If a tensor is in memory that a logged operation allocated, but is not the result of a logged
            operation. The dispatcher did not see the creation of this alias, so a graph cannot compute it.

    """
    maker: dict[int, Hashable] = {}  # branch by tensor
    fresh: set[int] = set()  # storages that logged operations allocated
    for branch, operations in log.operations.items():
        for operation in operations:
            for tensor in operation.inputs():
                if id(tensor) not in maker and storage_of(tensor) in fresh:
                    raise ValueError(
                        f"{operation.function} of branch {branch} reads an alias, {tuple(tensor.shape)} of "
                        f"{tensor.dtype}, that no logged operation returned"
                    )
            given = {storage_of(tensor) for tensor in operation.inputs()}
            for tensor in operation.made():
                maker.setdefault(id(tensor), branch)
                if storage_of(tensor) not in given:
                    fresh.add(storage_of(tensor))
    crossing: dict[Hashable, dict[int, Tensor]] = {branch: {} for branch in log.operations}
    sources: dict[Hashable, set[Hashable]] = {branch: set() for branch in log.operations}
    for branch, operations in log.operations.items():
        for operation in operations:
            for tensor in operation.inputs():
                source = maker.get(id(tensor), branch)
                if source != branch:
                    crossing[source].setdefault(id(tensor), tensor)
                    sources[branch].add(source)
    return [
        _function(branch, operations, maker, tuple(crossing[branch].values()), frozenset(sources[branch]))
        for branch, operations in log.operations.items()
    ]


def _function(
    branch: Hashable,
    operations: Sequence[Operation],
    maker: dict[int, Hashable],
    outputs: tuple[Tensor, ...],
    after: frozenset[Hashable],
) -> BranchFunction:
    graph = fx.Graph()
    nodes: dict[int, fx.Node] = {}
    places: dict[Hashable, fx.Node] = {}  # one placeholder for all tensors of the same memory
    inputs: list[Tensor] = []
    for operation in operations:  # placeholders come before all calls
        for tensor in operation.inputs():
            if id(tensor) in nodes or (id(tensor) in maker and maker[id(tensor)] == branch):
                continue
            place = storage_of(tensor), *_layout(tensor)
            if place not in places:
                places[place] = graph.placeholder(f"input_{len(inputs)}")
                inputs.append(tensor.detach())
            nodes[id(tensor)] = places[place]

    def node(value: Any) -> Any:
        return nodes[id(value)] if isinstance(value, Tensor) else value

    for operation in operations:
        if operation.function is aten._fused_sgd_.tensor_lr and _is_plain_sgd(operation):
            _sgd(graph, node, operation)
            continue
        call = graph.call_function(operation.function, tree_map(node, operation.args), tree_map(node, operation.kwargs))
        if isinstance(operation.result, Tensor):
            nodes.setdefault(id(operation.result), call)
        elif isinstance(operation.result, list | tuple):
            for index, tensor in enumerate(operation.result):
                if isinstance(tensor, Tensor):
                    nodes.setdefault(id(tensor), graph.call_function(operator.getitem, (call, index)))
    graph.output(tuple(nodes[id(tensor)] for tensor in outputs))
    graph.lint()
    return BranchFunction(branch, fx.GraphModule(torch.nn.Module(), graph), tuple(inputs), outputs, after)


def _layout(tensor: Tensor) -> tuple[Hashable, ...]:
    """Return where a tensor's elements are in its storage, and their dtype."""
    return tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def key_of(function: BranchFunction) -> Hashable:
    """Return a key of the operations, shapes and aliases of a function. Functions with equal keys share compiled code.

    Constant arguments are part of the operations' text. The same inputs share memory in both functions.
    """
    storages: dict[int, int] = {}
    layout = tuple(
        (storages.setdefault(storage_of(tensor), len(storages)), *_layout(tensor), tensor.device)
        for tensor in function.inputs
    )
    return str(function.module.graph), layout


def _is_plain_sgd(operation: Operation) -> bool:
    """Return whether `_sgd` can replace the fused kernel: not the first step, and no unusual options."""
    kwargs = operation.kwargs
    return (
        len(operation.args) == 3  # parameters, gradients, momenta
        and not (kwargs["dampening"] or kwargs["maximize"] or kwargs["is_first_step"])
        and kwargs.get("grad_scale") is None
        and kwargs.get("found_inf") is None
        and (bool(kwargs["momentum"]) == bool(operation.args[2]))
    )


def _sgd(graph: fx.Graph, node: Callable[[Any], Any], operation: Operation) -> None:
    """Add torch's fused SGD to a graph as single operations, which a compiler can fuse with the backward."""
    call, settings = graph.call_function, operation.kwargs
    parameters, gradients, momenta = operation.args
    momentum, nesterov, weight_decay = settings["momentum"], settings["nesterov"], settings["weight_decay"]
    for index, parameter in enumerate(map(node, parameters)):
        gradient = node(gradients[index])
        if weight_decay:
            gradient = call(aten.add.Tensor, (gradient, parameter), {"alpha": weight_decay})
        step = gradient
        if momentum:
            buffer = node(momenta[index])
            averaged = call(aten.add.Tensor, (call(aten.mul.Tensor, (buffer, momentum)), gradient))
            call(aten.copy_.default, (buffer, averaged))
            step = call(aten.add.Tensor, (gradient, averaged), {"alpha": momentum}) if nesterov else averaged
        moved = call(aten.sub.Tensor, (parameter, call(aten.mul.Tensor, (step, node(settings["lr"])))))
        call(aten.copy_.default, (parameter, moved))


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
