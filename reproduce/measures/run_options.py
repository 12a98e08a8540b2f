"""Define how cells are run: options that change results only by rounding, and are not part of a cell.

`run` and `train` have a command-line option for every described field. The subclasses add those that only one of them
has: `reproduce.running.grid_options.GridOptions` and `reproduce.commands.train_options.TrainOptions`.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from reproduce.cells.catalogue import DEFAULT_ROOT
from reproduce.cells.setting import HOW, WHERE, setting

#: Value of `RunOptions.cuda_graphs` for one CUDA stream per branch of a tick: no two branches wait for each other.
BRANCHES = "branches"
#: Values of `RunOptions.compiled`: torch.compile compiles the modules of the stages, or all operations of CUDA graphs.
MODULES, STEPS = "modules", "steps"
DATA_WORKERS = 16  # maximum per process by default: enough for a fast GPU on ImageNet


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options for running cells.

    Several threads add in another order, which changes the last bits of a result. So the default number of threads is
    the same on every machine and for every number of processes.

    Attributes:
        threads: Threads of each process. More can be faster for wide networks on idle cores. Changing the number
            changes results in the last bits.
        data_root: Folder of prepared data sets.
        data_workers: Decoding threads or processes of each process. The batches do not depend on it.
        checkpoint_minutes: Minutes between checkpoints within an epoch.
        cuda_graphs: Record a step once, if possible, and let the GPU replay it over this many CUDA streams. Without a
            number, use one stream per branch of the step; 0 runs plain steps.
        compiled: Compile with torch.compile: the modules of the stages, or all operations of recorded steps (with
            --cuda-graphs). Rounds differently, and takes a minute or more at the start.
        retry_failed: Run failed cells again, from their last good checkpoint: those that diverged or ran out of memory.
        sharing: Number of workers that share the memory and time of the CUDA device.

    Raises:
        ValueError: If options contradict each other.

    """

    threads: int = setting(WHERE, default=1, least=1, most=1024)
    data_root: Path = setting(WHERE, default=DEFAULT_ROOT)
    data_workers: int = setting(WHERE, default=0, least=1, rule=f"cores / processes, at most {DATA_WORKERS}")
    checkpoint_minutes: float = setting(HOW, default=5.0, minutes=True, least=0)
    cuda_graphs: int | str = setting(HOW, default=0, bare=BRANCHES, metavar="[STREAMS]")
    compiled: str = setting(
        HOW,
        default="",
        flags=("--compile",),
        choices=(MODULES, STEPS),
        bare=MODULES,
        metavar="[modules|steps]",
        rule="nothing",
    )
    retry_failed: bool = setting(HOW, default=False)
    sharing: int = 1

    def __post_init__(self) -> None:
        if self.compiled == STEPS and not self.cuda_graphs:
            raise ValueError("--compile steps requires recorded steps: add --cuda-graphs")

    def share_cores(self, cores: int, processes: int) -> Self:
        """Return the options of each of `processes` processes on a machine: its share of the cores decodes images."""
        return replace(self, data_workers=self.data_workers or max(1, min(DATA_WORKERS, cores // processes)))

    @property
    def compiled_as_recorded(self) -> bool | str:
        """Value for a record's environment. For MODULES it is True, as in records from before STEPS existed."""
        return self.compiled == MODULES or self.compiled or False
