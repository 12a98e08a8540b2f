"""Blocks of a stage, and the data that each keeps of a micro-batch from its forward to its backward.

The data depends on the method and on whether the block can be inverted:

    method keeps graphs                the graph (`Tape`), and the input streams from which a resume records it again
    method reconstructs, invertible    nothing, or extra tensors that the inversion needs (`Stage.inversion_state`)
    otherwise                          the input streams that the recomputation needs

The entries form a first-in, first-out queue. A step has at most one forward and one backward, so the oldest entry is
always the next to be used. `petra_core.weights` selects the weights of a forward and of a backward.
"""

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from petra_core.buffers import Attributes, BufferCopies, FrozenBuffers, attributes_of, earlier_attributes
from petra_core.inspection.evaluations import BlockInspection, Inspection, Projections
from petra_core.inspection.guards import BackwardWatch, refuse_foreign_gradients, refuse_input_writes
from petra_core.inspection.ownership import INSPECTED, OwnedTensors
from petra_core.inspection.structure import Structure
from petra_core.ledger import Ledger, SavedTensors, payload
from petra_core.randomness import RandomState, RandomStream, prepare_state, replay
from petra_core.settings import Settings
from petra_core.stages import HeadStage, Stage
from petra_core.staleness import Kind
from petra_core.tape import (
    Gradients,
    Streams,
    Tape,
    as_streams,
    as_value,
    autocast_dtype,
    call_hooks,
    detach,
    mixed_precision,
)
from petra_core.targets import Target
from petra_core.update_rule import StageRules
from petra_core.weights import BlockWeights, StageWeights, WeightVersion


@dataclass
class _InFlight:
    """The data that a block keeps of one micro-batch between its forward and its backward.

    Attributes:
        micro_batch: Number of the micro-batch.
        version: Version of the weights of the forward.
        kept: Tensors from `Stage.inversion_state` if the input will be reconstructed, otherwise from `Stage.keep`.
        random: State of the generators at the beginning of the forward; None if it drew no random numbers.
        tape: The graph; None until it is recorded.
        weights: Weights on which the graph is recorded, by name; None for the parameters of the module.
        buffers: Copies of buffers with which the graph was recorded; None if it was recorded with the module's buffers.
        projections: Projections of the function's output; empty if the forward was not inspected.
        autocast: Dtype of automatic mixed precision in the forward; None for none.
        before: Copies of the buffers from before the forward, if a resume records the graph again; None otherwise.
        attributes: Attributes of the modules after the graph was recorded, if its backward may read them.

    """

    micro_batch: int
    version: WeightVersion
    kept: Streams
    random: RandomState | None
    tape: Tape | None = None
    weights: StageWeights | None = None
    buffers: BufferCopies | None = None
    projections: Projections = ()
    autocast: torch.dtype | None = None
    before: BufferCopies | None = None
    attributes: Attributes = field(default_factory=dict)

    @property
    def held(self) -> int:
        """The bytes of the tensors that are kept, without graph and weights."""
        copies = () if self.before is None else self.before.values()
        return payload((*self.kept, *(copy for copy in copies if copy is not None)))


#: Function that returns tensors with the same contents in other memory. Its arguments are the name of a queue, a place
#: in it (0 for the oldest entry, which is used next), the kind of the action that removes the oldest entry, and the
#: tensors of the entry.
Move = Callable[[str, int, Kind, Streams], Streams]


class Block:
    """A block of a stage, with one `_InFlight` for every micro-batch between forward and backward.

    Args:
        stage: The block; its `parts()` is itself.
        settings: Settings of the pipeline. The method determines the data to keep and the weights of the backward.
        ledger: Ledger of the stage that the block belongs to.
        device: Device of the block's parameters.
        rules: Rules for delay of the stage.
        sums: Sums of the gradients since the last update of the stage, by parameter.
        stream: Source of the stage's random numbers.
        index: Number of the stage that the block belongs to.
        inspection: Inspection of the pipeline's first micro-batches; None for no inspection.

    Attributes:
        weights: The block's weights and their versions.
        structure: The block's parameters when the pipeline was made.
        frozen: The block's buffers, which a reconstruction does not change.
        graph_bytes: Bytes of one graph, equal for all micro-batches of the same shapes; None before one is measured.
        watched_backwards: Number of backwards that `BackwardWatch` still watches: the first ones with new shapes, and
            all if one evaluates the function, as torch.utils.checkpoint does.

    """

    def __init__(
        self,
        stage: Stage,
        settings: Settings,
        ledger: Ledger,
        device: torch.device,
        rules: StageRules,
        sums: dict[Tensor, Tensor],
        stream: RandomStream,
        *,
        index: int = 0,
        inspection: Inspection | None = None,
    ) -> None:
        method = settings.method
        self.stage, self._index, self._is_head = stage, index, isinstance(stage, HeadStage)
        self.reconstructs = method.reconstructs and stage.invertible
        self.weights = BlockWeights(stage, settings, rules, ledger)
        self._kept_as = "side_bits" if self.reconstructs else "inputs"
        self.parameters = list(self.weights.trained.values())
        self._sums, self._stream, self._rules = sums, stream, rules
        self.structure = Structure(stage, index)
        if self.weights.replaces:
            self.structure.check_replaceable()
        self._memory: deque[_InFlight] = deque()
        self.frozen = FrozenBuffers(stage.function)
        self._scratch = FrozenBuffers(stage.function, tracking=True)
        # A resume records kept graphs again, with the buffers of their forwards if forwards write any.
        self._resume_records = method.keeps_graph and method.pipelined and not self._is_head
        self._writes_buffers = False  # whether the last forward with no other micro-batch in flight wrote buffers
        self.watched_backwards: float = INSPECTED
        self._sets_attributes = False  # whether a kept graph was differentiated after a later forward set attributes
        # A coupling returns a whole input stream.
        self._owned_outputs = OwnedTensors(stage, may_pass=stage.invertible)
        self._owned_messages = OwnedTensors(stage)
        self._owned_gradients = OwnedTensors(stage, may_pass=False)
        self._inspected: BlockInspection | None = None
        if inspection is not None:
            self._inspected = BlockInspection(inspection, stage, index, self.weights, stream)
        self.graph_bytes: int | None = None
        self._ledger, self._device, self._autocast = ledger, device, settings.autocast

    @torch.no_grad()
    def forward(self, micro_batch: int, inputs: Streams, target: Target, version: WeightVersion) -> Streams:
        """Evaluate the block, and keep the data that the method needs for the backward.

        Args:
            micro_batch: Number of the micro-batch.
            inputs: Input of the block.
            target: Target of the loss, at the head.
            version: Version of the weights: the current one, the one before (double-buffered), or a prediction.

        Returns:
            The output of the block.

        Raises:
            ValueError: If the block wrote to its input in place.
            StageError: If the inspection found a problem, or other code wrote weights that a micro-batch in flight
                needs.

        """
        self._check_before_forward()
        kept = self.stage.inversion_state(inputs) if self.reconstructs else detach(self.stage.keep(inputs))
        first = not self._memory
        before = self.frozen.copies() if self._resume_records and (first or self._writes_buffers) else None
        weights = self.weights.select_for_forward(version)
        predicted = weights if version.ahead else None
        if self.weights.keeps_graph and weights is None:
            weights = self.weights.select_for_graph(version)
        tape: Tape | None = None
        inspected = self._inspected
        watched = contextlib.nullcontext() if inspected is None else inspected.watch_forward(inputs)
        with self._stream, watched:
            if self.weights.keeps_graph:
                tape = self._record(inputs, target, weights)
                outputs = tape.outputs
            else:
                outputs = detach(self.evaluate(inputs, weights))
        if before is not None and first:
            self._writes_buffers = bool(self.frozen.changed(before))
        if inspected is not None and inspected.evaluates:
            inspected.inspect_forward(inputs, outputs, tape, weights)
        self.structure.check_modes(in_flight=False)  # a forward may set modes
        outputs = self._owned_outputs(outputs, inputs)
        entry = _InFlight(micro_batch, version, kept, self._stream.drawn)
        entry.projections = () if inspected is None else inspected.projections
        entry.autocast = autocast_dtype(self._device, self._autocast)
        entry.before = before if self._writes_buffers else None  # otherwise they are constants, such as masks
        if tape is not None:
            entry.tape, entry.weights = tape, weights
            if self.watched_backwards or self._sets_attributes:
                entry.attributes = attributes_of(self.stage.function)
            if not self._is_head:
                tape.forget()
        self._ledger.add(self._kept_as, entry.held)
        entry.version = self.weights.keep_prediction(version, predicted)
        self._memory.append(entry)
        return outputs

    def _check_before_forward(self) -> None:
        """Raise StageError if parameters, weights or modes are not those that micro-batches in flight need."""
        if not self._memory:
            if self.weights.keeps and self.structure.written():
                self.weights.adopt_written()
            self.mark_weights()
        elif self.weights.keeps:
            self.structure.check_unwritten()
        if self._inspected is not None:
            self.structure.check()
        if not self.weights.keeps_graph:
            self.structure.check_modes(in_flight=bool(self._memory))

    def _record(self, inputs: Streams, target: Target, weights: StageWeights | None) -> Tape:
        """Evaluate the block with the graph that its backward differentiates."""
        with (
            self._precision(),
            self.weights.replace(weights),
            torch.enable_grad(),
            refuse_input_writes(self.stage.function, inputs),
            self._counting_graph(*inputs, *(weights or {}).values()),
        ):
            stage = self.stage
            tape = stage.record_loss(inputs, target) if isinstance(stage, HeadStage) else stage.record(inputs)
        refuse_foreign_gradients(self._index, weights or {})
        return tape

    def evaluate(self, inputs: Streams, weights: StageWeights | None = None) -> Streams:
        """Evaluate the block without keeping anything, with the current weights or with `weights`.

        Raises:
            ValueError: If the block wrote to its input in place.

        """
        with self._precision(), self.weights.replace(weights), refuse_input_writes(self.stage.function, inputs):
            return as_streams(self.stage(as_value(inputs)))

    @property
    def in_flight(self) -> int:
        """Number of micro-batches between forward and backward."""
        return len(self._memory)

    def delay(self, version: int) -> int:
        """Return the number of updates since the forward of the oldest entry, if `version` updates have been made."""
        return version - self._memory[0].version.number

    def reconstruct(self, outputs: Streams = (), delay: int = 0) -> Streams:
        """Record the graph of the oldest entry if it has none, by inverting `outputs` or from the kept streams.

        Args:
            outputs: Output of the block, if it is inverted.
            delay: Updates since the entry's forward, for a rule that gives the backward other weights.

        Returns:
            The block's input; empty if only a part of it was kept.

        """
        entry = self._memory[0]
        if entry.tape is not None:
            return entry.tape.inputs
        entry.weights = self.weights.select_for_backward(entry.version, delay)
        compared: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        same_weights = delay == 0 and entry.weights is None
        if self._inspected is not None and entry.projections and same_weights and not self.structure.written():
            compared = self._inspected.compare_backward(entry.projections, reconstructs=self.reconstructs)
        with (
            compared,
            mixed_precision(self._device, entry.autocast),
            torch.enable_grad(),
            self.frozen.freeze(entry.before) as copies,
            replay(entry.random, self._device),
            self._counting_graph(*outputs, *entry.kept, *(entry.weights or {}).values()),
        ):
            if self.reconstructs:
                entry.tape = self._invert(outputs, entry)
            else:
                with self.weights.replace(entry.weights):
                    entry.tape = self.stage.recompute(entry.kept)
                entry.tape.outputs = ()  # already sent; the graph keeps what it needs
            entry.buffers = copies
        return entry.tape.inputs

    @property
    def draws(self) -> bool:
        """Return whether the forward of the oldest entry drew random numbers, which its `reconstruct` draws again."""
        return self._memory[0].random is not None

    @torch.no_grad()  # as autograd does it: a custom function may return a gradient that requires a gradient
    def backward(
        self, micro_batch: int, grad_outputs: Streams, *, input_gradient: bool, collected: dict[Tensor, Tensor] | None
    ) -> tuple[Streams, Streams]:
        """Backpropagate through the oldest entry, accumulate its gradients and release it.

        Args:
            micro_batch: Number of the oldest entry's micro-batch.
            grad_outputs: Gradient with respect to each output stream.
            input_gradient: Whether to compute the gradient of the input.
            collected: Dictionary that receives each parameter's gradient of this micro-batch.

        Returns:
            The block's input for the stage below to invert (empty if only a part of it was kept) and the gradient with
            respect to it (empty without `input_gradient`).

        """
        entry = self._memory.popleft()
        assert entry.micro_batch == micro_batch
        assert entry.tape is not None
        differentiate = self._differentiate_with_care if self.watched_backwards else self._differentiate
        grad_inputs, gradients = differentiate(entry, grad_outputs, input_gradient)
        if entry.weights is not None:
            gradients = tuple(map(_apply_hooks, self.parameters, gradients))
        if self._inspected is not None:
            self._inspected.check_gradients(self.weights.trained, gradients)
            if self._inspected.done:
                self._inspected = None
        if collected is not None:
            collected |= {p: g for p, g in zip(self.parameters, gradients, strict=True) if g is not None}
        gradients = self.weights.correct(entry.version, gradients)
        grad_inputs = self._owned_messages(grad_inputs, grad_outputs)
        inputs = entry.tape.inputs
        others = (*grad_outputs, *grad_inputs, *inputs, *entry.kept, *self._rules.buffers)
        self._accumulate(self._owned_gradients(gradients, others))
        self._ledger.add("graph", -(self.graph_bytes or 0))
        self._ledger.add(self._kept_as, -entry.held)
        self.weights.release(entry.version, entry.weights, (other.version for other in self._memory))
        return inputs, grad_inputs

    def _differentiate(self, entry: _InFlight, grad_outputs: Streams, input_gradient: bool) -> Gradients:
        """Differentiate an entry's graph, with the weights and buffers with which it was recorded in their places.

        A backward may also read attributes that the forward of its micro-batch has set, such as a seed. It may call
        `backward` (as the reversible blocks of RevTorch and memcnn do), which adds to the `.grad` of leaves. The result
        includes these gradients.
        """
        assert entry.tape is not None
        leaves = self.parameters if entry.weights is None else list(entry.weights.values())
        with (
            mixed_precision(self._device, None),
            self.weights.replace(entry.weights),
            earlier_attributes(entry.attributes) as changed,  # before `freeze`, which sets some too
            contextlib.nullcontext() if entry.buffers is None else self.frozen.freeze(entry.buffers),
        ):
            self._sets_attributes = self._sets_attributes or bool(changed)
            grad_inputs, gradients = entry.tape.gradients(grad_outputs, leaves, input_gradient=input_gradient)
        inner = [leaf.grad for leaf in leaves]
        for leaf in leaves:
            leaf.grad = None
        return grad_inputs, tuple(map(_add, gradients, inner))

    def _differentiate_with_care(self, entry: _InFlight, grad_outputs: Streams, input_gradient: bool) -> Gradients:
        """Differentiate a graph whose backward evaluates the function again, or may do so.

        Such an evaluation draws from the stage's random stream and does not change buffers.
        """
        with (
            self._stream,
            self._scratch.freeze() if entry.buffers is None else contextlib.nullcontext(),
            BackwardWatch() as watch,  # type: ignore[no-untyped-call]  # torch gives it no types
        ):
            gradients = self._differentiate(entry, grad_outputs, input_gradient)
        is_special = watch.evaluates or self._stream.drawn is not None
        self.watched_backwards = math.inf if is_special else self.watched_backwards - 1
        return gradients

    @property
    def has_backward_hooks(self) -> bool:
        """Return whether a module has hooks that autograd calls only with a gradient of its input."""
        return any(module._backward_hooks or module._backward_pre_hooks for module in self.stage.function.modules())

    def mark_weights(self) -> None:
        """Note that the current weights are those of the engine, if writes of other code will be looked for."""
        if self.weights.keeps or self._inspected is not None:
            self.structure.mark(values=self._inspected is not None)

    def retire_weights(self, version: int) -> None:
        """Prepare for the update that ends `version`: stash the weights if a backward will need them."""
        self.weights.retire(version, [entry.version for entry in self._memory])

    def move_held(self, queue: str, move: Move) -> None:
        """Move the tensors that are kept of each micro-batch to other memory, except graphs and weights."""
        for place, entry in enumerate(self._memory):
            entry.kept = move(queue, place, Kind.BACKWARD, entry.kept)

    def state_dict(self) -> dict[str, Any]:
        """Return the memory and the stashed weights. Graphs are not saved; loading records them again."""
        return {
            "memory": [
                {
                    "micro_batch": e.micro_batch,
                    "version": e.version.number,
                    "kept": e.kept,
                    "random": e.random,
                    **({} if e.autocast is self._autocast else {"autocast": str(e.autocast).removeprefix("torch.")}),
                    **({"buffers": list(e.before.values())} if e.before else {}),
                    **self.weights.prediction(e.version),
                }
                for e in self._memory
            ],
            "weights": self.weights.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], *, steps: int = 0, updates: int = 0) -> None:
        """Restore a state of `state_dict`. The weights of the module must have been loaded before.

        Args:
            state: The state.
            steps: Number of steps by which micro-batches have later numbers than in the state.
            updates: Number of updates by which versions have later numbers than in the state.

        """
        self.weights.load_state_dict(state["weights"], state["memory"])
        self.structure.check_modes(in_flight=False)
        self._memory = deque()
        for e in state["memory"]:
            kept = tuple(tensor.to(self._device) for tensor in e["kept"])
            random = None if e["random"] is None else prepare_state(e["random"], self._device)
            version = WeightVersion(e["version"] + updates, tuple(e.get("ahead", ())))
            entry = _InFlight(e["micro_batch"] + steps, version, kept, random)
            entry.autocast = getattr(torch, e["autocast"]) if "autocast" in e else self._autocast
            if "buffers" in e:
                self._writes_buffers = True
                values = (None if value is None else value.to(self._device) for value in e["buffers"])
                entry.before = dict(zip(self.frozen.copies(), values, strict=True))
            self._memory.append(entry)
        if self.weights.keeps_graph:
            for _ in range(len(self._memory)):
                self.reconstruct()  # records the oldest entry; the rotation makes the next one the oldest
                tape = self._memory[0].tape
                assert tape is not None
                tape.forget()
                self._memory[0].attributes = attributes_of(self.stage.function)
                self._memory.rotate(-1)
        self._ledger.add(self._kept_as, sum(entry.held for entry in self._memory))

    def _invert(self, outputs: Streams, entry: _InFlight) -> Tape:
        """Invert the block. One evaluation also records the graph, unless the graph has stashed weights."""
        if entry.weights is None or not self.weights.stashes:
            with self.weights.replace(entry.weights):
                return self.stage.reconstruct(outputs, entry.kept)
        with torch.no_grad(), replay(entry.random, self._device):
            inputs = self.stage.reconstruct(outputs, entry.kept).inputs
        with self.weights.replace(entry.weights):
            tape = self.stage.recompute(self.stage.keep(inputs))
        tape.inputs = inputs
        return tape

    def _accumulate(self, gradients: Sequence[Tensor | None]) -> None:
        """Add gradients to the sums. The first one becomes the sum, to which later ones are added in place."""
        sums: list[Tensor] = []
        terms: list[Tensor] = []
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            if gradient is None:
                continue
            if parameter in self._sums:
                sums.append(self._sums[parameter])
                terms.append(gradient)
            else:
                # A hook of the parameter may keep the gradient.
                self._sums[parameter] = gradient.clone() if parameter._backward_hooks else gradient
                self._ledger.add("gradients", payload([gradient]))
        if sums:
            torch._foreach_add_(sums, terms)

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        """Return the autocast context of a forward: that of the settings, or the caller's."""
        return mixed_precision(self._device, autocast_dtype(self._device, self._autocast))

    @contextlib.contextmanager
    def _counting_graph(self, *inputs: Tensor) -> Iterator[None]:
        """Add the bytes of the graph that is recorded in a context to the ledger. Measure them if they are unknown."""
        if self.graph_bytes is None:
            function = self.stage.function
            own = (*inputs, *function.parameters(), *function.buffers(), *self.weights.stashed)
            with SavedTensors(own) as measured:
                yield
            self.graph_bytes = measured.bytes
        else:
            yield
        self._ledger.add("graph", self.graph_bytes)


def _add(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Return the sum of two gradients, each of which may be absent."""
    if one is None or other is None:
        return other if one is None else one
    return one + other


def _apply_hooks(parameter: Tensor, gradient: Tensor | None) -> Tensor | None:
    """Return the gradient after the hooks of the parameter, which autograd does not call for a substitute leaf."""
    return None if gradient is None else call_hooks([*(parameter._backward_hooks or {}).values()], gradient)
