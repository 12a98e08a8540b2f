"""Transformers on images and text."""

import math
from dataclasses import dataclass
from typing import Any

from petra_core import methods
from petra_core.methods import Method
from reproduce.cells import catalogue
from reproduce.cells.kinds import Cell, TrainingCell
from reproduce.grids import recipes

ACCUMULATIONS = (1, 4, 16)
COMPARED = (methods.BACKPROPAGATION, methods.PETRA)


@dataclass(frozen=True)
class Study:
    """A transformer at a scale, trained by the methods of `COMPARED`."""

    scale: str
    model: str
    rate: float  # learning rate at `samples` per update
    samples: int
    changes: dict[str, Any]  # settings that differ from the scale's
    accumulations: tuple[int, ...] = ACCUMULATIONS

    def cell(self, method: Method, accumulation: int, seed: int = 0) -> TrainingCell:
        values = recipes.settings(self.scale, self.model, method, accumulation, seed, optimizer="adamw", **self.changes)
        rate = self.rate * math.sqrt(values["batch_size"] * accumulation / self.samples)
        return TrainingCell(**values | {"learning_rate": rate})

    @property
    def cells(self) -> list[Cell]:
        seeds = recipes.seeds(self.scale)
        return [self.cell(m, k, seed) for k in self.accumulations for m in COMPARED for seed in seeds]


PATCHES: dict[str, Any] = {"stem": "patch4", "width": 48, "weight_decay": 0.05}
TEXT: dict[str, Any] = {"dataset": catalogue.PYDOC.name, "width": 48}
# Two blocks and four patches per digit. At k = 1 delays count whole updates: with the ten stages of four blocks, PETRA
# learns only at rates that need more than the seconds of this scale.
BRIEF = PATCHES | {"batch_size": 48, "epochs": 8, "warmup_epochs": 1.0, "drops": (7,)}
BRIEF_TEXT = TEXT | {"image_size": 32, "batch_size": 32, "epochs": 1, "warmup_epochs": 0.1, "drops": ()}
IMAGES = Study("small", "revvit_tiny", 1e-3, 128, PATCHES)
LANGUAGE = Study(
    "small", "revroberta_micro", 1e-3, 64, TEXT | {"batch_size": 16, "epochs": 12, "warmup_epochs": 1.0, "drops": (10,)}
)
STUDIES = (
    Study("smoke", "revvit_micro2", 2e-3, 48, BRIEF, (1,)),
    Study("smoke", "revroberta_micro2", 2e-3, 32, BRIEF_TEXT, (1,)),
    IMAGES,
    LANGUAGE,
)


def cells(scale: str) -> list[Cell]:
    """Return all studies of the scale."""
    return [cell for study in STUDIES if study.scale == scale for cell in study.cells]
