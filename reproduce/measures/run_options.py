"""Define execution options that change results only by rounding (checkpoint interval, workers, CUDA graphs)."""

from dataclasses import dataclass
from pathlib import Path

from reproduce.cells.catalogue import DEFAULT_ROOT

#: Value of `RunOptions.cuda_graphs` for one CUDA stream per branch of a tick: no two branches wait for each other.
BRANCHES = "branches"
#: Values of `RunOptions.compiled`: torch.compile compiles the modules of the stages, or all operations of CUDA graphs.
MODULES, STEPS = "modules", "steps"


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options for running a cell.

    Attributes:
        checkpoint_seconds: Time between two checkpoints, in addition to those at the ends of epochs.
        data_root: Folder of prepared data sets.
        data_workers: Number of threads or processes that decode images. The batches do not depend on it.
        cuda_graphs: Number of CUDA streams of steps as CUDA graphs (`petra_core.devices.captured`), or BRANCHES. With
            0, no CUDA graphs are used.
        sharing: Number of workers that share the memory and time of the CUDA device.
        compiled: MODULES (`petra_core.devices.compiled`), STEPS (`petra_core.devices.compiled_steps`), or "".

    """

    checkpoint_seconds: float = 300.0
    data_root: Path = DEFAULT_ROOT
    data_workers: int = 1
    cuda_graphs: int | str = 0
    sharing: int = 1
    compiled: str = ""

    @property
    def compiled_as_recorded(self) -> bool | str:
        """Value for a record's environment. For MODULES it is True, as in records from before STEPS existed."""
        return self.compiled == MODULES or self.compiled or False
