"""Predict the memory and time of a run: bytes and seconds of each stage, and partitions over devices.

For the stages of any network:

    predict(stages, method, inputs, target)              bytes that each stage will hold, from shapes
    measure(stages, method, inputs, target)              seconds and message sizes of each stage, timed now
    balance(stages, method, inputs, target, devices)     the partition whose slowest device is fastest

These three need torch and are imported on first use. The modules that only do arithmetic do not import torch.
"""

import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from petra_core.prediction.measuring import balance, measure
    from petra_core.prediction.memory import predict

__all__ = ["balance", "measure", "predict"]

_LATER = {"balance": "measuring", "measure": "measuring", "predict": "memory"}


def __getattr__(name: str) -> Any:
    """Import a public function on first use."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return pkgutil.resolve_name(f"{__name__}.{_LATER[name]}:{name}")
