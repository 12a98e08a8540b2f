"""Forward gradients: targets, guesses and spaces, compared with backpropagation on the same network, and with PETRA.

The recipe of the paper (arXiv 2306.06968) is known, but not its values: 100 epochs of CIFAR-10, a rate of 0.05 for
batches of 128 that drops to a fifth after 30, 60 and 90 epochs. Its momentum is not Nesterov's, and its weight decay
includes norms and biases; here both are as in all trainings of the suite. The auxiliary networks are the CNN of its
command line. At an eighth of the width it has four channels, so narrow networks use the MLP, the default of the
released code.
"""

from typing import Any

from petra_core import methods
from reproduce.cells.kinds import AUXILIARIES, BLOCK_MODELS, FORWARD_GRADIENT, Cell, ForwardGradientCell, TrainingCell
from reproduce.forward_gradients.settings import AXES, Derivative, ForwardGradient, Guess, Scaling, Space, Target
from reproduce.grids import recipes

NOISE = (Guess.GAUSSIAN, Guess.RADEMACHER)
G, L, N = Target.GLOBAL, Target.LOCAL, Target.NEXT
#: Compared algorithms, in the order of the table.
WAYS = (
    *(ForwardGradient(G, guess, Space.ACTIVATIONS) for guess in (Guess.LOCAL, Guess.FIXED, Guess.REDRAWN)),
    ForwardGradient(G, Guess.GAUSSIAN, Space.ACTIVATIONS),
    ForwardGradient(G, Guess.LOCAL, Space.ACTIVATIONS, derivative=Derivative.JVP),
    *(ForwardGradient(target, Guess.LOCAL, Space.ACTIVATIONS) for target in (N, L)),
    *(ForwardGradient(G, guess, Space.WEIGHTS) for guess in (Guess.LOCAL, Guess.REDRAWN, Guess.GAUSSIAN)),
    # Earlier algorithms: Ren's activation perturbation, without and with local losses, and Baydin's.
    *(ForwardGradient(target, Guess.GAUSSIAN, Space.ACTIVATIONS, Scaling.PLAIN) for target in (G, L)),
    ForwardGradient(G, Guess.GAUSSIAN, Space.ALL_WEIGHTS, Scaling.PLAIN),
)
SMOKE = (WAYS[0], *WAYS[3:5], *WAYS[6:8])  # one of each kind
EIGHT, SIXTEEN = BLOCK_MODELS
RECIPE: dict[str, Any] = {"batch_size": 128, "learning_rate": 0.05, "epochs": 100, "warmup_epochs": 0.0}
RECIPE |= {"drops": (30, 60, 90), "drop_factor": 0.2}


def cells(scale: str) -> list[Cell]:
    """Return the cells seed by seed, the baselines before the algorithms; at the paper's size for both networks."""
    planned: list[Cell] = []
    for seed in recipes.seeds(scale) if scale != "narrow" else ():
        for network in (EIGHT, SIXTEEN) if scale == "paper" else (EIGHT,):
            plain = _settings(scale, network, methods.BACKPROPAGATION, seed)
            planned.append(TrainingCell(**plain))
            if scale != "paper":
                planned.append(TrainingCell(**_settings(scale, "revnet18", methods.PETRA, seed)))
            planned += [_cell(plain, way, kind) for way, kind in _ways(scale)]
    return planned


def _ways(scale: str) -> list[tuple[ForwardGradient, str]]:
    """Return the algorithms with their auxiliary networks: all kinds for the local guess of the global target."""
    usual = "cnn" if scale == "paper" else "mlp"
    local = [ForwardGradient(G, Guess.LOCAL, space) for space in (Space.ACTIVATIONS, Space.WEIGHTS)]
    local = local if scale == "paper" else local[:1]
    further = [(way, kind) for kind in AUXILIARIES if kind != usual for way in local] if scale != "smoke" else []
    return [*((way, usual) for way in (SMOKE if scale == "smoke" else WAYS)), *further]


def _settings(scale: str, network: str, method: methods.Method, seed: int) -> dict[str, Any]:
    return recipes.settings(scale, network, method, 1, seed, **RECIPE if scale == "paper" else {})


def _cell(plain: dict[str, Any], way: ForwardGradient, auxiliary: str) -> ForwardGradientCell:
    settings = plain | {name: getattr(way, name).value for name in AXES} | {"method": FORWARD_GRADIENT}
    return ForwardGradientCell(**settings, auxiliary=auxiliary)
