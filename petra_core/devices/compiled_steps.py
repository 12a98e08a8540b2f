"""Recorded steps whose operations are compiled: one function for each stage, fused across all that the engine does.

`captured` records the kernels of a step as Python launches them. Here Python does each step of the round once more,
and its operations are logged (`petra_core.devices.operations`), each under its stage. In lockstep no stage waits for
another within a step, so forward, reconstruction, backward and update of a stage are one branch. Each branch becomes
one function and is compiled; the steps of a round do the same operations on other memory, so they share the compiled
functions. What is recorded then are calls of these functions. The sums of the coupling, casts of weights and messages,
copies to fixed buffers and the update by SGD are fused with the kernels that make their arguments.

With less staleness than in lockstep, and under methods that let one micro-batch pass at a time, stages wait for one
another within a step. There the forward and the backward of a stage are two branches, and one stream runs all branches.

Compiled functions round differently from the plain step: losses agree to rounding, not to the bit. Where the operations
of a step cannot be compiled, the plain step is recorded, as `captured` does, and `uncompiled` says why.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from petra_core.devices.captured import (
    CapturedSteps,
    OverStreams,
    Record,
    cuda_device,
    recorder,
    waiting,
)
from petra_core.devices.operations import BranchFunction, OperationLog, branch_functions, key_of
from petra_core.execution import Act, Sent, SequentialExecutor, shared_stream
from petra_core.pipeline import Pipeline
from petra_core.staleness import Action, Kind
from petra_core.worker import Worker

__all__ = ["CompiledSteps", "Compiler", "cuda", "inductor"]

Function = Callable[..., Sequence[Tensor]]
#: Turns a graph into what computes the same, given example inputs.
Compiler = Callable[[fx.GraphModule, Sequence[Tensor]], Function]


def inductor(module: fx.GraphModule, inputs: Sequence[Tensor]) -> Function:
    """Compile by torch's Inductor; kernels that do not depend on one another are launched as one where it can."""
    del inputs  # it compiles at the first call
    compiled: Function = torch.compile(module, dynamic=False, fullgraph=True, options={"combo_kernels": True})
    return compiled


class _ByBranch(SequentialExecutor):
    """Do one action after the other, and log the operations of each under its branch."""

    def __init__(self, log: OperationLog, *, by_stage: bool) -> None:
        self._log, self._by_stage = log, by_stage

    def run(self, act: Act, worker: Worker, action: Action, sent: Sent) -> Tensor | None:
        self._log.branch = worker.index if self._by_stage else (worker.index, action.kind is Kind.FORWARD)
        try:
            return super().run(act, worker, action, sent)
        finally:
            self._log.branch = "after"


class CompiledSteps(CapturedSteps):
    """Steps of a pipeline from recordings of compiled functions: use `step` in place of `pipeline.step`.

    See `CapturedSteps`, which it is but for what is recorded. The round of recordings is preceded by one in which each
    of its steps is logged.

    Args:
        pipeline: As for `CapturedSteps`.
        record: As for `CapturedSteps`.
        compiler: Compiles the function of a branch.
        streams: CUDA streams over which the branches of a step are spread, which only branches that do not wait for one
            another allow; none: they run one after the other.
        executor: As for `CapturedSteps`, for steps that cannot be compiled.

    Attributes:
        uncompiled: Why the plain step is recorded; None while nothing has failed.

    """

    uncompiled: str | None = None
    logs = True

    def __init__(
        self,
        pipeline: Pipeline,
        record: Record,
        compiler: Compiler = inductor,
        streams: Sequence["torch.cuda.Stream"] = (),
        executor: SequentialExecutor | None = None,
    ) -> None:
        super().__init__(pipeline, record, executor)
        self._compiler, self._streams = compiler, streams
        self._stages_work_alone = _stages_work_alone(pipeline)
        self._compiled: dict[Hashable, Function] = {}
        self._calls: dict[int, list[tuple[Function, BranchFunction]]] = {}  # of each recording

    @property
    def logged(self) -> dict[int, list[BranchFunction]]:
        """The functions of each step that is logged and not yet recorded, by its number in the round."""
        return {number: [branch for _, branch in calls] for number, calls in self._calls.items()}

    @property
    def compiled(self) -> int:
        """The number of compiled functions."""
        return len(self._compiled)

    def log(self, phase: int, step: Callable[[SequentialExecutor], None]) -> None:
        """Take a step by Python, and make functions of its operations."""
        if self.uncompiled:
            super().log(phase, step)
            return
        log = OperationLog("before")
        with log:
            step(_ByBranch(log, by_stage=self._stages_work_alone))
        try:
            self._calls[phase] = [(self._function(branch), branch) for branch in branch_functions(log)]
        except Exception as error:  # whatever a compiler raises, the step is done and can be recorded as it is
            self.uncompiled = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            self._calls.clear()
            self._compiled.clear()

    def work(self, phase: int) -> Callable[[], None] | None:
        """Return the calls of the functions of a phase, if it could be compiled."""
        return None if self.uncompiled else partial(self._run, self._calls.pop(phase))

    def _function(self, branch: BranchFunction) -> Function:
        """Compile the function of a branch, or find it: phases have the same operations on other memory."""
        key = key_of(branch)
        if key not in self._compiled:
            function = self._compiler(branch.module, branch.inputs)
            # Compiles it, and loads its kernels, which a device cannot do while it records.
            with torch.no_grad():
                function(*_copies(branch.inputs))
            self._compiled[key] = function
        return self._compiled[key]

    @torch.no_grad()
    def _run(self, calls: Sequence[tuple[Function, BranchFunction]]) -> None:
        """Call the functions of a step, each in the stream of its branch, after those whose results it reads."""
        if not self._streams:
            for function, branch in calls:
                _call(function, branch)
            return
        caller = torch.cuda.current_stream(self._streams[0].device)
        for stream in self._streams:
            stream.wait_stream(caller)
        ends: dict[Hashable, torch.cuda.Event] = {}
        for place, (function, branch) in enumerate(calls):
            stream = self._streams[place % len(self._streams)]
            with torch.cuda.stream(stream):
                for source in branch.after:
                    stream.wait_event(ends[source])
                _call(function, branch)
                ends[branch.branch] = stream.record_event()
        for stream in self._streams:
            caller.wait_stream(stream)


def _call(function: Function, branch: BranchFunction) -> None:
    for there, here in zip(branch.outputs, function(*branch.inputs), strict=True):
        there.copy_(here)


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of the tensors that share memory where these do."""
    storages: dict[int, Any] = {}
    copies = []
    for tensor in tensors:
        storage: Any = tensor.untyped_storage()
        if storage._cdata not in storages:
            storages[storage._cdata] = storage.clone()
        copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        place = tensor.storage_offset(), tensor.size(), tensor.stride()
        copies.append(copy.set_(storages[storage._cdata], *place))
    return copies


def _stages_work_alone(pipeline: Pipeline) -> bool:
    """Return whether within a step no stage waits for another one."""
    return pipeline.method.pipelined and not any(waiting(pipeline.staleness, pipeline.lags))


def cuda(pipeline: Pipeline, compiler: Compiler = inductor) -> CompiledSteps:
    """Return the pipeline's steps as CUDA graphs of compiled functions, a stream for each branch in lockstep.

    Raises:
        UnrecordableError: The stages are not all on one CUDA device, or the pipeline cannot be recorded.

    """
    device = cuda_device(pipeline)
    if pipeline.method.pipelined:
        pipeline.stagger()
    if not _stages_work_alone(pipeline):
        return CompiledSteps(pipeline, recorder(device), compiler)
    streams = [shared_stream(device, 1 + n) for n in range(2 * len(pipeline.stages) - 1)]
    executor = OverStreams(streams, pipeline.staleness, pipeline.lags)
    return CompiledSteps(pipeline, recorder(device), compiler, streams, executor)
