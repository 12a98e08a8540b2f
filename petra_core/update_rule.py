"""Turn gradients of a stage into updates, by the optimizer or by rules that compensate for delay.

The delay of a micro-batch is the number of updates that the stage made between the micro-batch's forward and its
backward. The stage counts it; it is never computed from a formula. `UpdateRule` is the plain optimizer. A subclass
compensates for delay by overriding one or more of its hooks:

    forward_weights    the weights of a forward, such as a prediction of those that the stage will have at the backward
    backward_weights   the weights of a backward
    gradient           the gradient of one late micro-batch
    step               the update

`Pipeline(..., delay=[PredictedWeights(), GapAware()])` combines rules that override different hooks. The engine uses
only this class; `petra_core.delay` contains rules from the literature. A hook that no rule overrides costs nothing.
This module does not need torch.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from petra_core.methods import Method

if TYPE_CHECKING:  # keep this module importable without torch, for command lines that look up rules by name
    from torch import Tensor
    from torch.optim import Optimizer

#: The methods of `UpdateRule` that a rule may override, in the order in which they act on a micro-batch.
HOOKS = ("forward_weights", "backward_weights", "gradient", "step")


class UpdateRule:
    """The plain optimizer, and the base class of rules that compensate for delay.

    A pipeline gets one object for all stages and gives each stage a copy, bound to the stage's optimizer (`bind`).
    Hooks are called without gradient recording. While the delay is 0, a rule should equal the plain optimizer.

    Attributes:
        name: Identifier in messages and checkpoints. By default the name of the class.
        parameter_buffers: Number of buffers of a parameter's shape that the rule keeps for each parameter.
        optimizer: The optimizer of the stage, after `bind`.
        buffers: Buffers of the rule by parameter, after `bind`. They count as memory of the optimizer.
        rate: Factor that `step` applied to the learning rate in the last update.

    """

    name: str = "plain"
    parameter_buffers: int = 0

    optimizer: "Optimizer"
    buffers: "dict[Tensor, Tensor]"
    rate: float = 1.0

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def __str__(self) -> str:
        """Return the name and constants of the rule. A checkpoint of a rule with another text is rejected."""
        return self.name

    def bind(self, optimizer: "Optimizer") -> Self:
        """Return a copy of this rule for the optimizer of one stage."""
        bound = copy.deepcopy(self)
        bound.optimizer = optimizer
        bound.buffers = {}
        bound.start()
        return bound

    def start(self) -> None:
        """Check `optimizer` and prepare the rule's state. `bind` calls this on the copy of each stage.

        Raises:
            ValueError: If the rule does not support the optimizer.

        """

    def overrides(self, hook: str) -> bool:
        """Return whether the rule overrides a hook of `HOOKS`."""
        return getattr(type(self), hook) is not getattr(UpdateRule, hook)

    @property
    def parameters(self) -> "list[Tensor]":
        """The parameters of the optimizer."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def forward_weights(self, weights: "Mapping[str, Tensor]", updates: int, rate: float) -> "dict[str, Tensor] | None":
        """Return the weights of a forward whose backward comes after `updates` more updates, at least 1.

        They must depend only on the arguments, the optimizer and state that only `step` changes, because micro-batches
        with equal version, `updates` and learning rates share them.

        Args:
            weights: The block's trained parameters, by their names in `block.function`. A merged stage calls the hook
                once per block.
            updates: Number of updates until the backward.
            rate: Factor that the rule of the update applied to the learning rate in the last update.

        Returns:
            New tensors in new memory, one for each of `weights`, by name. None for the current weights.

        """
        return None

    def backward_weights(self, weights: "Mapping[str, Tensor]", delay: int) -> "dict[str, Tensor] | None":
        """Return the weights for the backward of a micro-batch that is `delay` updates late.

        Args:
            weights: The block's trained parameters, by their names in `block.function`. A merged stage calls the hook
                once per block.
            delay: The delay, which may be 0.

        Returns:
            New tensors in new memory, one for each of `weights`, by name. None for the current weights.

        """
        return None

    def gradient(self, parameter: "Tensor", gradient: "Tensor", forward_weight: "Tensor") -> "Tensor":
        """Return the corrected gradient of one micro-batch whose forward had other weights than the current ones.

        Overriding this hook makes the stage keep the weights of every forward until its backward. The hook must not
        write to its arguments. It may return one of them or a buffer of the rule.

        Args:
            parameter: The parameter with its current value.
            gradient: Gradient of the parameter.
            forward_weight: Value of the parameter in the forward of the micro-batch.

        """
        return gradient

    def step(self, delay: float) -> None:
        """Update the weights with the mean gradients in `.grad`.

        Args:
            delay: Mean delay of the micro-batches of the update.

        """
        self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resume needs, as tensors and plain data: by default the buffers."""
        return {"buffers": [self.buffers.get(parameter) for parameter in self.parameters]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`."""
        saved = state.get("buffers", [None] * len(self.parameters))  # none in states of older versions
        pairs = zip(self.parameters, saved, strict=True)
        self.buffers = {parameter: buffer.to(parameter.device) for parameter, buffer in pairs if buffer is not None}


class StageRules:
    """The rules of one stage. Each hook belongs to the rule that overrides it, or to the plain optimizer.

    Args:
        rules: The rules of the pipeline.
        optimizer: The optimizer of the stage, if it has one.

    Attributes:
        predicts: Whether a rule replaces the weights of forwards.
        replaces: Whether a rule replaces the weights of backwards.
        corrects: Whether a rule corrects gradients, for which the stage keeps the weights of forwards.

    """

    def __init__(self, rules: Sequence[UpdateRule], optimizer: "Optimizer | None") -> None:
        self._rules = [] if optimizer is None else [rule.bind(optimizer) for rule in rules]
        plain = UpdateRule() if optimizer is None else UpdateRule().bind(optimizer)
        chosen = [next((rule for rule in self._rules if rule.overrides(hook)), plain) for hook in HOOKS]
        self.predicts, self.replaces, self.corrects, _ = (rule is not plain for rule in chosen)
        self._forward, self._backward, self._gradient, self._stepping = chosen
        self.step = self._stepping.step
        self._initial = copy.deepcopy(self.state_dict())

    def restart(self) -> None:
        """Return the rules to their states before the first update."""
        self.load_state_dict(copy.deepcopy(self._initial))

    def __bool__(self) -> bool:
        """Return whether the stage has any rule."""
        return bool(self._rules)

    def forward_weights(self, weights: "Mapping[str, Tensor]", updates: int) -> "dict[str, Tensor] | None":
        """Return the weights of a forward, as `UpdateRule.forward_weights` does."""
        given = self._forward.forward_weights(weights, updates, self._stepping.rate)
        return given if given is None else _checked(self._forward, "forward_weights", weights, given)

    def backward_weights(self, weights: "Mapping[str, Tensor]", delay: int) -> "dict[str, Tensor] | None":
        """Return the weights of a backward, as `UpdateRule.backward_weights` does."""
        given = self._backward.backward_weights(weights, delay)
        return given if given is None else _checked(self._backward, "backward_weights", weights, given)

    def gradient(self, parameter: "Tensor", gradient: "Tensor", forward_weight: "Tensor") -> "Tensor":
        """Return the corrected gradient, as `UpdateRule.gradient` does."""
        corrected = self._gradient.gradient(parameter, gradient, forward_weight)
        return _checked(self._gradient, "gradient", {"a gradient": gradient}, {"a gradient": corrected})["a gradient"]

    def __iter__(self) -> Iterator[UpdateRule]:
        return iter(self._rules)

    @property
    def buffers(self) -> "list[Tensor]":
        """The buffers of all rules."""
        return [buffer for rule in self._rules for buffer in rule.buffers.values()]

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the rules, by name."""
        return {rule.name: rule.state_dict() for rule in self._rules}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Restore states of `state_dict`.

        Raises:
            KeyError: If the state of a rule is missing.

        """
        for rule in self._rules:
            rule.load_state_dict(states[rule.name])


def _checked(
    rule: UpdateRule, hook: str, wanted: "Mapping[str, Tensor]", given: "dict[str, Tensor]"
) -> "dict[str, Tensor]":
    """Return what a hook has given, if it is a tensor of the wanted shape for each name."""
    for name, tensor in wanted.items():
        got = getattr(given.get(name), "shape", given.get(name))
        if got != tensor.shape:
            raise ValueError(
                f"the hook {hook} of the delay rule {rule.name!r} returned {got} for {name}, expected a tensor of "
                f"{tensor.shape}; return one of that shape"
            )
    return given


def check_rules(rules: Any, method: Method) -> tuple[UpdateRule, ...]:
    """Return the rules of a pipeline in the order of the hooks that they override.

    Args:
        rules: The rules that the user gave.
        method: The method of the pipeline.

    Raises:
        TypeError: If something other than a sequence of rules is given.
        ValueError: If two rules contradict each other, or a rule contradicts the method.

    """
    if not isinstance(rules, list | tuple):
        raise TypeError(
            f"delay is {rules!r}, a {type(rules).__name__}; give a list of rules, such as [petra_core.delay.GapAware()]"
        )
    for rule in rules:
        if not isinstance(rule, UpdateRule):
            raise TypeError(
                f"delay has {rule!r}, a {type(rule).__name__}; give rules, such as petra_core.delay.GapAware() or "
                f"petra_core.delay.CORRECTIONS['gap_aware']()"
            )
        if not any(map(rule.overrides, HOOKS)):
            raise ValueError(
                f"the delay rule {rule.name!r} overrides none of {', '.join(HOOKS)}, so it would have no effect"
            )
        _check_fits(rule, method)
    for hook in HOOKS:
        names = [rule.name for rule in rules if rule.overrides(hook)]
        if len(names) > 1:
            raise ValueError(
                f"the delay rules {names[0]!r} and {names[1]!r} contradict each other: both define {hook}; "
                f"leave one out"
            )
    names = [rule.name for rule in rules]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two delay rules are called {twice!r}, by which checkpoints name them; rename one")
    return tuple(sorted(rules, key=lambda rule: [not rule.overrides(hook) for hook in HOOKS]))


def _check_fits(rule: UpdateRule, method: Method) -> None:
    if not method.pipelined:
        raise ValueError(
            f"{method} processes one micro-batch at a time, so no gradient is stale and the delay rule {rule.name!r} "
            f"would have no effect; choose a pipelined method, or leave it out"
        )
    if method.double_buffered and rule.overrides("forward_weights"):
        raise ValueError(
            f"{method} uses the weights before the last update in every forward, but the delay rule {rule.name!r} "
            f"gives forwards other weights; leave it out, or choose another pipelined method"
        )
    if method.stashes_weights and rule.overrides("backward_weights"):
        raise ValueError(
            f"the delay rule {rule.name!r} gives backwards other weights, but {method} stashes the weights of the "
            f"forward for them; choose PETRA or DSP, whose backward uses the current weights"
        )
