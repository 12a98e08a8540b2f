"""Execute the actions of a step with the overlap of PaReprop, in a second thread or in CUDA streams.

Reversible backpropagation evaluates every block once more than backpropagation, and the device does nothing else
meanwhile: it differentiates block i, then reconstructs block i - 1, then differentiates block i - 1. But a
reconstruction needs only the input that was reconstructed one block higher, not its gradient (arXiv 2306.09342).
PAREPROP therefore runs the reconstruction of a stage concurrently with the backward of the stage above:

    R2 with F3 B3 U3  |  R1 with B2 U2  |  R0 with B1 U1  |  B0 U0

The stage below the head starts its R together with the head, from the output that it has kept. Every other stage
starts from the input that the R of the stage above has sent. The order in which two concurrent actions run does not
matter, because they belong to different stages, and the results of a stage depend only on its actions and on the
messages that arrived before. At most two graphs exist at a time, one of the B and one of the R.

On the CPU the reconstruction runs in a second thread. PyTorch releases the GIL while it computes, so both threads
compute at the same time, each with `torch.get_num_threads()` intra-op threads; set that to half the number of cores.
Two settings are local to a thread and are copied to the second one: autocast, and the number of intra-op threads, which
a thread otherwise keeps from its first computation. (Gradients are enabled where a graph is recorded.) All threads of a
process share one generator of random numbers, whose state a replay of dropout replaces for a moment. A reconstruction
that draws random numbers therefore runs before the backward and not concurrently with it. Nothing else differs.

On a GPU one thread is enough, since kernels are only enqueued. Stage j uses stream j mod 2, so neighbouring stages use
different streams, and autograd runs the kernels of a backward on the stream that recorded its graph. Before the two
actions both streams wait for the caller's stream, and afterwards the caller's stream waits for both. The host does not
wait. This also prevents memory from being reused too early. The allocator allows reuse as soon as the host releases a
tensor, and a tensor that one action releases may have been allocated in the other stream. But nothing more is enqueued
there before both actions are done, since the R is enqueued before the B that runs concurrently.
"""

import contextlib
import contextvars
import functools
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch

from petra_core.devices.execution import Act, Sent, SequentialExecutor
from petra_core.staleness import Action, Kind
from petra_core.tape import autocast_dtype, mixed_precision
from petra_core.worker import Worker


class OverlappedExecutor(SequentialExecutor):
    """An executor that runs a reconstruction concurrently with the other actions of a context."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._reconstruction: Future[None] | None = None
        self._forked: set[torch.device] = set()  # devices on whose streams this context has enqueued work

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        try:
            yield
            if self._reconstruction is not None:
                self._reconstruction.result()
        finally:
            if self._reconstruction is not None:
                wait([self._reconstruction])  # also after an exception, so that nothing runs after the context
                self._reconstruction = None
            for device in self._forked:
                for number in (0, 1):
                    torch.cuda.current_stream(device).wait_stream(get_stream(device, number))
            self._forked.clear()

    def run(self, act: Act, worker: Worker, action: Action, sent: Sent) -> None:
        if worker.device.type == "cuda":
            with torch.cuda.stream(self._stream(worker)):
                super().run(act, worker, action, sent)
            return
        if action.kind is not Kind.RECONSTRUCT or any(part.draws for part in worker.parts):
            super().run(act, worker, action, sent)
            return
        intra_op_threads = torch.get_num_threads()
        precision = mixed_precision(worker.device, autocast_dtype(worker.device, None))  # of this thread

        def reconstruct() -> None:
            if torch.get_num_threads() != intra_op_threads:
                torch.set_num_threads(intra_op_threads)
            with precision:
                super(OverlappedExecutor, self).run(act, worker, action, sent)

        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, thread_name_prefix="petra-reconstruction")
        self._reconstruction = self._threads.submit(contextvars.copy_context().run, reconstruct)

    def _stream(self, worker: Worker) -> torch.cuda.Stream:
        """Return the stream of a worker. Its first work in a context waits for the caller's earlier work."""
        device = worker.device
        if device not in self._forked:
            self._forked.add(device)
            for number in (0, 1):
                get_stream(device, number).wait_stream(torch.cuda.current_stream(device))
        return get_stream(device, worker.index % 2)


@functools.cache
def get_stream(device: torch.device, number: int) -> torch.cuda.Stream:
    """Return the n-th CUDA stream of a device. All pipelines share it, because cuBLAS allocates memory per stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch gives it no types
