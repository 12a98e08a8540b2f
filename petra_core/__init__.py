"""PETRA and its rivals as settings of one engine.

    from petra_core import Pipeline, methods, models

    stages = models.revnet(18, num_classes=10, stem="cifar", width=64)
    pipeline = Pipeline(stages, methods.PETRA, accumulation=4, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    for x, y in batches:
        loss = pipeline.step(x, y)

Read in this order: methods (the idea), stages and tape (one evaluation), schedule, part and worker (one stage),
pipeline (all of them).
"""

from petra_core import checkpoint, methods, models, recipe
from petra_core.errors import CheckpointError, NonFiniteError, PetraError, ScheduleError
from petra_core.ledger import MemoryReport
from petra_core.pipeline import Pipeline
from petra_core.stages import BufferedStage, HeadStage, ReversibleStage, Stage, merge

__all__ = [
    "BufferedStage",
    "CheckpointError",
    "HeadStage",
    "MemoryReport",
    "NonFiniteError",
    "PetraError",
    "Pipeline",
    "ReversibleStage",
    "ScheduleError",
    "Stage",
    "checkpoint",
    "merge",
    "methods",
    "models",
    "recipe",
]
