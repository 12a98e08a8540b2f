"""Transformers on images and text."""

import math
from collections.abc import Callable
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
    """A transformer at a scale, trained by several methods."""

    scale: str
    settings: Callable[[Method, int, int], dict[str, Any]]  # of a method, k and seed, all but the learning rate
    rate: float  # at so many samples of an update:
    samples: int
    compared: tuple[Method, ...] = COMPARED  # backpropagation first
    accumulations: tuple[int, ...] = ACCUMULATIONS
    seeds: tuple[int, ...] = recipes.SEEDS["small"]

    def cell(self, method: Method, accumulation: int, seed: int = 0) -> TrainingCell:
        values = self.settings(method, accumulation, seed)
        rate = self.rate * math.sqrt(values["batch_size"] * accumulation / self.samples)
        return TrainingCell(**values | {"optimizer": "adamw", "learning_rate": rate})

    @property
    def cells(self) -> list[Cell]:
        return [self.cell(m, k, seed) for k in self.accumulations for m in self.compared for seed in self.seeds]

    @property
    def example(self) -> TrainingCell:
        """One cell for all, such as for their data set."""
        return self.cell(methods.PETRA, 1)


def _smoke_images(method: Method, accumulation: int, seed: int) -> dict[str, Any]:
    # Two blocks and four patches a digit. At k = 1 delays count whole updates: with the ten of four blocks PETRA learns
    # only at rates that take longer than the seconds of this scale.
    model: dict[str, Any] = {"model": "revvit_micro2", "stem": "patch4", "width": 48, "weight_decay": 0.05}
    brief: dict[str, Any] = {"batch_size": 48, "epochs": 8, "warmup_epochs": 1.0, "drops": (7,)}
    return recipes.settings("smoke", "revnet18", method, accumulation, seed, **model, **brief)


def _small_images(method: Method, accumulation: int, seed: int) -> dict[str, Any]:
    return recipes.settings(
        "small", "revvit_tiny", method, accumulation, seed, stem="patch4", width=48, weight_decay=0.05
    )


def _smoke_text(method: Method, accumulation: int, seed: int) -> dict[str, Any]:
    brief: dict[str, Any] = {
        "model": "revroberta_micro2",
        "image_size": 32,
        "batch_size": 32,
        "epochs": 1,
        "warmup_epochs": 0.1,
    }
    return recipes.settings("smoke", "revnet18", method, accumulation, seed, **TEXT | brief, drops=())


def _small_text(method: Method, accumulation: int, seed: int) -> dict[str, Any]:
    longer: dict[str, Any] = {"batch_size": 16, "epochs": 12, "warmup_epochs": 1.0, "drops": (10,)}
    return recipes.settings("small", "revnet18", method, accumulation, seed, **TEXT, **longer)


TEXT: dict[str, Any] = {
    "dataset": catalogue.PYDOC.name,
    "model": "revroberta_micro",
    "stem": catalogue.PYDOC.stem,
    "width": 48,
}
IMAGES = Study("small", _small_images, rate=1e-3, samples=128)
LANGUAGE = Study("small", _small_text, rate=1e-3, samples=64)
STUDIES = (
    Study("smoke", _smoke_images, 2e-3, 48, accumulations=(1,), seeds=(0,)),
    Study("smoke", _smoke_text, 2e-3, 32, accumulations=(1,), seeds=(0,)),
    IMAGES,
    LANGUAGE,
)


def cells(scale: str) -> list[Cell]:
    """All studies of the scale."""
    return [cell for study in STUDIES if study.scale == scale for cell in study.cells]
