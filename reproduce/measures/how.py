"""How a cell is run, as against what it is: chosen on the command line, and handed on whole to whoever trains it."""

from dataclasses import dataclass
from pathlib import Path

from reproduce.cells.catalogue import DEFAULT_ROOT

#: Number of CUDA streams: one for each branch of a tick, so that no two branches wait for each other.
BRANCHES = "branches"
#: What torch.compile compiles: the modules of the stages, or all operations of recorded steps.
MODULES, STEPS = "modules", "steps"


@dataclass(frozen=True, kw_only=True)
class How:
    """Nothing here changes a result beyond rounding."""

    checkpoint_seconds: float = 300.0  # from one checkpoint to the next, besides those at the ends of epochs
    data_root: Path = DEFAULT_ROOT
    data_workers: int = 1  # threads or processes that decode images; the batches do not depend on it
    cuda_graphs: int | str = 0  # streams of steps as CUDA graphs (`devices.captured`), or BRANCHES; 0: plain steps
    sharing: int = 1  # workers of the CUDA device, which share its memory and its time
    compiled: str = ""  # MODULES (`petra_core.devices.compiled`), STEPS (`devices.compiled_steps`), or nothing

    @property
    def compiled_as_recorded(self) -> bool | str:
        """What environments of records say: True for MODULES, from when there was nothing else to compile."""
        return self.compiled == MODULES or self.compiled or False
