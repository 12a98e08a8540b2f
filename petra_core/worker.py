"""Workers, each of which owns one stage: its actions, and all state that a resume needs.

A worker has no access to other stages. It takes messages from its inboxes and returns messages to send; the pipeline
delivers messages and decides when. Results therefore cannot depend on timing. They are a function of the order of the
worker's actions and of the contents of the messages.

A stage may consist of several blocks (`petra_core.stages.merge`). A backward processes them one at a time, from the
last to the first, so that only one block's graph exists at a time:

    F   x ──▶ [part 0] ──▶ [part 1] ──▶ y           every part keeps the data that its backward needs
    R                      [part 1] ◀── y'          record the graph of the last part, from the returned output
    B   x', dx ◀── [part 0] ◀── [part 1] ◀── dy     differentiate a part; record the graph of the next from its input

A prime marks reconstructed values: y' differs from y only by rounding and by the updates since the forward.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from petra_core.block import Block, Move
from petra_core.clipping import Clip
from petra_core.inspection.evaluations import Inspection
from petra_core.inspection.guards import refuse_foreign_gradients
from petra_core.inspection.modules import check_optimizer
from petra_core.inspection.states import load_optimizer
from petra_core.ledger import IN_FLIGHT, Ledger, payload
from petra_core.messages import Message
from petra_core.optimizers import OptimizerFactory, optimizer_of, rate_ratios
from petra_core.randomness import RandomStream, replay
from petra_core.settings import Settings
from petra_core.stages import HeadStage, Stage
from petra_core.staleness import Kind
from petra_core.tape import Streams, compact, mixed_precision
from petra_core.targets import Keys, unflatten
from petra_core.update_rule import StageRules
from petra_core.weights import WeightVersion

BeforeUpdate = Callable[[int, int, Stage], None]


@dataclass(frozen=True)
class Backward:
    """One backward of one stage, passed to `Pipeline(after_backward=...)`.

    The tensors belong to the engine. Read them during the call, and copy them for later use.

    Attributes:
        stage: Number of the stage, j.
        micro_batch: Number of the micro-batch, m.
        inputs: Input of the stage in the backward, reconstructed or kept; None if only part of it was kept.
        gradients: Gradients of this micro-batch, before the mean over k, by name as in `stage.named_parameters()`.
            Parameters that are frozen or that the graph does not reach are left out.

    """

    stage: int
    micro_batch: int
    inputs: Streams | None
    gradients: Mapping[str, Tensor]


AfterBackward = Callable[[Backward], None]


def devices_of(stages: Sequence[Stage]) -> list[torch.device]:
    """Return the device of each stage's tensors. A stage without tensors has the device of the nearest one below."""
    own = [next((tensor.device for tensor in (*stage.parameters(), *stage.buffers())), None) for stage in stages]
    first = next((device for device in own if device is not None), torch.device("cpu"))
    return list(accumulate(own, lambda below, device: device or below, initial=first))[1:]


class Worker:
    """The owner of a stage's weights, optimizer, kept inputs, messages in flight, random state and counters.

    Args:
        stage: The stage.
        index: Number of the stage, j.
        device: Device of the stage (`devices_of`).
        settings: Settings of the pipeline.
        optimizer: Factory of the stage's optimizer; None leaves the weights unchanged.
        return_input: Whether the stage below reconstructs, so that the worker must send it this stage's input.
        before_update: Function that is called as (index, version, stage) when `.grad` holds the mean gradient.
        after_backward: Function that is called with every backward of the stage.
        clip: Clipping by the norm of the stage's gradients; None for none.
        inspection: Inspection of the pipeline's first micro-batches; None for no inspection.

    Attributes:
        parameters: The trained parameters.
        gradients: Sums of the gradients since the last update, by parameter. `.grad` is None until the update.
        rules: Delay rules of the stage (`StageRules`). Its `step` calls the optimizer if no rule overrides it.
        stream: Source of the stage's random numbers.
        version: Number of updates so far.

    """

    def __init__(
        self,
        stage: Stage,
        index: int,
        device: torch.device,
        settings: Settings,
        optimizer: OptimizerFactory | None = None,
        *,
        return_input: bool = False,
        before_update: BeforeUpdate | None = None,
        after_backward: AfterBackward | None = None,
        clip: Clip | None = None,
        inspection: Inspection | None = None,
    ) -> None:
        self.stage, self.index, self.device = stage, index, device
        self.ledger = Ledger(index)
        self.is_head = isinstance(stage.parts()[-1], HeadStage)
        self.parameters = [p for part in stage.parts() for p in part.function.parameters() if p.requires_grad]
        names = {parameter: name for name, parameter in stage.named_parameters()}
        self._named = {names[parameter]: parameter for parameter in self.parameters}
        for parameter in self.parameters:
            parameter.grad = None  # a gradient from earlier use
        self.gradients: dict[Tensor, Tensor] = {}
        self.optimizer: torch.optim.Optimizer | None = None
        self.rate_ratios: list[float] = []  # of the optimizer's parameter groups
        if optimizer is not None and self.parameters:
            self.optimizer = optimizer_of(optimizer, index, [*self._named.items()])
            check_optimizer(self.optimizer, index, self.parameters)
            self.rate_ratios = rate_ratios(self.optimizer)
        # The head's backward follows its forward immediately, so it has no delay, except with double-buffering, which
        # delays all stages by one update.
        method = settings.method
        delayed = method.double_buffered or not self.is_head
        self.rules = StageRules(settings.delay if delayed else (), self.optimizer)
        self.stream = RandomStream(device, settings.seed, index)
        shared = (settings, self.ledger, device, self.rules, self.gradients, self.stream)
        self.parts = [Block(part, *shared, index=index, inspection=inspection) for part in stage.parts()]
        self.version = 0
        self.from_below: deque[Message] = deque()
        self.from_above: deque[Message] = deque()
        self.targets: deque[Message] = deque()  # of micro-batches before their forward, at the head
        self.observed_staleness = 0  # `Pipeline.observed_staleness`
        self._target_keys: Keys = None  # of the targets
        self._method, self._accumulation = method, settings.accumulation
        self._delays = 0  # updates between forward and backward, summed over the backwards since the last update
        self._states = 0  # number of parameters for which the optimizer has a state
        self.return_input, self.clip = return_input, clip
        self.before_update, self.after_backward = before_update, after_backward
        self.ledger.set("parameters", payload(stage.parameters()))
        self.ledger.set("buffers", payload(stage.buffers()))

    def receive(self, message: Message) -> None:
        """Put a message into the inbox of its direction. If its first part is there, join both parts."""
        inbox = self.from_below if message.gradients is None else self.from_above
        self._put(inbox, message)
        if len(inbox) > 1 and inbox[-2].micro_batch == message.micro_batch:
            last, first = inbox.pop(), inbox.pop()
            inbox.append(Message(message.micro_batch, first.streams, last.gradients))

    def receive_target(self, keys: Keys, message: Message) -> None:
        """Keep the target of a micro-batch until its forward, at the head.

        Args:
            keys: Keys of the target (`petra_core.targets`).
            message: Tensors of the target.

        """
        self._target_keys = keys
        self._put(self.targets, message)

    def forward(self, micro_batch: int) -> Message:
        """Execute the forward F of a micro-batch, with the oldest message from below.

        Args:
            micro_batch: Number of the micro-batch.

        Returns:
            The message to the stage above; at the head, a message with the loss.

        """
        streams = self._take(self.from_below, micro_batch).tensors
        target = unflatten(self._target_keys, self._take(self.targets, micro_batch).tensors) if self.is_head else None
        version = self._version_for(micro_batch)
        for part in self.parts:
            streams = part.forward(micro_batch, streams, target, version)
        if self.is_head:
            self.from_above.append(Message(micro_batch, (), (torch.ones_like(streams[0]),)))  # of the loss itself
        return Message(micro_batch, streams)

    def reconstruct(self, micro_batch: int) -> Message | None:
        """Execute the reconstruction R: record the graph of the last part.

        The part inverts the output in the message from above, or recomputes from the kept data. With a method that
        overlaps, this records the graphs of all parts, because the stage below needs the input of this stage during the
        backward of this stage, not after it.

        Args:
            micro_batch: Number of the micro-batch.

        Returns:
            The message with the input of this stage for the stage below, if the method overlaps; otherwise None.

        """
        streams: Streams = ()
        if self.parts[-1].reconstructs:
            message = self.from_above[0]
            assert message.micro_batch == micro_batch
            streams = message.streams
        for part in reversed(self.parts if self._method.overlapped else self.parts[-1:]):
            streams = part.reconstruct(streams, part.delay(self.version))
        if not (self._method.overlapped and self.return_input):
            return None
        return Message(micro_batch, streams, ())

    @property
    def forward_apart(self) -> bool:
        """Return whether the R and B of a step are independent of its F, so that they could run concurrently.

        They depend on F at the head, whose B differentiates the graph of F. They also do if R replaces buffers by
        copies for a time, since writes of F during this time would be lost. This does not concern the running
        statistics of BatchNorm, because R does not replace them.
        """
        return not self.is_head and not any(part.frozen.makes_copies for part in self.parts)

    def backward(self, micro_batch: int) -> Message | None:
        """Execute the backward B: differentiate one part at a time.

        Args:
            micro_batch: Number of the micro-batch.

        Returns:
            The message to the stage below; None at stage 0.

        Raises:
            StageError: If parameters were frozen, unfrozen, added or replaced after the pipeline was made.
            RuntimeError: If other code has written gradients of the parameters.

        """
        refuse_foreign_gradients(self.index, self._named)
        if not self.gradients or not all(parameter.requires_grad for parameter in self.parameters):
            for part in self.parts:
                part.structure.check()
        message = self._take(self.from_above, micro_batch, account=False)
        gradients = message.gradients
        assert gradients is not None
        streams = message.streams  # ignored by the last part, which has a graph since R
        by_parameter: dict[Tensor, Tensor] | None = None if self.after_backward is None else {}
        self.observed_staleness = max(self.observed_staleness, self.parts[-1].in_flight - 1)
        delay = self.parts[-1].delay(self.version)
        self._delays += delay
        for part in reversed(self.parts):
            part.reconstruct(streams, delay)
            streams, gradients = part.backward(
                micro_batch,
                gradients,
                input_gradient=self.index > 0 or part is not self.parts[0] or part.has_backward_hooks,
                collected=by_parameter,
            )
        if self.after_backward is not None and by_parameter is not None:
            named = {name: by_parameter[p] for name, p in self.stage.named_parameters() if p in by_parameter}
            self.after_backward(Backward(self.index, micro_batch, streams or None, named))
        if not self.is_head:
            self.ledger.add("messages", -message.bytes())
        if self.index == 0:
            return None
        below = streams if self.return_input and not self._method.overlapped else ()
        return Message(micro_batch, below, gradients)

    def prepare_update(self) -> None:
        """Put the mean gradients of the next update into `.grad`, call `before_update`, and clip by the stage's norm.

        Raises:
            RuntimeError: If other code has written gradients of the parameters.

        """
        refuse_foreign_gradients(self.index, self._named)
        for part in self.parts:
            part.retire_weights(self.version)
        if self._accumulation > 1 and self.gradients:
            torch._foreach_div_(list(self.gradients.values()), self._accumulation)
        for parameter, gradient in self.gradients.items():
            parameter.grad = gradient
        self.gradients.clear()
        if self.before_update is not None:
            with self.stream:  # so that a hook's noise depends neither on other stages nor on a resume
                self.before_update(self.index, self.version, self.stage)
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.clip.max_norm, foreach=False)

    def update(self, *, prepared: bool) -> None:
        """Execute the update U with the mean of the gradients since the last update.

        Args:
            prepared: Whether `prepare_update` has been called.

        """
        if not prepared:
            self.prepare_update()
        with torch.no_grad(), mixed_precision(self.device, None), self.stream:
            if self.optimizer is not None:
                self.rules.step(self._delays / self._accumulation)
        if self.rules or (self.optimizer is not None and len(self.optimizer.state) != self._states):
            self._count_optimizer()
        self._delays = 0
        for parameter in self.parameters:
            parameter.grad = None
        for part in self.parts:
            part.mark_weights()
        self.ledger.set("gradients", 0)
        self.version += 1

    @torch.no_grad()
    def evaluate(self, streams: Streams, micro_batch: int | None = None) -> Streams:
        """Evaluate the stage without keeping anything. Micro-batches in flight are not affected.

        Args:
            streams: Input of the stage.
            micro_batch: Number of the next micro-batch, to use the weights and, with a seed, the random numbers that
                its forward will use. None for the current weights and torch's global generators.

        """
        streams = tuple(stream.to(self.device) for stream in streams)
        version, drawn_next = WeightVersion(self.version), None
        if micro_batch is not None:
            version, drawn_next = self._version_for(micro_batch), self.stream.state
        with replay(drawn_next, self.device):
            for part in self.parts:
                streams = part.evaluate(streams, part.weights.select_for_forward(version))
        return tuple(map(compact, streams))

    def move_held(self, move: Move) -> None:
        """Move the tensors in queues, which outlive a step, to other memory."""
        for number, part in enumerate(self.parts):
            part.move_held(f"part {number}", move)
        for name, inbox in self._inboxes():
            user = Kind.BACKWARD if inbox is self.from_above else Kind.FORWARD
            for place, message in enumerate(tuple(inbox)):
                inbox[place] = message.with_tensors(move(name, place, user, message.tensors))

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resume needs, as tensors and plain data (references, not copies)."""
        module = self.stage.state_dict()
        buffers = {name: buffer for name, buffer in self.stage.named_buffers() if name not in module}
        return {
            "module": module,
            "optimizer": None if self.optimizer is None else self.optimizer.state_dict(),
            "optimizer_class": type(self.optimizer).__name__,
            "random": self.stream.state,
            **self.state_in_flight(),
            **({"buffers": buffers} if buffers else {}),
            **({} if self._target_keys is None else {"target_keys": self._target_keys}),
            **({"rules": self.rules.state_dict(), "late": self._delays} if self.rules else {}),
        }

    def state_in_flight(self) -> dict[str, Any]:
        """Return the part of the state that the micro-batches in flight and the current update determine."""
        return {
            "version": self.version,
            "gradients": {n: self.gradients[p] for n, p in self.stage.named_parameters() if p in self.gradients},
            "parts": [part.state_dict() for part in self.parts],
            **{name: [dict(vars(message)) for message in inbox] for name, inbox in self._inboxes()},
        }

    def load_module(self, state: Mapping[str, Any]) -> None:
        """Restore the weights and buffers of a state of `state_dict`, before `load_state_dict` of any stage.

        Stages may share a frozen module, and a graph that one stage records must not be followed by writes to it.

        Raises:
            RuntimeError: If the tensors of the module do not fit.

        """
        module = OrderedDict(state["module"])
        module._metadata = self.stage.state_dict()._metadata  # type: ignore[attr-defined]  # versions of the modules
        self.stage.load_state_dict(module)
        for name, value in state.get("buffers", {}).items():  # those with persistent=False
            owner, _, key = name.rpartition(".")
            self.stage.get_submodule(owner).register_buffer(key, value.to(self.device), persistent=False)

    def load_state_dict(self, state: Mapping[str, Any], *, other_method: bool = False) -> None:
        """Restore all but the module from a state of `state_dict` in a worker with the same arguments.

        Args:
            state: The state.
            other_method: Whether it is the state of another method, with no micro-batch in flight. The data that only
                that method keeps is ignored.

        Raises:
            KeyError: If an entry is missing.
            ValueError: If the state or its optimizer does not fit.

        """
        if (state["optimizer"] is None) != (self.optimizer is None):
            raise ValueError("one of the two has an optimizer, the other has none")
        if self.optimizer is not None:
            load_optimizer(self.optimizer, state["optimizer"], state.get("optimizer_class"))
        self.observed_staleness = self._delays = 0
        self.stream.load(state["random"])
        if other_method:
            self.rules.restart()
            state = {**state, "parts": [{"memory": [], "weights": {}} for _ in self.parts]}
        elif self.rules:
            # Older versions had one correction, which they saved under another key, next to a prediction without state.
            corrector = state.get("corrector", {})
            earlier = {rule.name: {} if rule.overrides("forward_weights") else corrector for rule in self.rules}
            self.rules.load_state_dict(state.get("rules", earlier))
            self._delays = state.get("late", 0)
        keys = state.get("target_keys")
        self._target_keys = None if keys is None else tuple(keys)
        self.load_in_flight(state)
        self._count_optimizer()

    def load_in_flight(self, state: Mapping[str, Any], *, steps: int = 0) -> None:
        """Restore a state of `state_in_flight`, after the weights of the module.

        Args:
            state: The state.
            steps: Number of steps by which micro-batches have later numbers than in the state, a multiple of k.

        """
        for kind in IN_FLIGHT:
            self.ledger.set(kind, 0)
        updates = steps // self._accumulation
        self.version = state["version"] + updates
        self.gradients.clear()
        for name, parameter in self.stage.named_parameters():
            parameter.grad = None
            if name in state["gradients"]:
                self.gradients[parameter] = state["gradients"][name].to(self.device)
        self.ledger.set("gradients", payload(self.gradients.values()))
        for part, part_state in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(part_state, steps=steps, updates=updates)
            part.mark_weights()
        for name, inbox in self._inboxes():
            inbox.clear()
            for entry in state[name]:
                streams = entry["streams"] or ()  # None in older states
                self._put(inbox, Message(entry["micro_batch"] + steps, streams, entry["gradients"]))

    def _version_for(self, micro_batch: int) -> WeightVersion:
        """Return the version of the weights of a forward.

        Backwards come in the order of entry, so the backward of micro-batch m has the weights after m // k updates.
        """
        due = micro_batch // self._accumulation
        if self._method.double_buffered:
            return WeightVersion(max(due - 1, 0))
        if not self.rules.predicts or due == self.version:
            return WeightVersion(self.version)
        assert self.optimizer is not None
        rates = (float(group["lr"]) for group in self.optimizer.param_groups)
        return WeightVersion(self.version, (due - self.version, *rates))

    def _inboxes(self) -> Iterator[tuple[str, deque[Message]]]:
        yield from (("from_below", self.from_below), ("from_above", self.from_above), ("targets", self.targets))

    def _put(self, inbox: deque[Message], message: Message) -> None:
        message = message.to(self.device)
        self.ledger.add("messages", message.bytes())
        inbox.append(message)

    def _take(self, inbox: deque[Message], micro_batch: int, *, account: bool = True) -> Message:
        message = inbox.popleft()
        assert message.micro_batch == micro_batch, f"stage {self.index}: {message.micro_batch}, not {micro_batch}"
        if account:
            self.ledger.add("messages", -message.bytes())
        return message

    def _count_optimizer(self) -> None:
        """Count the bytes of the optimizer and the rules."""
        states = {} if self.optimizer is None else self.optimizer.state
        kept = payload(value for value in tree_leaves([*states.values()]) if isinstance(value, Tensor))
        self._states = len(states)
        self.ledger.set("optimizer", kept + payload(self.rules.buffers))
