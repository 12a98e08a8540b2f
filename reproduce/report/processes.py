"""Start processes that draw sections of the report next to this one, and share the exhibits among all of them."""

import atexit
import gc
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.sharedctypes import SynchronizedArray

SECTIONS = "reproduce.report.sections"  # module that helpers import while they wait for the records


@dataclass(frozen=True)
class Queue:
    """Places in an order of work that several processes take from both ends.

    Attributes:
        taken: Number of places taken from the front and from the back.

    """

    taken: "SynchronizedArray[int]"

    def places(self, length: int, *, last: bool) -> Iterator[int]:
        """Yield places that no other process has taken, until all `length` places are taken.

        Args:
            length: Number of places.
            last: Whether to take the last remaining place each time instead of the first.

        """
        while True:
            with self.taken.get_lock():
                if self.taken[0] + self.taken[1] >= length:
                    return
                place = self.taken[last]
                self.taken[last] += 1
            yield length - 1 - place if last else place


@dataclass(frozen=True)
class Helpers:
    """Processes that help this one.

    Attributes:
        pool: The processes.
        number: Number of processes.
        queue: Places in the common order of work.

    """

    pool: ProcessPoolExecutor
    number: int
    queue: Queue


@contextmanager
def disable_gc() -> Iterator[None]:
    """Disable the cyclic garbage collector, which took a third of the time.

    Records and simulations create millions of small objects without cycles. The figures keep only 60 MB in total.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def start(number: int) -> Iterator[Helpers]:
    """Start `number` processes, which immediately import what they need, and end them with the context."""
    context = multiprocessing.get_context("spawn")  # a forked child of a process with threads may deadlock
    queue = Queue(context.Array("i", [0, 0]))
    with ProcessPoolExecutor(max(1, number), context, _begin, (queue.taken, os.getpid())) as pool:
        for _ in range(number):
            pool.submit(os.getpid)  # a pool starts a process only when it has a task
        yield Helpers(pool, number, queue)


queue_of_helper: Queue  # set in a helper process


def _begin(taken: "SynchronizedArray[int]", parent: int) -> None:
    global queue_of_helper
    queue_of_helper = Queue(taken)
    gc.disable()  # see `disable_gc`
    atexit.register(os._exit, 0)  # to free all objects takes seconds, and the parent waits for the end

    def end_with_the_parent() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)  # the parent was killed, and this process would wait for its pipe without end

    threading.Thread(target=end_with_the_parent, daemon=True).start()
    import_module(SECTIONS)
