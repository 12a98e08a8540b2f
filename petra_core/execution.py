"""Executors run the actions of a step: sequentially, or PaReprop's reconstruction concurrently with a backward.

Reversible backpropagation evaluates every block once more than backpropagation, and does so while nothing else happens:
the device differentiates block i, then reconstructs block i - 1, then differentiates it. But a reconstruction needs
only the input that was reconstructed one block higher, not its gradient (arXiv 2306.09342). So PAREPROP does the two
together:

    R2 beside F3 B3 U3  |  R1 beside B2 U2  |  R0 beside B1 U1  |  B0 U0

The stage below the head begins when the head does, with its own output, which it has kept; the others with what the R
above has sent. The order in which the two really run does not matter: they belong to different stages, and a stage's
results depend on its actions and on the messages that arrived before. Two graphs are alive at most, that of the B and
that of the R.

On the CPU the reconstruction runs in a second thread. PyTorch leaves Python's lock while it computes, so both compute
at once, each thread with a team of `torch.get_num_threads()`: half as many as the machine has cores is what makes a
fair use of it. What PyTorch keeps for each thread is carried over: autocast, and the size of the team, which a thread
would keep from its first computation on. (Gradients are switched on where a graph is made.) Random numbers have one
generator in the whole process, and replaying dropout puts it back and forth, so a reconstruction that draws is done
before the backward, not beside it; nothing else is different.

On a GPU one thread is enough, since kernels are only enqueued: stage j has its work put into stream j mod 2, so that
neighbours are in different ones, and autograd puts the kernels of a backward where those of its graph were. Before the
two actions the two streams wait for the caller's, and after them the caller's waits for both; the host waits for
nothing. That also keeps memory from being used again too early, which the allocator would allow as soon as the host has
let go of a tensor: what one of the two lets go of may have been made in the other stream, but there nothing more is
enqueued before both are done, since an R comes before the B beside it.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch
from torch import Tensor

from petra_core.messages import Message
from petra_core.methods import Method
from petra_core.staleness import Action, Kind
from petra_core.worker import Worker

__all__ = ["Act", "OverlappedExecutor", "Sent", "SequentialExecutor", "executor_of", "shared_stream"]

Sent = list[tuple[int, Message]]  # to which stage, what
Act = Callable[[Worker, Action, Sent], Tensor | None]


def executor_of(method: Method, *, one_process: bool) -> "SequentialExecutor":
    """Return the executor of a method.

    Args:
        method: Method of the pipeline.
        one_process: Whether all stages of the pipeline are in this process.

    Raises:
        ValueError: If the method overlaps, and the stages are in several processes.

    """
    if not method.overlapped:
        return SequentialExecutor()
    if not one_process:
        raise ValueError(
            f"{method} overlaps the work of stages of one process, and these are in several; use PETRA there, or "
            f"REVERSIBLE_BACKPROPAGATION, which has the same gradients"
        )
    return OverlappedExecutor()


class SequentialExecutor:
    """Run one action after the other."""

    def together(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for actions that may run concurrently. They have finished when the context ends."""
        return contextlib.nullcontext()

    def run(self, act: Act, worker: Worker, action: Action, sent: Sent) -> Tensor | None:
        """Run an action, and name it in a note of an exception.

        Args:
            act: Function that does the action.
            worker: The worker of the stage.
            action: The action.
            sent: List that receives the messages to stages of this process.

        Returns:
            The result of `act`: the loss, for the head's forward.

        """
        try:
            return act(worker, action, sent)
        except Exception as error:
            error.add_note(f"in {action.kind.name.lower()} {action.number} of stage {worker.index}")
            raise

    def waiting(self, worker: Worker, step: int) -> contextlib.AbstractContextManager[None]:
        """Return a context for the time that a worker waits for messages of other processes.

        Args:
            worker: The worker.
            step: Number of the step.

        """
        return contextlib.nullcontext()


class OverlappedExecutor(SequentialExecutor):
    """Run a reconstruction concurrently with the other actions of its context."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._beside: Future[Tensor | None] | None = None
        self._forked: set[torch.device] = set()  # devices whose streams have work in this context

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        try:
            yield
            if self._beside is not None:
                self._beside.result()
        finally:
            if self._beside is not None:
                wait([self._beside])  # after an exception, too, so that nothing runs after the context
                self._beside = None
            for device in self._forked:
                for number in (0, 1):
                    torch.cuda.current_stream(device).wait_stream(shared_stream(device, number))
            self._forked.clear()

    def run(self, act: Act, worker: Worker, action: Action, sent: Sent) -> Tensor | None:
        if worker.device.type == "cuda":
            with torch.cuda.stream(self._stream(worker)):
                return super().run(act, worker, action, sent)
        if action.kind is not Kind.RECONSTRUCT or worker.draws:
            return super().run(act, worker, action, sent)
        precision, team = _autocast_of_this_thread(worker.device), torch.get_num_threads()

        def beside() -> Tensor | None:
            if torch.get_num_threads() != team:
                torch.set_num_threads(team)
            with precision:
                return super(OverlappedExecutor, self).run(act, worker, action, sent)

        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, thread_name_prefix="petra-reconstruction")
        self._beside = self._threads.submit(beside)
        return None

    def _stream(self, worker: Worker) -> torch.cuda.Stream:
        """Return the stream of a worker. Its first work in a context waits for the caller's earlier work."""
        device = worker.device
        if device not in self._forked:
            self._forked.add(device)
            for number in (0, 1):
                shared_stream(device, number).wait_stream(torch.cuda.current_stream(device))
        return shared_stream(device, worker.index % 2)


@functools.cache
def shared_stream(device: torch.device, number: int) -> torch.cuda.Stream:
    """Return the n-th CUDA stream of a device. All pipelines share it, because cuBLAS keeps memory for each stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _autocast_of_this_thread(device: torch.device) -> torch.autocast:
    """Return the autocast setting of this thread, as a context for another thread."""
    return torch.autocast(
        device.type,
        dtype=torch.get_autocast_dtype(device.type),
        enabled=torch.is_autocast_enabled(device.type),
        cache_enabled=torch.is_autocast_cache_enabled(),
    )
