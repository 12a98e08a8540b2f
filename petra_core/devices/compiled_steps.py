"""Compile the operations of recorded steps: one function per stage, which includes the operations of the engine.

`captured` records the kernels of a step as Python launches them. Here Python runs each step of the round once more, and
the operations are logged by stage (`petra_core.devices.operations`). In lockstep no stage waits for another within a
step, so forward, reconstruction, backward and update of a stage form one branch. Each branch becomes one function and
is compiled. The steps of a round run the same operations on different memory, so they share the compiled functions.
The recordings then contain calls of these functions. The sums of the coupling, casts of weights and messages, copies to
static buffers and the update by SGD are fused with the kernels that compute their arguments.

With less staleness than in lockstep, and under methods that process one micro-batch at a time, stages wait for one
another within a step. Then the forward and the backward of a stage are two branches, and one stream runs all branches.

Compiled functions round differently from the plain step: losses agree up to rounding, not bitwise. If the operations of
a step cannot be compiled, the plain step is recorded, as in `captured`, and `uncompiled` contains the reason.
"""

import copy
from collections.abc import Callable, Hashable, Sequence
from functools import partial

import torch
from torch import Tensor, fx

from petra_core.devices.captured import CapturedSteps, OverStreams, Record, cuda_device, fork, recorder, waiting
from petra_core.devices.execution import Act, Sent, SequentialExecutor
from petra_core.devices.operations import BranchFunction, OperationLog, branch_functions, key_of
from petra_core.devices.overlapped import get_stream
from petra_core.pipeline import Pipeline
from petra_core.staleness import Action, Kind
from petra_core.worker import Worker

Function = Callable[..., Sequence[Tensor]]
#: Compiles a graph into an equivalent function, given example inputs.
Compiler = Callable[[fx.GraphModule, Sequence[Tensor]], Function]


def inductor(module: fx.GraphModule, inputs: Sequence[Tensor]) -> Function:
    """Compile with Inductor, which launches independent kernels together where it can."""
    del inputs  # Inductor compiles at the first call
    compiled: Function = torch.compile(module, dynamic=False, fullgraph=True, options={"combo_kernels": True})
    return compiled


class _ByBranch(SequentialExecutor):
    """Executor that runs one action after the other and logs the operations of each under its branch."""

    def __init__(self, log: OperationLog, *, by_stage: bool) -> None:
        self._log, self._by_stage = log, by_stage

    def run(self, act: Act, worker: Worker, action: Action, sent: Sent) -> None:
        self._log.branch = worker.index if self._by_stage else (worker.index, action.kind is Kind.FORWARD)
        try:
            super().run(act, worker, action, sent)
        finally:
            self._log.branch = "after"


class CompiledSteps(CapturedSteps):
    """Runner of a pipeline's steps from recordings of compiled functions: use `step`, not `pipeline.step`.

    It differs from `CapturedSteps` only in what it records. Before the round of recordings, each of its steps is logged
    once.

    Args:
        pipeline: As for `CapturedSteps`.
        record: As for `CapturedSteps`.
        compiler: Compiles the function of a branch.
        executor: As for `CapturedSteps`. Its streams are those of the branches of a step, which then must not wait for
            one another. Without streams the branches run one after the other.

    Attributes:
        uncompiled: Why the plain step is recorded; None while nothing has failed.

    """

    uncompiled: str | None = None

    def __init__(
        self, pipeline: Pipeline, record: Record, compiler: Compiler, executor: SequentialExecutor | None = None
    ) -> None:
        super().__init__(pipeline, record, executor)
        self._compiler = compiler
        self._stages_work_alone = _stages_work_alone(pipeline)
        self._compiled: dict[Hashable, Function] = {}
        self._calls: dict[int, list[tuple[Function, BranchFunction]]] = {}  # by recording

    def prepare(self, phase: int) -> None:
        """Run the step of a phase: compile its operations in the first round, and record the functions in the second.

        Args:
            phase: Number of the step modulo `period`.

        """
        if self.uncompiled:
            super().prepare(phase)
        elif phase in self._calls:
            self.record_work(phase, partial(self._run, self._calls.pop(phase)))
        else:
            self.run_by_python(phase, partial(self._compile, phase))

    def _compile(self, phase: int) -> None:
        """Run a step by Python, and compile its operations."""
        log = OperationLog("before")
        with log:
            self.step_in_buffers(_ByBranch(log, by_stage=self._stages_work_alone))
        try:
            self._calls[phase] = [(self._function(branch), branch) for branch in branch_functions(log)]
        except Exception as error:  # compilers raise anything; the plain step can still be recorded
            self.uncompiled = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            self._calls.clear()
            self._compiled.clear()

    def _function(self, branch: BranchFunction) -> Function:
        """Return the compiled function of a branch. Phases share it: they differ only in the memory that they use."""
        if (key := key_of(branch)) not in self._compiled:
            function = self._compiler(branch.module, branch.inputs)
            # This call compiles the function and loads its kernels, which is not possible during a capture.
            with torch.no_grad():
                function(*copy.deepcopy(branch.inputs))  # copies share memory where the inputs do
            self._compiled[key] = function
        return self._compiled[key]

    @torch.no_grad()
    def _run(self, calls: Sequence[tuple[Function, BranchFunction]]) -> None:
        """Call the functions of a step, each in the stream of its branch, after those whose results it reads."""
        if not (streams := self.executor.streams):
            for function, branch in calls:
                _call(function, branch)
            return
        ends: dict[Hashable, torch.cuda.Event] = {}
        with fork(streams):
            for place, (function, branch) in enumerate(calls):
                stream = streams[place % len(streams)]
                with torch.cuda.stream(stream):
                    for source in branch.after:
                        stream.wait_event(ends[source])
                    _call(function, branch)
                    ends[branch.branch] = stream.record_event()


def _call(function: Function, branch: BranchFunction) -> None:
    for there, here in zip(branch.outputs, function(*branch.inputs), strict=True):
        there.copy_(here)


def _stages_work_alone(pipeline: Pipeline) -> bool:
    """Return whether no stage waits for another within a step."""
    return pipeline.method.pipelined and not any(waiting(pipeline.staleness))


def cuda(pipeline: Pipeline, compiler: Compiler = inductor) -> CompiledSteps:
    """Return a runner that records CUDA graphs of compiled functions. In lockstep each branch has a stream.

    Raises:
        UnrecordableError: If the stages are not all on one CUDA device, or the pipeline cannot be recorded.

    """
    device = cuda_device(pipeline)
    executor = None
    if _stages_work_alone(pipeline):
        streams = [get_stream(device, 1 + n) for n in range(2 * len(pipeline.stages) - 1)]
        executor = OverStreams(streams, pipeline.staleness)
    return CompiledSteps(pipeline, recorder(device), compiler, executor)
