"""BDIA compared with the plain transformer and the additive coupling: accuracy, memory, and its random steps.

Parts of the published recipe (from a secondary source: 6 blocks of 512 channels, micro-batches of 128, 400 epochs) that
a cell cannot express are replaced: SET-Adam by AdamW, the cosine schedule by two drops, and there is no dropout.
"""

import math
from dataclasses import dataclass
from typing import Any

from petra_core import methods
from petra_core.methods import Method
from reproduce.cells.kinds import Cell, TrainingCell
from reproduce.cells.transformers import OWN
from reproduce.grids import recipes

DATASETS = ("cifar10", "cifar100")
PUBLISHED_SIZE = "six"


@dataclass(frozen=True)
class TransformerContestant:
    """A transformer and its training.

    Attributes:
        title: Title in tables and figures; only the name of the network if it is trained as published.
        family: Family of models.
        coupling: Coupling of the cell.
        method: Training method.
        against: Contestant to compare with: the plain network, or under PETRA the same network trained without delay.

    """

    title: str
    family: str
    coupling: str
    method: Method
    against: "TransformerContestant | None" = None


VIT = TransformerContestant("ViT", "vit", OWN, methods.BACKPROPAGATION)
REVVIT = TransformerContestant("RevViT", "revvit", OWN, methods.REVERSIBLE_BACKPROPAGATION, VIT)
BDIA = TransformerContestant("BDIA-ViT", "vit", "bdia", methods.REVERSIBLE_BACKPROPAGATION, VIT)
FLOAT = TransformerContestant("BDIA-ViT without quantiser", "vit", "bdia_float", methods.BACKPROPAGATION, VIT)
PUBLISHED = (VIT, REVVIT, BDIA)
CONTESTANTS = (
    *(*PUBLISHED, FLOAT),
    TransformerContestant("RevViT, PETRA", "revvit", OWN, methods.PETRA, REVVIT),
    TransformerContestant("BDIA-ViT, PETRA", "vit", "bdia", methods.PETRA, BDIA),
)
BY_SETTINGS = {(c.family, c.coupling, c.method.name): c for c in CONTESTANTS}


def cells(scale: str) -> list[Cell]:
    """Return the published contestants at `paper`, and at smaller scales also those under PETRA."""
    if scale == "smoke":
        brief = {"batch_size": 48, "epochs": 8, "warmup_epochs": 1.0, "drops": (7,), "learning_rate": 2e-3}
        return [_cell(scale, c, "micro2", 0, width=48, **brief) for c in CONTESTANTS]
    if scale == "small":
        longer = {"epochs": 6, "warmup_epochs": 1.0, "drops": (4,), "learning_rate": 1e-3 * math.sqrt(32 / 128)}
        return [
            _cell(scale, c, PUBLISHED_SIZE, seed, width=64, **longer)
            for seed in recipes.seeds(scale)
            for c in CONTESTANTS
        ]
    if scale == "paper":
        return [
            as_published(c, dataset, seed)
            for dataset in DATASETS
            for seed in recipes.seeds(scale, dataset)
            for c in (*PUBLISHED, *([FLOAT] if dataset == DATASETS[0] else []))
        ]
    return []


def as_published(contestant: TransformerContestant, dataset: str = DATASETS[0], seed: int = 0) -> TrainingCell:
    """Return the cell of the published size and, as far as a cell can express it, recipe."""
    recipe: dict[str, Any] = {"batch_size": 128, "epochs": 400, "drops": (200, 300), "learning_rate": 1e-4}
    return _cell("paper", contestant, PUBLISHED_SIZE, seed, dataset=dataset, width=512, weight_decay=0.0, **recipe)


def _cell(scale: str, contestant: TransformerContestant, size: str, seed: int, **changes: Any) -> TrainingCell:
    model = f"{contestant.family}_{size}"
    usual: dict[str, Any] = {"stem": "patch4", "optimizer": "adamw", "weight_decay": 0.05}
    usual["coupling"] = contestant.coupling
    return recipes.cell(scale, model, contestant.method, 1, seed, **usual | changes)
