"""A block of a stage and its memory: what is kept of every micro-batch between its forward and its backward.

What that is depends on the method and on whether the block can be inverted:

    method keeps graphs                the graph (`Tape`), and of the input what a resume needs to record it again
    method reconstructs, invertible    nothing, or a side of the input that the inversion needs (`Stage.side`)
    otherwise                          of the input what the recomputation needs

The memory is first in, first out: with one forward and one backward a step, the oldest entry is always the next to be
used.

Stashed weights. A graph, or a reconstruction to come, may need the weights of its forward although updates have
happened since. The obvious way, a copy at every forward, holds one copy too many and copies even if nothing will
change. Here the forward uses the current weights, and only an update that would overwrite weights still needed moves
the parameters to new storage first (`retire_weights`); the old storage becomes the stash. So a stage with a staleness
of s micro-batches holds ceil(s / k) copies besides the current weights, the number in Table 1 and Table 3 of the paper.
Predicted weights belong to no version; where the backward needs them again, they are kept with the micro-batch.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from petra_core.buffers import FrozenBuffers
from petra_core.environment import BackwardWatch, StageWeights, Weights, precision
from petra_core.inspection import BlockInspection, Inspection, Projections, Structure
from petra_core.ledger import Ledger, SavedTensors, payload, storage_of
from petra_core.ownership import OwnedOutputs
from petra_core.randomness import RandomState, RandomStream, capture, differ, loaded, replay
from petra_core.schedule import Kind
from petra_core.settings import Settings
from petra_core.stages import HeadStage, Stage
from petra_core.tape import Streams, Tape, as_streams, as_value, detached, fills_its_storage
from petra_core.targets import Target
from petra_core.update_rule import StageRules

#: Backwards of a block that are watched for evaluations.
WATCHED_BACKWARDS = 3


@dataclass
class _Entry:
    """What a part keeps of one micro-batch."""

    micro_batch: int
    version: int  # of the weights of the forward
    kept: Streams  # of the input, by `Stage.keep`, or by `Stage.side` if the input will be reconstructed
    random: RandomState | None  # where the forward's random numbers began, if it drew any
    tape: Tape | None = None
    weights: StageWeights | None = None  # that the graph is of, where they are not the module's own
    buffers: Sequence[Tensor] | None = None  # copies that it was recorded with; None: the module's own
    ahead: tuple[float, ...] = ()  # how the forward's weights were predicted (`Ahead.how`)
    predicted: StageWeights | None = None  # those weights, where they will be needed again
    projections: Projections = ()  # of the function's output, where the forward was inspected


@dataclass(frozen=True)
class Held:
    """Tensors that a stage holds from one step to the next, in a queue whose oldest entry is used next.

    Attributes:
        queue: which one of the stage.
        place: in the queue; 0 for the oldest.
        user: kind of the action that removes the oldest entry.
        tensors: what is held.
        exchange: replaces them, by tensors with the same contents in other memory.

    """

    queue: str
    place: int
    user: Kind
    tensors: Streams
    exchange: Callable[[Streams], None]


class Ahead(NamedTuple):
    """A forward with weights of the future.

    Attributes:
        how: the number of updates and their learning rates; alike, they give one version's weights the same future.
        predict: the weights then from those now, by name; None if nothing is known that would change them.

    """

    how: tuple[float, ...]
    predict: Callable[[Mapping[str, Tensor]], dict[str, Tensor] | None]


class Part:
    """A block of a stage, with one `_Entry` for every micro-batch between forward and backward.

    Args:
        stage: the block; its `parts()` is itself.
        settings: of the pipeline; its method says what is kept, and which weights the backward uses.
        ledger: account of the stage that the block belongs to.
        device: where the block's parameters are.
        rules: of the stage, for delay.
        index: number of the stage that the block belongs to.
        inspection: of the pipeline, for the first micro-batches; None for no inspection.

    Attributes:
        frozen: keeps the block's buffers as they are while a reconstruction is evaluated.

    """

    def __init__(
        self,
        stage: Stage,
        settings: Settings,
        ledger: Ledger,
        device: torch.device,
        rules: StageRules,
        *,
        index: int = 0,
        inspection: Inspection | None = None,
    ) -> None:
        method, is_head = settings.method, isinstance(stage, HeadStage)
        self.stage = stage
        self.keeps_tape = method.keeps_graph or is_head  # the head's backward follows its forward within the step
        self.reconstructs = method.reconstructs and stage.invertible
        self._kept_as = "side_bits" if self.reconstructs else "inputs"
        self._double_buffered = method.double_buffered
        self._stashes_weights = method.stashes_weights and (self._double_buffered or not is_head)
        self._keeps_weights = self._stashes_weights or rules.corrects
        replaces_weights = self._stashes_weights or rules.predicts or rules.replaces
        self._rules = rules
        self._weights = Weights(stage.function)
        self._trainable = self._weights.trained
        self.parameters = list(self._trainable.values())
        for parameter in self.parameters:
            parameter.grad = None  # of something before: it would be part of the first update
        self._structure = Structure(stage, index)
        if replaces_weights:
            self._structure.check_replaceable()
        # The sums of gradients that are in `.grad`, each with its version; None: an update begins.
        self._sums: list[tuple[Tensor | None, int]] | None = None
        self._memory: deque[_Entry] = deque()
        # Stashed weights: those of versions before the current one.
        self._versions: dict[int, Mapping[str, Tensor]] = {}
        # The current weights once more, as leaves on the same storage that no optimizer knows. Kept graphs are
        # recorded on these: an update gives the parameters other storage before such a graph is differentiated.
        self._current: Mapping[str, Tensor] | None = None
        self.frozen = FrozenBuffers(stage.function)
        self._scratch = FrozenBuffers(stage.function, tracking=True)
        self._watched_backwards = WATCHED_BACKWARDS  # how many are still to be watched
        self._evaluates_again = False  # whether a backward evaluates, as torch.utils.checkpoint does
        self._owned = OwnedOutputs(stage)
        self._inspected: BlockInspection | None = None
        if inspection is not None:
            recomputes = not self.keeps_tape
            self._inspected = inspection.block(stage, index, device, recomputes=recomputes, replaces=replaces_weights)
        self._graph_bytes: int | None = None  # of one tape; the same for all micro-batches of these shapes
        self._ledger = ledger
        self._device = device
        self._autocast = settings.autocast

    def forward(
        self,
        micro_batch: int,
        inputs: Streams,
        target: Target,
        version: int,
        stream: RandomStream,
        ahead: Ahead | None = None,
    ) -> Streams:
        """Evaluate, and keep what the method keeps.

        Args:
            micro_batch: its number.
            inputs: of the block.
            target: of the loss, at the head.
            version: of the weights: the current ones or, double-buffered, those before.
            stream: of random numbers.
            ahead: predicts the weights to evaluate with from the current ones, if they are to be predicted.

        Raises:
            ValueError: the block wrote to its input in place.
            StageError: an inspection has found something.

        """
        inspected = self._inspected
        if inspected is not None:
            self._structure.check()
        kept = self.stage.side(inputs) if self.reconstructs else detached(self.stage.keep(inputs))
        self._ledger.add(self._kept_as, payload(kept))
        tape: Tape | None = None
        predicted = None if ahead is None else self._predicted(version, ahead)
        weights = (predicted or self._weights_of(version)) if self.keeps_tape else None
        with stream, contextlib.nullcontext() if inspected is None else inspected.evaluation(inputs):
            if self.keeps_tape:
                with (
                    self._precision(),
                    self._weights.replaced(weights),
                    torch.enable_grad(),
                    self._unwritten(inputs),
                    self._measuring(*inputs, *(predicted or {}).values()),
                ):
                    tape = self._record(inputs, target)
                assert tape.outputs is not None
                outputs = tape.outputs
                self._ledger.add("graph", self._graph_bytes or 0)
                if not isinstance(self.stage, HeadStage):
                    tape.forget()
            else:
                with torch.no_grad():
                    outputs = detached(self.evaluate(inputs, predicted))
        if inspected is not None and inspected.evaluates:
            self._inspect(inspected, inputs, outputs, stream, tape, weights or predicted)
        outputs = self._owned(outputs, inputs)
        entry = _Entry(micro_batch, version, kept, stream.drawn, tape, weights)
        if inspected is not None:
            entry.projections = inspected.projections
        if predicted is not None and ahead is not None and self._keeps_weights:
            self._keep_predicted(entry, ahead.how, predicted)
        elif predicted is not None:
            copies = payload(predicted.values())
            self._ledger.add("stashed_weights", copies)  # until here
            self._ledger.add("stashed_weights", -copies)
        self._memory.append(entry)
        return outputs

    def evaluate(self, inputs: Streams, weights: StageWeights | None = None) -> Streams:
        """Evaluate the block with the current weights, or with others by name; nothing is kept.

        Raises:
            ValueError: the block wrote to its input in place.

        """
        with self._precision(), self._weights.replaced(weights), self._unwritten(inputs):
            return as_streams(self.stage(as_value(inputs)))

    def _inspect(
        self,
        inspected: BlockInspection,
        inputs: Streams,
        outputs: Streams,
        stream: RandomStream,
        tape: Tape | None,
        weights: StageWeights | None,
    ) -> None:
        """Inspect a forward; if the block will be evaluated again, do that now and compare."""
        if tape is None:
            end = stream.state or capture(self._device)
            begin = stream.drawn or capture(self._device)
            if inspected.replaces:
                weights = weights or self._leaves()

            def again() -> tuple[Tape, bool]:
                with (
                    self._precision(),
                    self._weights.replaced(weights),
                    torch.enable_grad(),
                    self.frozen,
                    replay(begin, self._device),
                ):
                    tape = self.stage.record(inputs)
                    return tape, not differ(begin if stream.drawn is None else end, capture(self._device))

            tape = inspected.compare(inputs, outputs, again)
        inspected.walk(tape, inputs, self._trainable if weights is None else weights)

    @contextlib.contextmanager
    def _unwritten(self, inputs: Streams) -> Iterator[None]:
        """Raise ValueError if what is evaluated inside writes to its input in place."""
        writes = [None if tensor.is_inference() else tensor._version for tensor in inputs]
        reason: RuntimeError | None = None
        try:
            yield
        except RuntimeError as error:
            if "a leaf Variable that requires grad" not in str(error):  # autograd's own refusal, where there is a graph
                if "does not require grad" in str(error) and not torch.is_grad_enabled():
                    error.add_note(
                        "the forwards of this method run without gradients: a module that differentiates in its "
                        "forward (torch.autograd.grad) has to do so inside `with torch.enable_grad():`"
                    )
                raise
            reason = error
        now = [None if tensor.is_inference() else tensor._version for tensor in inputs]
        if reason is not None or now != writes:
            raise ValueError(
                f"{type(self.stage.function).__name__} wrote to its input in place, but other stages still need it; "
                f"use the out-of-place form of its first operation, for example nn.ReLU(inplace=False)"
            ) from reason

    def delay(self, version: int) -> int:
        """Updates since the forward of the oldest entry, when the weights are of number `version`."""
        return version - self._memory[0].version

    def reconstruct(self, outputs: Streams | None, delay: int = 0) -> Streams | None:
        """Give the oldest entry its graph, if it has none: by inversion of `outputs`, or from what was kept.

        Args:
            outputs: the part's output, if it is to be inverted.
            delay: updates since the entry's forward, for a rule that gives the backward other weights.

        Returns:
            The part's input, as `backward` does.

        """
        entry = self._memory[0]
        if entry.tape is not None:
            return entry.tape.inputs
        if self._stashes_weights:
            entry.weights = entry.predicted or self._weights_of(entry.version)
        elif self._rules.replaces:
            with torch.no_grad():
                entry.weights = self._rules.backward_weights(self._trainable, delay)
            self._ledger.add("stashed_weights", payload((entry.weights or {}).values()))
        compared: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self._inspected is not None and entry.projections and delay == 0 and entry.weights is None:
            compared = self._inspected.evaluation_of_backward(entry.projections, reconstructs=self.reconstructs)
        with (
            compared,
            self._precision(),
            torch.enable_grad(),
            self.frozen,
            replay(entry.random, self._device),
            self._measuring(*(outputs or ()), *entry.kept, *(entry.weights or {}).values()),
        ):
            if self.reconstructs:
                assert outputs is not None  # the pipeline asks the stage above to hand its input down
                entry.tape = self._invert(outputs, entry)
            else:
                with self._weights.replaced(entry.weights):
                    entry.tape = self.stage.retrace(entry.kept)
                entry.tape.outputs = None  # sent long ago; what the graph needs of them, the graph holds
            entry.buffers = self.frozen.copies
        self._ledger.add("graph", self._graph_bytes or 0)
        return entry.tape.inputs

    @property
    def draws(self) -> bool:
        """Whether the forward of the oldest entry drew random numbers, so that its `reconstruct` will too."""
        return self._memory[0].random is not None

    def backward(
        self,
        micro_batch: int,
        grad_outputs: Streams,
        *,
        input_gradient: bool,
        gradients_by_parameter: dict[Tensor, Tensor] | None = None,
        stream: RandomStream | None = None,
    ) -> tuple[Streams | None, Streams | None]:
        """Differentiate the oldest entry's graph, add to the gradients and let the entry go.

        Args:
            micro_batch: whose entry is the oldest.
            grad_outputs: gradient with respect to each output stream.
            input_gradient: whether that of the input is wanted.
            gradients_by_parameter: receives each parameter's gradient of this micro-batch, if given.
            stream: of the random numbers that a backward draws.

        Returns:
            The part's input for the stage below to invert (None if only some streams of it were kept, when nobody needs
            it) and the gradient with respect to it (None if not wanted).

        Raises:
            StageError: parameters were frozen, unfrozen, added or replaced since the pipeline was made.
            RuntimeError: something else has written gradients of the parameters.

        """
        if self._sums is None:
            self._structure.check()
        entry = self._memory.popleft()
        assert entry.micro_batch == micro_batch
        assert entry.tape is not None
        if self._evaluates_again or self._watched_backwards:
            grad_inputs, gradients = self._differentiated_with_care(entry, grad_outputs, input_gradient, stream)
        else:
            leaves = self.parameters if entry.weights is None else list(entry.weights.values())
            with self._as_recorded(entry):
                grad_inputs, gradients = entry.tape.gradients(grad_outputs, leaves, input_gradient=input_gradient)
        if entry.weights is not None:
            gradients = tuple(map(_hooked, self.parameters, gradients))
        if self._inspected is not None:
            self._inspected.differentiated(self._trainable, gradients)
            if self._inspected.done:
                self._inspected = None
        if gradients_by_parameter is not None:
            gradients_by_parameter |= {p: g for p, g in zip(self.parameters, gradients, strict=True) if g is not None}
        if self._rules.corrects:
            gradients = self._corrected(entry, gradients)
        self._accumulate(gradients, (*grad_outputs, *(grad_inputs or ())))
        inputs = entry.tape.inputs
        self._ledger.add("graph", -(self._graph_bytes or 0))
        self._ledger.add(self._kept_as, -payload(entry.kept))
        self._let_weights_go(entry)
        return inputs, grad_inputs

    def _as_recorded(self, entry: _Entry) -> contextlib.AbstractContextManager[None]:
        """Context with the weights and buffers with which an entry's graph was recorded."""
        if entry.weights is None and (entry.buffers is None or not (entry.buffers or self.frozen.has_norms)):
            return contextlib.nullcontext()
        return self._in_its_environment(entry)

    @contextlib.contextmanager
    def _in_its_environment(self, entry: _Entry) -> Iterator[None]:
        recorded_late = entry.buffers is not None
        with (
            self._weights.replaced(entry.weights),
            self.frozen.again(entry.buffers or ()) if recorded_late else contextlib.nullcontext(),
        ):
            yield

    def _differentiated_with_care(
        self, entry: _Entry, grad_outputs: Streams, input_gradient: bool, stream: RandomStream | None
    ) -> tuple[Streams | None, tuple[Tensor | None, ...]]:
        """Differentiate a graph that evaluates again while that is done, or may do so.

        What is evaluated draws from the stage's random stream, leaves buffers as they are, and may call `backward`
        itself (as the reversible blocks of RevTorch and memcnn do), which adds to the `.grad` of leaves.
        """
        assert entry.tape is not None
        leaves = self.parameters if entry.weights is None else list(entry.weights.values())
        sums = [leaf.grad for leaf in leaves]
        for leaf in leaves:
            leaf.grad = None
        with (
            contextlib.nullcontext() if stream is None else stream,
            self._in_its_environment(entry),
            self._scratch if entry.buffers is None else contextlib.nullcontext(),
            torch.no_grad(),  # so that what runs with gradients is what evaluates, not the engine
            BackwardWatch() as watch,
        ):
            grad_inputs, gradients = entry.tape.gradients(grad_outputs, leaves, input_gradient=input_gradient)
        added = [leaf.grad for leaf in leaves]
        for leaf, gradient in zip(leaves, sums, strict=True):
            leaf.grad = gradient
        self._watched_backwards = max(self._watched_backwards - 1, 0)
        self._evaluates_again = self._evaluates_again or watch.evaluates
        return grad_inputs, tuple(map(_sum, gradients, added))

    def forget_shapes(self) -> None:
        """Measure the next graph, whose micro-batch may have other shapes; nothing is in the memory."""
        self._graph_bytes = None

    def retire_weights(self, version: int) -> None:
        """Before the update that ends `version`: stash the weights if a backward to come will need them.

        They stay where they are, and the parameters move to new storage, which the optimizer then overwrites. So
        weights are copied once an update and not once a forward.
        """
        self._sums = None
        needed = any(entry.version == version and entry.predicted is None for entry in self._memory)
        if self._double_buffered:  # by forwards to come; of those with the weights before, the last backward is done
            self._drop(version - 1)
            needed = True
        if self._keeps_weights and needed:
            self._versions[version] = self._current or self._leaves()
            for parameter in self.parameters:
                parameter.data = parameter.data.clone()
            self._ledger.add("stashed_weights", payload(self.parameters))
        self._current = None

    def held(self, queue: str) -> Iterator[Held]:
        """Yield what is kept of each micro-batch, but for graphs and weights."""
        for place, entry in enumerate(self._memory):
            yield Held(queue, place, Kind.BACKWARD, entry.kept, partial(setattr, entry, "kept"))

    def snapshot(self) -> Callable[[int, int], None]:
        """Return a function that puts the entries of now back, with later numbers.

        It takes the numbers of steps and of updates since now. For methods that keep no graphs and stash no weights.
        """
        entries = [replace(entry) for entry in self._memory]

        def restore(steps: int, updates: int) -> None:
            self._memory = deque(
                replace(entry, micro_batch=entry.micro_batch + steps, version=entry.version + updates)
                for entry in entries
            )
            self.adopt_gradients()

        return restore

    def state_dict(self) -> dict[str, Any]:
        """Memory and stashed weights; graphs are not saved but retraced on loading."""
        return {
            "memory": [
                {
                    "micro_batch": e.micro_batch,
                    "version": e.version,
                    "kept": e.kept,
                    "random": e.random,
                    **({} if e.predicted is None else {"ahead": e.ahead, "predicted": dict(e.predicted)}),
                }
                for e in self._memory
            ],
            "weights": {version: dict(weights) for version, weights in self._versions.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave; the module's own weights must have been loaded before."""
        self._versions = {version: self._placed(weights) for version, weights in state["weights"].items()}
        self._current = None
        self.adopt_gradients()
        self._memory = deque()
        for e in state["memory"]:
            kept = tuple(tensor.to(self._device) for tensor in e["kept"])
            random = None if e["random"] is None else loaded(e["random"], self._device)
            entry = _Entry(e["micro_batch"], e["version"], kept, random)
            if "predicted" in e:
                self._keep_predicted(entry, tuple(e["ahead"]), self._placed(e["predicted"]))
            self._memory.append(entry)
        if self.keeps_tape:
            for _ in range(len(self._memory)):
                self.reconstruct(None)  # the oldest; then the next oldest, until the first is the oldest again
                tape = self._memory[0].tape
                assert tape is not None
                tape.forget()
                self._memory.rotate(-1)
        self._ledger.add(self._kept_as, sum(payload(entry.kept) for entry in self._memory))
        self._ledger.add("stashed_weights", sum(payload(weights.values()) for weights in self._versions.values()))

    def _record(self, inputs: Streams, target: Target) -> Tape:
        if isinstance(self.stage, HeadStage):
            return self.stage.record_loss(inputs, target)
        return self.stage.record(inputs)

    def _invert(self, outputs: Streams, entry: _Entry) -> Tape:
        """Invert by the evaluation that is the graph; if that has stashed weights, by one with the current ones."""
        if entry.weights is None or not self._stashes_weights:
            with self._weights.replaced(entry.weights):
                return self.stage.reconstruct(outputs, entry.kept)
        with torch.no_grad(), replay(entry.random, self._device):
            inputs = self.stage.reconstruct(outputs, entry.kept).inputs
        assert inputs is not None
        with self._weights.replaced(entry.weights):
            tape = self.stage.retrace(self.stage.keep(inputs))
        tape.inputs = inputs
        return tape

    def _weights_of(self, version: int) -> Mapping[str, Tensor] | None:
        """Weights for a graph of this version, in place of the module's own.

        The stash, if there was an update since; leaves on the current storage, if the graph is kept beyond the next
        update; None, if the module's own parameters will do.
        """
        if not self._stashes_weights:
            return None
        if version in self._versions:
            return self._versions[version]
        if self.keeps_tape:
            # The graph must stay differentiable after the module's parameters have moved on.
            self._current = self._current or self._leaves()
            return self._current
        return None

    def weights_of_forward(self, version: int, ahead: Ahead | None) -> StageWeights | None:
        """The weights that a forward would use, in place of the module's own (see `forward`)."""
        return self._versions.get(version) if ahead is None else self._predicted(version, ahead)

    def _predicted(self, version: int, ahead: Ahead) -> StageWeights | None:
        """The weights of a forward; those of the micro-batch before, if they are kept and were predicted alike."""
        with torch.no_grad():
            return self._shared(version, ahead.how) or ahead.predict(self._trainable)

    def _keep_predicted(self, entry: _Entry, how: tuple[float, ...], weights: StageWeights) -> None:
        """Keep the weights of a forward with its entry, the next to come; neighbours share what is alike."""
        shared = self._shared(entry.version, how)
        entry.ahead, entry.predicted = how, shared or weights
        if shared is None:
            self._ledger.add("stashed_weights", payload(weights.values()))

    def _shared(self, version: int, how: tuple[float, ...]) -> StageWeights | None:
        last = self._memory[-1] if self._memory else None
        return last.predicted if last is not None and (last.version, last.ahead) == (version, how) else None

    def _corrected(self, entry: _Entry, gradients: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """Return the corrected gradients of a micro-batch whose forward had other weights than the current ones."""
        weights = self._versions.get(entry.version) if entry.predicted is None else entry.predicted
        if weights is None:
            return tuple(gradients)
        with torch.no_grad():
            return tuple(
                None if gradient is None else self._rules.gradient(parameter, gradient, weights[name])
                for (name, parameter), gradient in zip(self._trainable.items(), gradients, strict=True)
            )

    def _let_weights_go(self, entry: _Entry) -> None:
        """Drop what only this entry, which has left the memory, needed of other weights than the current."""
        if self._rules.replaces:
            self._ledger.add("stashed_weights", -payload((entry.weights or {}).values()))
        if entry.predicted is not None:
            if not self._memory or self._memory[0].predicted is not entry.predicted:
                self._ledger.add("stashed_weights", -payload(entry.predicted.values()))
        elif not self._double_buffered and all(later.version != entry.version for later in self._memory):
            self._drop(entry.version)

    def _drop(self, version: int) -> None:
        if version in self._versions:
            self._ledger.add("stashed_weights", -payload(self._versions.pop(version).values()))

    def _placed(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.to(self._device).requires_grad_() for name, tensor in weights.items()}

    def _leaves(self) -> dict[str, Tensor]:
        """Graph leaves on the parameters' storage, with version counters of their own.

        `.data`, not `.detach()`: the counter must not be shared with the parameter, whose later in-place updates
        (of other storage) would otherwise count as writes to the leaf.
        """
        return {name: parameter.data.requires_grad_() for name, parameter in self._trainable.items()}

    def _accumulate(self, gradients: Sequence[Tensor | None], messages: Streams) -> None:
        # A gradient may share its storage with a message (the gradient of a bias of full shape is the message itself)
        # or with another gradient, or be a view: of more, or of one number expanded. `.grad` is written in place later,
        # so it gets a copy then.
        taken = {storage_of(tensor) for tensor in messages}
        self._refuse_foreign_gradients()
        sums: list[Tensor] = []
        terms: list[Tensor] = []
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            if gradient is None:
                continue
            if parameter.grad is not None:
                sums.append(parameter.grad)
                terms.append(gradient)
                continue
            storage = storage_of(gradient)
            is_its_own = fills_its_storage(gradient) and storage not in taken
            parameter.grad = gradient if is_its_own else gradient.clone()
            taken.add(storage)
            self._ledger.add("gradients", payload([gradient]))
        if sums:
            torch._foreach_add_(sums, terms)
        self._note_sums()

    def adopt_gradients(self) -> None:
        """Take the gradients in `.grad` for the sums of the update that is under way; none: an update begins."""
        self._note_sums()
        if all(parameter.grad is None for parameter in self.parameters):
            self._sums = None

    def _note_sums(self) -> None:
        self._sums = [(p.grad, 0 if p.grad is None else p.grad._version) for p in self.parameters]

    def _refuse_foreign_gradients(self) -> None:
        """Raise RuntimeError if anything else has written to the sums of gradients, or taken them away."""
        gradients = [parameter.grad for parameter in self.parameters]
        if self._sums is None:
            foreign = [gradient is not None for gradient in gradients]
        else:
            foreign = [
                held is not gradient
                if held is None or gradient is None
                else held is gradient and version != held._version
                for gradient, (held, version) in zip(gradients, self._sums, strict=True)
            ]
        if any(foreign):
            raise self._structure.foreign_gradient(list(self._trainable)[foreign.index(True)])

    def _measuring(self, *inputs: Tensor) -> contextlib.AbstractContextManager[None]:
        """Measure the bytes of the graph that is recorded inside, the first time."""
        return contextlib.nullcontext() if self._graph_bytes is not None else self._measured(inputs)

    @contextlib.contextmanager
    def _measured(self, inputs: Streams) -> Iterator[None]:
        stashed = [tensor for weights in self._versions.values() for tensor in weights.values()]
        accounted = [*inputs, *self.stage.function.parameters(), *self.stage.function.buffers(), *stashed]
        with SavedTensors(accounted) as saved:
            yield
        self._graph_bytes = saved.bytes

    def _precision(self) -> contextlib.AbstractContextManager[object]:
        return precision(self._device, self._autocast)


def _hooked(parameter: Tensor, gradient: Tensor | None) -> Tensor | None:
    """The gradient as the parameter's hooks leave it; autograd calls those of the leaf that it differentiates for."""
    if gradient is not None and parameter._backward_hooks:
        for hook in tuple(parameter._backward_hooks.values()):
            changed = hook(gradient)
            gradient = gradient if changed is None else changed
    return gradient


def _sum(gradient: Tensor | None, added: Tensor | None) -> Tensor | None:
    if gradient is None or added is None:
        return added if gradient is None else gradient
    return gradient + added
