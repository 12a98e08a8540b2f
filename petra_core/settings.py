"""Define the settings of a pipeline that affect its results, except for the stages, optimizers and data.

`Pipeline` makes them from its keyword arguments. Workers, predictions and checkpoints read them. This module does not
need torch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from petra_core import staleness as staleness_of
from petra_core.errors import check_int
from petra_core.methods import Method
from petra_core.update_rule import UpdateRule, check_rules

if TYPE_CHECKING:  # keep this module importable without torch
    import torch

UNCORRECTED = "uncorrected"  # entry of a state without delay compensation


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a pipeline.

    Attributes:
        method: One of `petra_core.methods`.
        accumulation: Number of backwards per update of a stage, k.
        staleness: Staleness of each stage, as given; None for the default of the method (`vector`).
        delay: Rules that compensate for delay, in the order of their hooks.
        autocast: Dtype of automatic mixed precision inside the stages; None for the caller's autocast context.
        seed: Seed of the stages' random streams; None for torch's global generators.

    Raises:
        TypeError: If a setting has the wrong type.
        ValueError: If a setting is out of range, or two settings contradict each other.

    """

    method: Method
    accumulation: int = 1
    staleness: Sequence[int] | None = None
    delay: Sequence[UpdateRule] = ()
    autocast: "torch.dtype | None" = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.method, Method):
            raise TypeError(
                f"method is {self.method!r}, a {type(self.method).__name__}; give a value such as methods.PETRA, or "
                f"methods.by_name('petra')"
            )
        check_int("accumulation", self.accumulation, 1)
        if self.seed is not None:
            check_int("seed", self.seed, 0)
        if isinstance(self.staleness, Iterable) and not isinstance(self.staleness, str):  # `vector` refuses others
            object.__setattr__(self, "staleness", tuple(self.staleness))  # later changes of a list have no effect
        object.__setattr__(self, "delay", check_rules(self.delay, self.method))
        if self.autocast is not None:
            import torch

            if self.autocast not in (torch.bfloat16, torch.float16):
                raise ValueError(f"autocast must be torch.bfloat16, torch.float16 or None, got {self.autocast!r}")

    def vector(self, stages: int) -> tuple[int, ...]:
        """Return the staleness of every stage of a pipeline with this number of stages.

        Raises:
            ValueError: If the given staleness is not a vector of the method.

        """
        return staleness_of.resolve(self.method, stages, self.accumulation, self.staleness)

    def as_state(self, stages: int) -> dict[str, Any]:
        """Return the settings that a checkpoint names, as plain data."""
        return {
            "method": self.method.name,
            "accumulation": self.accumulation,
            "staleness": list(self.vector(stages)),
            "delay": ", ".join(map(str, self.delay)) or UNCORRECTED,
            "autocast": None if self.autocast is None else str(self.autocast),
        }
