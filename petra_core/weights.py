"""Keep the versions of a block's weights, and select the version of each evaluation.

A graph or a later reconstruction may need the weights of its forward although updates have happened since. The obvious
way, a copy at every forward, holds one copy too many, and copies weights that do not change. Here the forward uses the
current weights. An update that would overwrite weights that are still needed moves the parameters to new storage first
(`BlockWeights.retire`), and the old storage becomes the stash. A stage with a staleness of s micro-batches therefore
holds ceil(s / k) copies in addition to the current weights, the number in Table 1 and Table 3 of the paper. Predicted
weights (`petra_core.update_rule`) are versions that the block never had. They are kept only if a backward needs them.
"""

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from petra_core.ledger import Ledger, payload
from petra_core.settings import Settings
from petra_core.stages import HeadStage, Stage
from petra_core.update_rule import StageRules

StageWeights = Mapping[str, Tensor]  # weights that replace the parameters of a block's function, by name


class WeightVersion(NamedTuple):
    """A version of a block's weights.

    Attributes:
        number: Number of updates before this version.
        ahead: For predicted weights, the number of updates that the prediction looks ahead, and the learning rates.
            Predictions from one version with equal `ahead` are equal. Empty for weights that are not predicted.

    """

    number: int
    ahead: tuple[float, ...] = ()


class BlockWeights:
    """The weights of a block: its trained parameters, and other versions of them.

    Args:
        stage: The block.
        settings: Settings of the pipeline.
        rules: Rules for delay of the stage.
        ledger: Ledger of the stage.

    Attributes:
        trained: The parameters that require gradients, by name.
        keeps_graph: Whether the graph of a forward is kept until its backward.
        stashes: Whether a backward differentiates with the weights of its forward.
        keeps: Whether the weights of a forward are kept until its backward, by the method or by a rule for delay.
        replaces: Whether evaluations may use weights other than the current parameters.

    """

    def __init__(self, stage: Stage, settings: Settings, rules: StageRules, ledger: Ledger) -> None:
        method, function, is_head = settings.method, stage.function, isinstance(stage, HeadStage)
        self.trained = {name: p for name, p in function.named_parameters() if p.requires_grad}
        self.keeps_graph = method.keeps_graph or is_head  # the head's backward follows its forward in the same step
        self.stashes = method.stashes_weights and (method.double_buffered or not is_head)
        self.keeps = self.stashes or rules.corrects
        self.replaces = self.stashes or rules.predicts or rules.replaces
        self._double_buffered = method.double_buffered
        self._rules, self._ledger = rules, ledger
        self._versions: dict[WeightVersion, StageWeights] = {}
        # Detached aliases of the current parameters, not registered with the optimizer. Kept graphs are recorded on
        # these, because an update gives the parameters other storage before such a graph is differentiated.
        self._current: StageWeights | None = None
        names = {id(parameter): name for name, parameter in self.trained.items()}
        # Every place in which a trained parameter is registered; a tied one has several.
        self._places = [
            (module._parameters, key, names[id(parameter)])
            for module in function.modules()
            for key, parameter in module._parameters.items()
            if id(parameter) in names
        ]

    @contextlib.contextmanager
    def replace(self, weights: StageWeights | None) -> Iterator[None]:
        """Replace the parameters of the function by `weights` in a context. None replaces nothing."""
        if weights is None:
            yield
            return
        own = [parameters[key] for parameters, key, _ in self._places]
        for parameters, key, name in self._places:
            parameters[key] = weights[name]  # type: ignore[assignment]  # a tensor, as in torch.func.functional_call
        try:
            yield
        finally:
            for (parameters, key, _), parameter in zip(self._places, own, strict=True):
                parameters[key] = parameter

    def select_for_forward(self, version: WeightVersion) -> StageWeights | None:
        """Return the weights of a forward: a version that is kept, or a prediction. None for the current weights."""
        if version in self._versions or not version.ahead:
            return self._versions.get(version)
        given = self._rules.forward_weights(self.trained, int(version.ahead[0]))
        return None if given is None else self.leaves(given)

    def select_for_graph(self, version: WeightVersion) -> StageWeights | None:
        """Return the weights that a graph of this version is recorded on. None for the parameters of the module."""
        if self.stashes and self.keeps_graph and version not in self._versions:
            self._current = self._current or self.leaves()  # so that the next update does not invalidate the graph
            return self._current
        return self._versions.get(version) if self.stashes else None

    def select_for_backward(self, version: WeightVersion, delay: int) -> StageWeights | None:
        """Return the weights that a backward evaluates and differentiates with. None for the current weights.

        Args:
            version: Version of the forward.
            delay: Updates since the forward.

        """
        if not self._rules.replaces:
            return self.select_for_graph(version)
        with torch.no_grad():
            given = self._rules.backward_weights(self.trained, delay)
        weights = None if given is None else self.leaves(given)
        self._ledger.add("stashed_weights", payload((weights or {}).values()))
        return weights

    def correct(self, version: WeightVersion, gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        """Return the gradients of a micro-batch, corrected if its forward did not use the current weights."""
        weights = self._versions.get(version)
        if weights is None or not self._rules.corrects:
            return gradients
        return tuple(
            None if gradient is None else self._rules.gradient(parameter, gradient, weights[name])
            for (name, parameter), gradient in zip(self.trained.items(), gradients, strict=True)
        )

    def leaves(self, weights: StageWeights | None = None) -> StageWeights:
        """Return parameters that are graph leaves, with the attributes that the user has set on those of the module.

        Args:
            weights: Tensors that give the leaves their storage. None for the current weights, with separate version
                counters: `.detach()` would share the counter with the parameter. Later in-place updates of the
                parameter, which then has other storage, would count as writes to the leaf.

        """
        leaves = {n: nn.Parameter(p.data if weights is None else weights[n]) for n, p in self.trained.items()}
        for name, parameter in self.trained.items():
            vars(leaves[name]).update(vars(parameter))
        return leaves

    def keep_prediction(self, version: WeightVersion, predicted: StageWeights | None) -> WeightVersion:
        """Keep the predicted weights of a forward, if there are any and its backward needs them.

        Returns:
            The version to look up at the backward.

        """
        if predicted is None:
            return WeightVersion(version.number)
        if self.keeps:
            if version not in self._versions:
                self._versions[version] = predicted
                self._ledger.add("stashed_weights", payload(predicted.values()))
            return version
        copies = payload(predicted.values())  # count the temporary copies in the peak
        self._ledger.add("stashed_weights", copies)
        self._ledger.add("stashed_weights", -copies)
        return WeightVersion(version.number)

    def retire(self, number: int, in_flight: Collection[WeightVersion]) -> None:
        """Stash the current weights before the update that ends version `number`, if a backward will need them.

        The stash keeps the storage, and the parameters move to new storage, which the optimizer then overwrites.
        Weights are therefore copied once per update and not once per forward.

        Args:
            number: Number of the version, which is the number of updates so far.
            in_flight: Versions of the micro-batches in flight.

        """
        version = WeightVersion(number)
        needed = version in in_flight
        if self._double_buffered:  # for later forwards; the last backward with the previous version is done
            self._drop(WeightVersion(number - 1))
            needed = True
        if self.keeps and needed:
            self._versions[version] = self._current or self.leaves()
            for parameter in self.trained.values():
                parameter.data = parameter.data.clone()
            self._ledger.add("stashed_weights", payload(self.trained.values()))
        self._current = None

    def adopt_written(self) -> None:
        """Use the current weights, which other code has written, in place of those that are kept.

        No micro-batch may be in flight. With double-buffering one version is kept then, which the next forwards use.
        """
        self._current = None
        for version in tuple(self._versions):
            self._drop(version)
            self.retire(version.number, ())

    def release(self, version: WeightVersion, weights: StageWeights | None, in_flight: Iterable[WeightVersion]) -> None:
        """Release the weights that only one micro-batch needed, after its backward.

        Args:
            version: Version of the forward.
            weights: Weights of the backward.
            in_flight: Versions of the micro-batches that are still in flight.

        """
        if self._rules.replaces:
            self._ledger.add("stashed_weights", -payload((weights or {}).values()))
        if not self._double_buffered and version not in in_flight:
            self._drop(version)

    def _drop(self, version: WeightVersion) -> None:
        if version in self._versions:
            self._ledger.add("stashed_weights", -payload(self._versions.pop(version).values()))

    @property
    def stashed(self) -> list[Tensor]:
        """The tensors of all versions that are kept."""
        return [tensor for weights in self._versions.values() for tensor in weights.values()]

    def state_dict(self) -> dict[int, Any]:
        """Return the stashed versions by number. Predictions are saved with their micro-batches (`prediction`)."""
        return {version.number: _values(weights) for version, weights in self._versions.items() if not version.ahead}

    def prediction(self, version: WeightVersion) -> dict[str, Any]:
        """Return the entries of a micro-batch's state that hold its predicted weights; empty without a prediction."""
        return {"ahead": version.ahead, "predicted": _values(self._versions[version])} if version.ahead else {}

    def load_state_dict(self, state: Mapping[int, Any], in_flight: Collection[Mapping[str, Any]]) -> None:
        """Restore versions from a state. The weights of the module must have been loaded before.

        Args:
            state: State of `state_dict`.
            in_flight: States of the micro-batches in flight, with the entries of `prediction`.

        """
        saved = {WeightVersion(number): weights for number, weights in state.items()}
        saved |= {WeightVersion(e["version"], tuple(e["ahead"])): e["predicted"] for e in in_flight if "predicted" in e}
        self._current = None
        self._versions = {
            version: self.leaves({name: tensor.to(self.trained[name].device) for name, tensor in weights.items()})
            for version, weights in saved.items()
        }
        self._ledger.add("stashed_weights", payload(self.stashed))


def _values(weights: StageWeights) -> dict[str, Tensor]:
    """Return tensors on the storage of weights without attributes, which a file could not hold."""
    return {name: weight.detach() for name, weight in weights.items()}
