"""Ctrl-C as an order, not as an exception somewhere in the middle.

Python turns Ctrl-C into an exception at whatever line it happens to hit: in the middle of a tick it leaves stages that
no longer fit together. Here the first signal is noted and looked at between ticks; a second Ctrl-C has its usual
effect, for those who cannot wait.

SIGTERM may come more than once, and still means that there is time to save: Slurm sends it to every process of a job
step, and torchrun, which is one of them, passes it on. Who cannot wait has SIGKILL.
"""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Context in which SIGINT or SIGTERM only sets `received`; a SIGINT after that does what it always does.

    `received` is the number of the first signal, 0 if there was none.
    """

    def __init__(self) -> None:
        self.received = 0
        self._before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """What the shell expects of a process that a signal ended: 130 after Ctrl-C.

        A process that others told to stop has had none: as if it was SIGTERM.
        """
        return 128 + (self.received or signal.SIGTERM)

    def __enter__(self) -> "Interrupt":
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or number
        signal.signal(signal.SIGINT, self._before[signal.SIGINT])


@contextlib.contextmanager
def ignored() -> Iterator[None]:
    """Context in which SIGINT and SIGTERM do nothing; a process that is started in it ignores them from its birth.

    Ctrl-C and Slurm reach every process of a group. One that is told by another what to do could ignore them by itself,
    but only once it has imported what it needs, which takes seconds.
    """
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
