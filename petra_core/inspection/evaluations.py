"""Inspect the first micro-batches, to detect a network that would train differently than with plain autograd.

The engine differentiates one graph per block, evaluates many blocks a second time, and evaluates some of them with
stashed or predicted weights. A block must therefore be a pure function of its input, its weights and torch's global
generator, and all tensors that are to be trained must be registered parameters of the block. A violation causes no
error in the arithmetic: training continues with wrong gradients. This module inspects every block in its first forwards
and backwards:

    the leaves of its graph              must be only its input and its trained parameters
    the tensors that it reads            must not be results of another block, except for its input, nor kept results
                                         of its parameters, if the engine evaluates it again
    its input and its parameters         must not be written
    a second evaluation                  must give the same output and draw the same random numbers, with the same
                                         gradients if an attribute or buffer that it changes has a later value; only for
                                         blocks that the engine evaluates again
    tensors in attributes, lists, dicts  must not grow with every evaluation; only for these blocks
    its buffers                          must be written as attributes of their modules; only for these blocks
    the evaluation for its backward      must give the same output as the forward, if both have the same weights

Two outputs are equal if their largest difference, relative to the largest magnitude, is at most

    `ROUNDING` units of rounding    on a CPU and with `torch.use_deterministic_algorithms(True)`, since some kernels
                                    round differently with a graph than without
    `TOLERANCE`                     otherwise on a GPU, since some kernels add in any order
    `TOLERANCE_AUTOCAST`            in mixed precision
    `RECONSTRUCTED`                 if the backward evaluates at a reconstructed input

Buffers, attributes and generators are restored after a second evaluation.

The inspection does not detect:

- a function that is impure with a small probability, such as stochastic depth with a generator that only a closure
  references, until two evaluations differ;
- a number or a NumPy array that one stage computes from a micro-batch and another stage reads, with a pipelined method
  that keeps graphs, since nothing is evaluated again;
- reads of another block's tensors, or of kept results of weights, in code that is compiled by torch.compile;
- a value in a list or a closure that a module changes and on which only its gradients depend;
- a buffer that a module writes through `.data` and that its graph saves, with a pipelined method that keeps graphs;
- violations that begin after the first micro-batches.
"""

import contextlib
import functools
import math
import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from petra_core.buffers import Buffers, FrozenBuffers, attributes_of, set_attributes
from petra_core.errors import Finding, StageError
from petra_core.inspection.guards import refuse_input_writes
from petra_core.inspection.ownership import INSPECTED, storage_reference
from petra_core.randomness import RandomStream, capture, differ, replay
from petra_core.stages import ReversibleStage, Stage
from petra_core.tape import Streams, Tape, autocast_dtype, combine_streams, mixed_precision
from petra_core.weights import BlockWeights, StageWeights

#: Dtype (of complex tensors that of the real part), Euclidean norm and a projection of each tensor.
Projections = tuple[tuple[torch.dtype, float, float], ...]

ROUNDING = 64.0
TOLERANCE = 1e-3
TOLERANCE_AUTOCAST = 2.0**-5
#: Allowed relative difference of an output at a reconstructed input, which has rounding errors of all stages above.
RECONSTRUCTED = {torch.float64: 1e-6, torch.float32: 2e-2}
RECONSTRUCTED_ROUGHLY = 0.3  # in mixed precision
FAR = 10**6  # number of evaluations by which a counter is advanced

_PLAIN = (int, float, complex, bool, str, type(None))
_CONTAINERS = (Tensor, list, dict)  # tuples are workspaces, rather than statistics that grow
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)

PURE = (
    "its backward evaluates it again, so it must be a pure function: draw random numbers from torch's global generator "
    "only, keep no counters, read no buffer that it writes; or choose a method that keeps graphs, such as "
    "BACKPROPAGATION or DELAYED_GRADIENTS"
)


class Inspection:
    """The inspection of all blocks of a pipeline in this process.

    Args:
        stages: Stages of the pipeline.
        autocast: Dtype of the pipeline's mixed precision; None for the caller's autocast context.

    Attributes:
        autocast: Dtype of the pipeline's mixed precision; None for the caller's autocast context.
        findings: Findings so far, if they are collected (`petra_core.check`). None to raise the first finding.
        owners: Stage and name of each parameter.
        origins: The block that has computed or received a tensor, by the tensor's storage, as long as that exists.
        inputs: The block whose input a leaf of a graph represents, as long as the leaf exists.

    """

    def __init__(self, stages: Sequence[Stage], autocast: torch.dtype | None = None) -> None:
        self.findings: list[Finding] | None = None
        self.autocast = autocast
        named = ((index, *item) for index, stage in enumerate(stages) for item in stage.named_parameters())
        self.owners: dict[Tensor, tuple[int, str]] = {parameter: (index, name) for index, name, parameter in named}
        self.origins: dict[StorageWeakRef, BlockInspection] = {}
        self.inputs: MutableMapping[Tensor, BlockInspection] = WeakIdKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for a copy, without weak references."""
        return {name: value for name, value in self.__dict__.items() if name not in ("origins", "inputs")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, origins={}, inputs=WeakIdKeyDictionary())


class _Evaluation(NamedTuple):
    """A further evaluation of a forward.

    Attributes:
        tape: Its graph.
        results: Its output, and the gradients if they were asked for.
        same_draws: Whether it drew the same random numbers as the forward.
        written: The buffers that it changed, with their new values.

    """

    tape: Tape
    results: Streams
    same_draws: bool
    written: Buffers


class BlockInspection:
    """The inspection of one block.

    Args:
        whole: Inspection of the pipeline.
        stage: The block.
        index: Number of the stage that the block belongs to.
        weights: Weights of the block.
        stream: Source of the stage's random numbers.

    Attributes:
        index: Number of the stage that the block belongs to.
        parameters: Parameters of the block.
        projections: Projections of the function's output in the last forward; empty if that was not inspected.

    """

    def __init__(
        self, whole: Inspection, stage: Stage, index: int, weights: BlockWeights, stream: RandomStream
    ) -> None:
        self.index = index
        self.parameters = list(stage.parameters())
        self._whole, self._stage, self._function, self._device = whole, stage, stage.function, stream.device
        self._recomputes = not weights.keeps_graph
        self._weights, self._stream = weights, stream
        self._buffers = FrozenBuffers(self._function, tracking=True)
        self._forwards = self._backwards = 0
        self._reads: _Reads | None = None  # of the first evaluation
        self._created: set[StorageWeakRef] = set()  # storages that are new in the inspected evaluation
        self._drew: set[str] = set()  # generators from which the first evaluation drew
        self.projections: Projections = ()

    @property
    def done(self) -> bool:
        """Return whether enough micro-batches have been inspected."""
        return not self.evaluates and self._backwards >= INSPECTED

    @property
    def evaluates(self) -> bool:
        """Return whether forwards are still evaluated a second time."""
        return self._forwards < INSPECTED

    @property
    def _autocast(self) -> torch.dtype | None:
        """Return the dtype of mixed precision in the block; None for none."""
        return autocast_dtype(self._device, self._whole.autocast)

    @property
    def _compiled(self) -> bool:
        """Return whether torch.compile compiles a module of the block. A torch function mode would recompile it."""
        modules = self._stage.modules()
        return any(module._compiled_call_impl is not None or hasattr(module, "_orig_mod") for module in modules)

    def _tolerance(self, dtype: torch.dtype) -> float:
        """Return the allowed relative difference of two evaluations at the same input."""
        # Some kernels (attention, LSTM) round differently with a graph than without.
        rounding = ROUNDING * torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
        if self._autocast is not None:
            return max(rounding, TOLERANCE_AUTOCAST)
        exact = self._device.type == "cpu" or torch.are_deterministic_algorithms_enabled()
        return rounding if exact else max(rounding, TOLERANCE)

    @contextlib.contextmanager
    def watch_forward(self, inputs: Streams) -> Iterator[None]:
        """Return a context for a forward that detects reads of other blocks' tensors, or writes to input or weights."""
        self.projections = ()
        reads = _Reads(self._whole, self, inputs)
        with (
            self._watch_writes(inputs) if self.evaluates else contextlib.nullcontext(),
            contextlib.nullcontext() if self._compiled else reads,  # also later: another stage's tensors may come late
        ):
            yield
        self._whole.origins |= dict.fromkeys(reads.made, self)
        self._created = reads.created if self.evaluates else set()
        self._reads = reads if self._recomputes and self.evaluates else None  # else a copy could have weak references
        if self._weights.replaces:
            for weight in reads.aliased:
                self._report_unreplaced(weight)
        for origin, name in reads.foreign.items():
            what = f"reads in {name} a tensor of stage {origin.index} that did not arrive as a stream"
            remedy = "a tensor kept in an attribute, a list or a closure belongs to another micro-batch by then: "
            remedy += f"return it from stage {origin.index} as one more stream and pass it on"
            self._report(what, remedy)

    @contextlib.contextmanager
    def _watch_writes(self, inputs: Streams) -> Iterator[None]:
        """Return a context for a forward that detects writes to input or weights, and notes its output and draws."""
        weights = dict(self._stage.named_parameters()) if self._recomputes or self._weights.replaces else {}
        given, before = _projections(inputs), {name: _projections(weight) for name, weight in weights.items()}
        generators = Generators(self._function)
        outputs: list[Any] = []
        with self._function_outputs(outputs):
            yield
        self.projections = _projections(outputs)
        self._drew = generators.moved()
        for stream in inputs:  # those that no block has computed, such as copies of outputs
            self._whole.origins.setdefault(storage_reference(stream), self)
        if str(given) != str(_projections(inputs)):  # as text, so that nan equals nan
            what = "writes to its input (through .data, numpy or a view that autograd does not know)"
            remedy = "other stages still need it: use the out-of-place form of the operation, or clone the input first"
            self._report(what, remedy)
        for name, weight in weights.items():
            if str(before[name]) != str(_projections(weight)):
                remedy = "evaluations for backwards or with stashed weights repeat or lose the write: make it a buffer "
                remedy += "that this forward does not read, or write it in before_update"
                self._report("is written in the forward", remedy, parameter=name)

    @contextlib.contextmanager
    def _function_outputs(self, outputs: list[Any]) -> Iterator[None]:
        """Add the results of the block's function to a list in a context, unless a module is compiled."""
        if not self._recomputes or self._compiled or isinstance(self._function, torch.jit.ScriptModule):
            yield
            return
        with self._function.register_forward_hook(lambda _module, _inputs, output: outputs.append(output)):
            yield

    @contextlib.contextmanager
    def compare_backward(self, before: Projections, *, reconstructs: bool) -> Iterator[None]:
        """Return a context for the evaluation in a backward that compares its output with that of the forward.

        Args:
            before: `projections` of the forward.
            reconstructs: Whether the input is reconstructed, with rounding errors.

        """
        outputs: list[Any] = []
        with self._function_outputs(outputs):
            yield
        now = _projections(outputs)
        if len(before) != len(now):
            return
        for (dtype, length, one), (_, _, other) in zip(before, now, strict=True):
            if not dtype.is_floating_point:
                continue
            allowed = self._tolerance(dtype)
            if reconstructs:
                exact = RECONSTRUCTED.get(dtype, 0.0)
                allowed = max(allowed, exact if self._autocast is None else RECONSTRUCTED_ROUGHLY)
            difference = abs(one - other) / (length or 1.0)
            if difference > allowed:  # false for nan, for which `NonFiniteError` is raised later
                what = "gives another output in its backward than in its forward, with the same weights (relative "
                what += f"difference {difference:.1g}, allowed {allowed:.1g}), so it depends on something that has "
                what += "changed since then, such as a value in an attribute, a list or a closure"
                self._report(what, f"{PURE}; pass what another stage needs to it as a stream")

    def inspect_forward(
        self, inputs: Streams, outputs: Streams, tape: Tape | None, replacing: StageWeights | None
    ) -> None:
        """Inspect a forward: compare it with a second evaluation, and check that its graph begins at the own leaves.

        Attributes and generators are restored after a second evaluation.

        Args:
            inputs: Input of the block.
            outputs: Output of the block.
            tape: Graph of the forward; None if the backward evaluates the block again, which is then done now.
            replacing: Weights that replaced the parameters, by name; None for the parameters.

        """
        if tape is None and self._weights.replaces:
            replacing = replacing or self._weights.leaves()
        weights = self._weights.trained if replacing is None else replacing
        tape = self._compare(inputs, outputs, replacing) if tape is None else tape
        self._forwards += 1
        for leaf in tape.leaves:
            self._whole.inputs[leaf] = self
        own = {id(tensor) for tensor in (*weights.values(), *tape.leaves)}
        # A module may detach its input, create a tensor, or make a parameter of a frozen weight, and differentiate with
        # respect to that. No other block has this leaf, and a plain loop does not train it either, nor a buffer.
        frozen = (parameter for parameter in self.parameters if not parameter.requires_grad)
        inner = {_storage(tensor) for tensor in (*inputs, *self._function.buffers(), *frozen)} | self._created
        self._created = set()  # a copy of this object could not have weak references
        for leaf in _leaves(tape.roots()):
            if id(leaf) not in own and (_storage(leaf) not in inner or leaf in self._whole.inputs):
                self._report_leaf(leaf)

    def _evaluate(
        self, inputs: Streams, replacing: StageWeights | None, *, enable_grad: bool = True, differentiate: bool = False
    ) -> _Evaluation:
        """Evaluate the block again, with the random numbers of the last forward and without writes to buffers.

        Args:
            inputs: Input of the block.
            replacing: Weights that replace the parameters, by name; None for the parameters.
            enable_grad: Whether to record a graph.
            differentiate: Whether the results include gradients.

        """
        end = self._stream.state or capture(self._device)
        before = self._buffers.copies()
        with (
            mixed_precision(self._device, self._autocast),
            self._weights.replace(replacing),
            torch.set_grad_enabled(enable_grad),
            refuse_input_writes(self._function, inputs),
            self._buffers.freeze(),
            replay(self._stream.drawn or end, self._device),
        ):
            tape = self._stage.record(inputs)
            results, same_draws = tape.outputs, not differ(end, capture(self._device))
            written = self._buffers.changed(before)
            if differentiate:
                leaves = [*(self._weights.trained if replacing is None else replacing).values()]
                grad_inputs, grads = tape.gradients(tuple(map(pattern_like, results)), leaves)
                results += tuple(grad for grad in (*grad_inputs, *grads) if grad is not None)
                for leaf in leaves:
                    leaf.grad = None  # of a backward that calls `backward`
        return _Evaluation(tape, results, same_draws, written)

    def _compare(self, inputs: Streams, outputs: Streams, replacing: StageWeights | None) -> Tape:
        """Evaluate the block a second time, compare the evaluation with the first, and return its tape.

        Args:
            inputs: Input of the block.
            outputs: Output of the first evaluation.
            replacing: Weights that replaced the parameters, by name; None for the parameters.

        """
        evaluate = functools.partial(self._evaluate, inputs, replacing)
        # A module may count its evaluations if outputs and gradients do not depend on the count. If an attribute or a
        # buffer has changed, two further evaluations therefore run with the earlier and a later value; that of a number
        # is far ahead.
        generators, attributes = Generators(self._function), attributes_of(self._function, _PLAIN)
        kept = {place: _projections(value) for place, value in attributes_of(self._function, _CONTAINERS).items()}
        if isinstance(self._stage, ReversibleStage):  # a replaced `combine` may overwrite a message
            attributes[self._stage, "combine"] = self._stage.combine
            self._stage.combine = combine_streams
        reads = _Reads(self._whole, self, inputs)
        try:
            with contextlib.nullcontext() if self._compiled else reads:
                tape, results, same_draws, written = evaluate()
            # These replace the tensors that the first evaluation kept.
            self._whole.origins |= dict.fromkeys(reads.made, self)
            self._created = reads.created
            for generator in sorted(generators.moved() & self._drew):  # first, since other findings may follow from it
                self._report(f"draws random numbers from {generator}", PURE)
            now = attributes_of(self._function, _PLAIN)
            changed = {place: value for place, value in now.items() if attributes.get(place) != value}
            far = {place: _far(attributes.get(place), value) for place, value in changed.items()}
            for (module, key), value in written.items():
                before = dict(module._buffers.items()).get(key)  # torch.jit has no get()
                if before is not None and not isinstance(module, _NormBase):
                    attributes[module, key], single = before, value.numel() == before.numel() == 1
                    far[module, key] = torch.full_like(value, _far(before.item(), value.item())) if single else value
            difference = self._describe(outputs, results, len(outputs))
            self._report_growing(kept)
            self._report_reads(reads)
            earlier = {place: attributes[place] for place in far.keys() & attributes.keys()}
            if self._forwards == INSPECTED - 1 and [*self._function.buffers()]:
                set_attributes(earlier)
                self._report_modes(written.keys(), evaluate(enable_grad=False).written.keys())
            if far and difference is None:
                set_attributes(earlier)
                results = evaluate(differentiate=True).results
                set_attributes(far)
                difference = "an evaluation fails"  # for example because a counter exceeds a list
                with contextlib.suppress(Exception):
                    difference = self._describe(results, evaluate(differentiate=True).results, len(outputs))
        finally:
            set_attributes(attributes)
            generators.restore()
        if not same_draws:
            what = "draws another number of random numbers when it is evaluated again, or another thread draws from "
            what += "torch's global generator meanwhile"
            self._report(what, f"{PURE}; give a thread that draws random numbers a private generator")
        elif difference is not None:
            names = {id(module): name for name, module in self._function.named_modules()}
            counters = ", ".join(f"{key} of {names[id(m)] or 'its module'} ({type(m).__name__})" for m, key in far)
            what = "gives another output when it is evaluated again with the same input, weights and random state "
            what += f"({difference})" + (f"; an evaluation changes {counters}" if counters else "")
            self._report(what, PURE)
        return tape

    def _report_reads(self, again: "_Reads") -> None:
        """Report private generators and cached results, of which a second evaluation draws or reads something else."""
        first, self._reads = self._reads, None
        assert first is not None  # `watch_forward` has set it
        if first.generators != again.generators:
            self._report("draws random numbers from a private torch.Generator", PURE)
        for name, parameter in self._stage.named_parameters():
            if parameter.requires_grad and _storage(parameter) in first.weights - again.weights:
                what = "is read by the first of two equal evaluations only, so the second one, for a backward, reads a "
                what += "result that the first kept without a graph, and the parameter would not be trained"
                self._report(what, "keep no results of parameters between evaluations", parameter=name)

    def _report_growing(self, kept: Mapping[tuple[nn.Module, str], Projections]) -> None:
        """Report tensors in attributes that another evaluation with the same input has changed.

        These include buffers, of which it changes only copies, unless the function refers to them in another way.
        """
        for (module, key), value in attributes_of(self._function, _CONTAINERS).items():
            pairs = zip(kept.get((module, key), ()), _projections(value), strict=False)
            if not any(abs(now - old) > self._tolerance(dtype) * length for (dtype, length, old), (*_, now) in pairs):
                continue
            kind = type(module).__name__
            what = f"changes the tensor {key!r} of a {kind} in every evaluation, which is not a buffer"
            remedy = "register it with register_buffer: such an evaluation changes only copies of buffers"
            if key == "_buffers":
                what = f"writes a buffer of a {kind} through another reference to it (a closure, a list)"
                remedy = "access it as an attribute of its module: such an evaluation replaces buffers there by copies"
            self._report(f"{what}, so the evaluation for a backward would change it a second time", remedy)

    def _report_modes(self, with_gradients: Set[tuple[nn.Module, str]], without: Set[tuple[nn.Module, str]]) -> None:
        """Report buffers that only one of two evaluations, with gradients and without, has changed."""
        for module, key in with_gradients ^ without:
            when = "with" if (module, key) in with_gradients else "without"
            what = f"changes the buffer {key!r} of a {type(module).__name__} only {when} gradients, but forwards of "
            what += "this method run without, and evaluations for a backward, which run with them, change no buffers"
            remedy = "ask for self.training in place of torch.is_grad_enabled(), or choose a method that keeps graphs"
            self._report(what, f"{remedy}, such as BACKPROPAGATION or DELAYED_GRADIENTS")

    def _describe(self, results: Streams, again: Streams, streams: int) -> str | None:
        """Describe the difference between two evaluations' streams and gradients; None if they are equal."""
        for number, (first, second) in enumerate(zip(results, again, strict=False)):
            tolerance = self._tolerance(first.dtype.to_real())
            difference = _difference(first, second)
            if difference > tolerance:
                place = f"stream {number}" if number < streams else "a gradient"
                return f"relative difference {difference:.1g} of {place}, allowed {tolerance:.1g}"
        return None if len(results) == len(again) else f"{len(results)} tensors, then {len(again)}"

    def check_gradients(self, parameters: Iterable[str], gradients: Sequence[Tensor | None]) -> None:
        """Check the gradients of one backward.

        Args:
            parameters: Names of the parameters.
            gradients: Their gradients.

        """
        self._backwards += 1
        for name, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None and gradient.layout is not torch.strided:
                remedy = "gradients are accumulated as dense tensors: leave out sparse=True"
                self._report(f"has a gradient of layout {gradient.layout}", remedy, parameter=name)
        if self.done:
            self._whole.origins = {key: origin for key, origin in self._whole.origins.items() if origin is not self}

    def _report_leaf(self, leaf: Tensor) -> None:
        owner, receiver = self._whole.owners.get(leaf), self._whole.inputs.get(leaf)
        if receiver is not None:
            what = f"depends on the input of stage {receiver.index} through a tensor that did not arrive as a stream"
            remedy = f"tensors pass between stages only as streams: pass it on from stage {receiver.index} as one more"
            self._report(what, remedy)
        elif owner is not None and owner[0] == self.index:
            self._report_unreplaced(leaf)
        elif owner is not None:
            what = f"depends on parameter {owner[1]} of stage {owner[0]} through a tensor that is not a stream"
            remedy = f"return it from stage {owner[0]} as one more stream, and use each parameter in one stage"
            self._report(what, remedy)
        else:
            what = f"depends on a tensor of shape {tuple(leaf.shape)} that requires a gradient and is not among its "
            what += f"parameters ({_place_of(leaf, self._stage)}), so it would never be trained"
            remedy = "register it (attribute, ModuleList, ParameterList, or a loss that is a module), or detach() it"
            self._report(what, remedy)

    def _report_unreplaced(self, parameter: Tensor) -> None:
        what = "is read past the module that it is registered in (a list, a closure, .data or another reference to it)"
        remedy = "copies (of `check`) and replaced weights miss it: read it in a method, as an attribute of its module"
        self._report(what, remedy, parameter=self._whole.owners[parameter][1])

    def _report(self, what: str, remedy: str, *, parameter: str | None = None) -> None:
        subject = "" if parameter is not None else f"{type(self._function).__name__} "
        finding = Finding(self.index, parameter, subject + what, remedy)
        if self._whole.findings is None:
            raise StageError(finding)
        if finding not in self._whole.findings:
            self._whole.findings.append(finding)


class _Reads(TorchFunctionMode):
    """A recorder of the tensors that an evaluation reads and that another block has computed.

    Only tensors that depend on an input or on a parameter count as computed. A mask that one block caches for all
    blocks is a constant.

    Attributes:
        foreign: Blocks whose tensors were read, each with the name of the first operation that read one.
        made: Storages of the tensors that the evaluation has computed.
        created: Storages of all tensors that operations of the evaluation have returned, except for those they read.
        generators: States of generators other than the global ones, before the operations that had them as arguments.
        weights: Storages of the block's parameters from which an operation has computed a tensor.
        aliased: Trained parameters whose memory was read through a tensor that the evaluation has not made of them.

    """

    def __init__(self, whole: Inspection, block: BlockInspection, inputs: Streams) -> None:
        super().__init__()
        self.foreign: dict[BlockInspection, str] = {}
        self.made: set[StorageWeakRef] = set()
        self.created: set[StorageWeakRef] = set()
        self.generators: list[bytes] = []
        self.weights: set[StorageWeakRef | None] = set()
        self.aliased: set[Tensor] = set()
        self._whole, self._block = whole, block
        self._given = {storage_reference(stream) for stream in inputs}
        self._weights = {_storage(parameter): parameter for parameter in block.parameters}
        self._views: dict[int, Tensor] = {}  # of parameters, made in this evaluation; by identifier

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():  # torch.compile inlines this method, and could not compile the rest of it
            return func(*args, **kwargs)
        shared = (torch.default_generator, *torch.cuda.default_generators)
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Generator)]
        self.generators += [g.get_state().numpy().tobytes() for g in given if g not in shared]
        computed, read = False, set()
        for tensor in _tensors(_values_read(func, args, kwargs)):
            storage = _storage(tensor)
            computed = computed or tensor.requires_grad or storage in self._given or storage in self.made
            read.add(storage)
            weight = self._weights.get(storage)
            if weight is not None and weight.requires_grad > tensor.requires_grad and id(tensor) not in self._views:
                self.aliased.add(weight)
            if storage is None or storage in self._given or storage in self.made:
                continue
            origin = self._whole.origins.get(storage)
            if origin is not None and origin is not self._block:
                self.foreign.setdefault(origin, getattr(func, "__name__", str(func)))
        result = func(*args, **kwargs)
        returned = [(_storage(tensor), tensor) for tensor in _tensors(result)]
        results = {id(tensor): (storage, tensor) for storage, tensor in returned if storage is not None}
        self.created |= {storage for storage, _ in results.values()} - read
        self._views |= {key: tensor for key, (storage, tensor) in results.items() if storage in self._weights}
        if computed:
            self.weights |= read & self._weights.keys() if results else set()
            self.made |= {storage for storage, _ in results.values()} - self._weights.keys() - self._given
        return result


def _values_read(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the arguments whose values an operation reads. Of the others it reads dtype, device or shape only."""
    name = getattr(func, "__name__", "")
    if name.startswith("new_") or name.endswith("_like"):
        return ()
    return args[:1] if name in ("to", "type_as", "expand_as", "view_as", "reshape_as") else (args, kwargs)


class Generators:
    """The states of the generators that the replay of random numbers (`petra_core.randomness`) does not restore."""

    def __init__(self, function: nn.Module) -> None:
        private = attributes_of(function, _GENERATORS).items()
        named: list[tuple[str, Any]] = [("Python's random", random), ("numpy.random", np.random)]
        named += [(f"its private generator {key}", generator) for (_, key), generator in private]
        accesses = [(name, *_access(generator)) for name, generator in named]
        self._all = [(name, read, write, read()) for name, read, write in accesses]

    def moved(self) -> set[str]:
        """Return the names of the generators whose states have changed."""
        return {name for name, read, _, before in self._all if pickle.dumps(before) != pickle.dumps(read())}

    def restore(self) -> None:
        """Restore the states of all generators."""
        for _, _, write, before in self._all:
            write(before)


def _access(generator: Any) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Return functions that read and write the state of a generator, or of the one of a module."""
    if hasattr(generator, "getstate"):
        return generator.getstate, generator.setstate
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        return lambda: bits.state, functools.partial(setattr, bits, "state")
    return generator.get_state, generator.set_state


def _far(before: Any, now: Any) -> Any:
    """Return a value far ahead in the direction in which a number changes. Other values are returned unchanged."""
    numbers = isinstance(before, int | float) and isinstance(now, int | float) and not isinstance(now, bool)
    return now + FAR * (now - before) if numbers else now


@torch.no_grad()
def _projections(tree: Any) -> Projections:
    """Return the dtype, norm and projection of each tensor in nested containers.

    The projections of two tensors differ by about as much as the tensors. Infinite elements count as 1 or -1.
    """
    return tuple(_project(tensor.detach()) for tensor in _tensors(tree) if tensor.layout is torch.strided)


def _project(tensor: Tensor) -> tuple[torch.dtype, float, float]:
    values = (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).reshape(-1).double()
    values = values.nan_to_num(nan=math.nan, posinf=1.0, neginf=-1.0)
    return tensor.dtype.to_real(), float(values.norm()), float(values @ pattern_like(values))


def pattern_like(tensor: Tensor) -> Tensor:
    """Return numbers in double precision that are the same in every call."""
    return torch.arange(tensor.numel(), dtype=torch.float64, device=tensor.device).mul_(1.7).cos_().view(tensor.shape)


def _tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    items = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return [tensor for item in items for tensor in _tensors(item)]


def _storage(tensor: Tensor) -> StorageWeakRef | None:
    try:
        return storage_reference(tensor)
    except (NotImplementedError, RuntimeError):  # sparse tensors and tensors of torch.func have no storage
        return None


@torch.no_grad()
def _difference(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of two tensors relative to the largest magnitude."""
    if one.shape != other.shape or one.dtype is not other.dtype:
        return math.inf
    one, other = one.detach(), other.detach()
    unequal = (one != other) & ~(one.isnan() & other.isnan())
    if not unequal.any():
        return 0.0
    if not (one.is_floating_point() or one.is_complex()):
        return 1.0
    scale = float(one.abs().nan_to_num(0, 0, 0).max())
    deviation = float((one - other).abs().nan_to_num(math.inf)[unequal].max())
    return deviation / (scale or 1.0)


def _leaves(roots: Sequence[Node]) -> list[Tensor]:
    """Return the leaves of a graph."""
    nodes = dict.fromkeys(roots)  # in the order in which they are found
    stack = list(nodes)
    while stack:
        below = [node for node, _ in stack.pop().next_functions if node is not None and node not in nodes]
        nodes |= dict.fromkeys(below)
        stack += below
    variables = (getattr(node, "variable", None) for node in nodes)
    return [variable for variable in variables if isinstance(variable, Tensor)]


def _place_of(leaf: Tensor, stage: Stage) -> str:
    """Describe the attribute that contains a tensor which is not a parameter."""
    places = (
        f"attribute {key} of {name or type(module).__name__}"
        for name, module in stage.named_modules()
        for key, value in vars(module).items()
        if key not in ("_parameters", "_buffers", "_modules") and _contains(value, leaf)
    )
    return next(places, "a closure, a global variable or another object")


def _contains(value: Any, leaf: Tensor) -> bool:
    """Return whether a value, or a container or module in it, contains a tensor."""
    if isinstance(value, nn.Module):
        value = list(value.parameters())
    if isinstance(value, dict):
        value = list(value.values())
    return value is leaf or (isinstance(value, list | tuple) and any(_contains(item, leaf) for item in value))
