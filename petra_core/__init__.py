"""Train reversible networks with PETRA, and with the methods that it is compared with, in one engine.

    from petra_core import Pipeline, methods, models

    stages = models.revnet(18, num_classes=10, stem="cifar", width=64)
    pipeline = Pipeline(stages, methods.PETRA, accumulation=4, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    for x, y in batches:
        loss = pipeline.step(x, y)

Read the modules in this order: methods (the idea), stages and tape (one evaluation of a stage), staleness (the actions
of a stage), weights, block and worker (one stage), pipeline (all stages).

Importing torch takes seconds, and the command line needs only methods and optimizers. Names that need torch are
therefore imported on first access.
"""

import pkgutil
from typing import TYPE_CHECKING, Any

from petra_core import methods, optimizers
from petra_core.errors import CheckpointError, NonFiniteError, PetraError, StageError
from petra_core.ledger import MemoryReport

if TYPE_CHECKING:
    from petra_core import checkpoint, models
    from petra_core.clipping import Clip
    from petra_core.inspection.preflight import check
    from petra_core.pipeline import Pipeline
    from petra_core.stages import BufferedStage, HeadStage, ReversibleStage, Stage, merge

#: The version of the suite. pyproject.toml reads it from here, and records name it.
__version__ = "0.2.0"

__all__ = ["BufferedStage", "CheckpointError", "Clip", "HeadStage", "MemoryReport", "NonFiniteError", "PetraError"]
__all__ += ["Pipeline", "ReversibleStage", "Stage", "StageError", "check", "checkpoint", "merge", "methods", "models"]
__all__ += ["optimizers"]

#: The public names that need torch and are not modules, with the module that defines each.
_LATER = dict.fromkeys(("BufferedStage", "HeadStage", "ReversibleStage", "Stage", "merge"), "stages")
_LATER |= {"Clip": "clipping", "Pipeline": "pipeline", "check": "inspection.preflight"}


def __getattr__(name: str) -> Any:
    """Import a public name that needs torch on first access."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return pkgutil.resolve_name(f"{__name__}.{_LATER[name]}:{name}" if name in _LATER else f"{__name__}.{name}")


def __dir__() -> list[str]:
    """Return all public names, including those that have not been imported yet."""
    return sorted({*globals(), *__all__})
