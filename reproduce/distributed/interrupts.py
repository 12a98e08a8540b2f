"""Turn SIGINT, SIGTERM and SIGHUP into a flag that is checked between ticks.

By default, Ctrl-C raises an exception at an arbitrary line. In the middle of a tick, this would leave the stages in an
inconsistent state. Here the first signal only sets a flag. A second Ctrl-C has its usual effect and ends the process
without saving.

Repeated SIGTERM does not end the process, because it may still have time to save: Slurm sends SIGTERM to every process
of a job step, and torchrun, which is one of these processes, forwards it. Use SIGKILL to end a process immediately.

A run that is blocked, for example by a file server that does not respond, cannot check the flag. If the flag is not
checked within `GRACE_SECONDS` and a tenth of that time, the process exits at the next line of Python. The run can be
resumed from its last checkpoint.
"""

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # SIGHUP is sent when a terminal is closed
GRACE_SECONDS = 120.0  # timeout for one tick; the slowest ticks on a CPU take a minute


class Interrupt:
    """Context manager in which SIGINT, SIGTERM and SIGHUP only set `received`. A later SIGINT has its usual effect.

    If `received` is not read within `GRACE_SECONDS` and a tenth of that time after a signal, the main thread raises
    SystemExit.
    """

    def __init__(self) -> None:
        self._received = 0
        self._asked = False  # whether `received` was read after the signal
        self._late = False  # whether `GRACE_SECONDS` have passed
        self._before: dict[int, Any] = {}

    @property
    def received(self) -> int:
        """Number of the first signal, 0 if there was none."""
        if self._received and not self._asked:
            self._asked = True
            signal.setitimer(signal.ITIMER_REAL, 0)
        return self._received

    @property
    def exit_code(self) -> int:
        """Exit code for the shell: 128 + number of the signal, such as 130 after Ctrl-C.

        A process that stopped at another process's request has received no signal. It exits as after SIGTERM.
        """
        return 128 + (self.received or signal.SIGTERM)

    def __enter__(self) -> "Interrupt":
        # `nohup` makes a process ignore SIGHUP.
        handled = [n for n in SIGNALS if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._note) for number in handled}
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
        if not self._late:  # one long call into a library may have ended just now; allow the run to check the flag
            self._late = True
            signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS / 10)
        elif not self._asked:
            print(
                f"stopped without saving: the run did not respond for {GRACE_SECONDS:.0f} s after the signal; the same "
                f"command resumes from the last checkpoint",
                file=sys.stderr,
                flush=True,
            )
            raise SystemExit(128 + self._received)


@contextlib.contextmanager
def ignore_signals() -> Iterator[None]:
    """Ignore these signals in this context, and in processes that are started in it.

    Ctrl-C and Slurm send signals to every process of a group. A worker process only obeys its parent. It could ignore
    the signals itself, but only after its imports, which take seconds.
    """
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
