"""Corrections for delay: pipelined methods with and without every mitigation, compared with backpropagation.

A mitigation of delay predicts the weights of the forward, corrects the update, or uses NAdam with a large momentum.
Each is tried at the recipe's learning rate, and under PETRA with seed 0 at others. NAdam is an optimizer, and may win
for reasons that have nothing to do with delay, so backpropagation is trained with it too.
"""

import tomllib
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from petra_core import delay, methods
from petra_core.delay.corrections import Correction
from petra_core.methods import Method
from reproduce.cells import rates
from reproduce.cells.kinds import Cell, ReconstructionCell, TrainingCell
from reproduce.grids import recipes
from reproduce.grids.plans import length

PIPELINED = (methods.PETRA, methods.DSP, methods.DELAYED_GRADIENTS)
RATES = (1.0, 0.25, 4.0)  # multiples of the recipe's rate, which comes first
PROBE_EVERY = 200  # micro-batches between two whose reconstructed inputs are compared


@dataclass(frozen=True)
class Mitigation:
    """A mitigation of delay.

    Attributes:
        title: Title in tables and figures.
        changes: Settings of a cell that differ from the recipe's.
        rates: Learning rates to try, as multiples of the recipe's.

    """

    title: str
    changes: dict[str, Any] = field(default_factory=dict)
    rates: tuple[float, ...] = RATES

    def fits(self, method: Method) -> bool:
        """Return whether the method supports it. A method without delay supports only another optimizer."""
        if not method.pipelined:
            return self.changes.keys() <= {"optimizer", "momentum"}
        return not (self.changes.get("correction") == delay.Average.name and method.stashes_weights)


def _settings_of(correction: type[Correction]) -> dict[str, Any]:
    """Return the settings of a correction. The constant of `rate` depends on the epochs."""
    return {"correction": correction.name, "correction_value": correction.default}


NOTHING, NADAM = Mitigation("nothing"), "NAdam (momentum 0.99)"
MITIGATIONS = (
    NOTHING,
    Mitigation("predicted weights", {"forward_weights": "predicted"}),
    Mitigation("linear prediction", {"forward_weights": "predicted_linear"}),
    *(Mitigation(correction.title.lower(), _settings_of(correction)) for correction in delay.CORRECTIONS.values()),
    Mitigation(NADAM, {"optimizer": "nadam", "momentum": 0.99}, rates=(1.0, 4.0, 16.0, 64.0)),
)
NETWORKS = {"small": ("revnet18", "chain16")}
KS = (1, 4)
#: Rates other than the recipe's that were best with seed 0, by (network, k, method, title of the mitigation). They are
#: planned for the other seeds too, so that the choice is confirmed on seeds that had no part in it.
CHOSEN = {
    (row["network"], row["k"], row["method"], title): row["rate"]
    for row in tomllib.loads((resources.files(__package__) / "corrections.toml").read_text(encoding="utf-8"))["best"]
    for title in row["titles"]
}
#: Titles of the mitigations that are also trained for longer, by epochs, on the network of the study of length at
#: k = 1: those that gained most there after fewer epochs.
LONGER: dict[int, tuple[str, ...]] = {
    9: ("predicted weights", "averaged weights", NADAM),
    27: ("predicted weights", NADAM),
}


@dataclass(frozen=True)
class Trial:
    """A cell of the study, and what it tries."""

    cell: Cell
    mitigation: Mitigation
    rate: float  # multiple of the recipe's learning rate


def cells(scale: str) -> list[Cell]:
    """Return backpropagation, the plain methods and PETRA with every mitigation for all seeds; the rest for seed 0."""
    return [trial.cell for trial in trials(scale)]


def trials(scale: str) -> list[Trial]:
    """Return the trials of a scale, with the recipe's learning rate before others."""
    if scale == "smoke":
        pairs = [(methods.BACKPROPAGATION, NOTHING), *((methods.PETRA, mitigation) for mitigation in MITIGATIONS)]
        return [_trial(scale, "chain8", method, 1, 0, mitigation, 1.0) for method, mitigation in pairs]
    return [*_list_trials(scale), *_longer()] if scale in NETWORKS else []


def _list_trials(scale: str) -> list[Trial]:
    return [
        _trial(scale, network, method, k, seed, mitigation, rate)
        for recipes_rate in (True, False)
        for seed in recipes.seeds("small")
        for network in NETWORKS[scale]
        for k in KS
        for method in (methods.BACKPROPAGATION, *PIPELINED)
        for mitigation in MITIGATIONS
        for rate in mitigation.rates
        if mitigation.fits(method)
        and (rate == 1) == recipes_rate
        and _is_wanted(method, mitigation, seed, rate, CHOSEN.get((network, k, method.name, mitigation.title)))
    ]


def _longer() -> list[Trial]:
    """Return the best mitigations at their rates, with plain PETRA and backpropagation."""
    return [
        _trial("small", length.NETWORK, method, 1, seed, mitigation, rate, **length.lasting("small", epochs))
        for epochs, best in LONGER.items()
        for seed in recipes.seeds("small")
        for method in (methods.BACKPROPAGATION, methods.PETRA)
        for mitigation in MITIGATIONS
        if mitigation is NOTHING or (mitigation.title in best and mitigation.fits(method))
        for rate in [
            1.0 if mitigation is NOTHING else CHOSEN.get((length.NETWORK, 1, method.name, mitigation.title), 1.0)
        ]
    ]


def _is_wanted(method: Method, mitigation: Mitigation, seed: int, rate: float, chosen: float | None) -> bool:
    if rate == 1:
        return method is methods.PETRA or mitigation is NOTHING or seed == 0
    return method in (methods.PETRA, methods.BACKPROPAGATION) and (seed == 0 or rate == chosen)


def _trial(
    scale: str, network: str, method: Method, k: int, seed: int, mitigation: Mitigation, rate: float, **changes: Any
) -> Trial:
    """Return a trial. On the chain, where PETRA reconstructs most, record the errors of the inputs at k = 1."""
    settings = recipes.settings(scale, network, method, k, seed, **changes) | mitigation.changes
    if settings.get("correction") == delay.Rate.name:
        settings["correction_value"] = settings["epochs"] / 3
    if settings.get("optimizer", "sgd") != "sgd":
        settings["learning_rate"] = rates.learning_rate(settings["batch_size"], k, optimizer=settings["optimizer"])
    settings["learning_rate"] *= rate
    if scale == "small" and network == "chain16" and method is methods.PETRA and (k, rate) == (1, 1.0):
        return Trial(ReconstructionCell(**settings, probe_every=PROBE_EVERY), mitigation, rate)
    return Trial(TrainingCell(**settings), mitigation, rate)
