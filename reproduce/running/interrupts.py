"""Ctrl-C as an order, not as an exception somewhere in the middle.

Python turns Ctrl-C into an exception at whatever line it happens to hit: in the middle of a tick it leaves stages that
no longer fit together. Here the first signal is noted and looked at between ticks; a second Ctrl-C has its usual
effect, for those who cannot wait.

SIGTERM may come more than once, and still means that there is time to save: Slurm sends it to every process of a job
step, and torchrun, which is one of them, passes it on. Who cannot wait has SIGKILL.

A run that waits, such as for files of a server that does not answer, does not look at the signal. If nobody has asked
for it within `GRACE_SECONDS`, the process ends at the next line of Python, and goes on from its last checkpoint.
"""

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the last: a terminal that is closed
GRACE_SECONDS = 120.0  # for one tick, at the end of which a run asks; the slowest on a CPU take a minute


class Interrupt:
    """Context in which SIGINT, SIGTERM or SIGHUP only sets `received`; a SIGINT after that does what it always does.

    If nobody asks for `received` in the `GRACE_SECONDS` after a signal, the main thread leaves by SystemExit.
    """

    def __init__(self) -> None:
        self._received = 0
        self._asked = False  # since the signal came
        self._late = False  # whether the time is over
        self._before: dict[int, Any] = {}

    @property
    def received(self) -> int:
        """The number of the first signal, 0 if there was none."""
        if self._received and not self._asked:
            self._asked = True
            signal.setitimer(signal.ITIMER_REAL, 0)
        return self._received

    @property
    def exit_code(self) -> int:
        """What the shell expects of a process that a signal ended: 130 after Ctrl-C.

        A process that others told to stop has had none: as if it was SIGTERM.
        """
        return 128 + (self.received or signal.SIGTERM)

    def __enter__(self) -> "Interrupt":
        heeded = [n for n in SIGNALS if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]  # by `nohup`
        self._before = {number: signal.signal(number, self._note) for number in heeded}
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._leave)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self._received:
            self._received = number
            signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
        signal.signal(signal.SIGINT, self._before[signal.SIGINT])

    def _leave(self, number: int, frame: FrameType | None) -> None:
        if not self._late:  # one call into a library may have taken all the time: then it is asked for now
            self._late = True
            signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS / 10)
        elif not self._asked:
            print(
                f"stopped without saving: nothing moved for {GRACE_SECONDS:.0f} s after the signal; the same command "
                f"goes on from the last checkpoint",
                file=sys.stderr,
                flush=True,
            )
            raise SystemExit(128 + self._received)


@contextlib.contextmanager
def ignored() -> Iterator[None]:
    """Context in which these signals do nothing; a process that is started in it ignores them from its birth.

    Ctrl-C and Slurm reach every process of a group. One that is told by another what to do could ignore them by itself,
    but only once it has imported what it needs, which takes seconds.
    """
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
