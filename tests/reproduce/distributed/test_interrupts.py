"""Test which signals are only recorded, and which end the process."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from reproduce.distributed import interrupts
from reproduce.distributed.interrupts import SIGNALS, Interrupt, ignore_signals


def test_signals_are_recorded_and_sigterm_may_repeat() -> None:
    """Under Slurm a process of torchrun gets SIGTERM from both. The second one used to end it while it saved."""
    before = signal.getsignal(signal.SIGTERM)
    with Interrupt() as interrupt:
        assert (interrupt.received, interrupt.exit_code) == (0, 143), "stopped by another process: as after SIGTERM"
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
        assert interrupt.received == signal.SIGTERM
        assert interrupt.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.fixture
def default_ctrl_c() -> Iterator[None]:
    """Set Python's handlers of SIGINT and SIGHUP, which background jobs of a shell and `nohup` ignore."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: lambda *_: None}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("default_ctrl_c")
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_second_ctrl_c_raises_keyboard_interrupt(first: signal.Signals) -> None:
    """Ctrl-C after a recorded signal raises KeyboardInterrupt."""
    with Interrupt() as interrupt:
        signal.raise_signal(first)
        signal.raise_signal(signal.SIGTERM)  # changes nothing
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert (interrupt.received, interrupt.exit_code) == (first, 128 + first)


def test_processes_started_while_ignoring_inherit_it() -> None:
    """Without Python's handler, which would end it with a traceback on Ctrl-C during its imports."""
    before = [signal.getsignal(number) for number in SIGNALS]
    script = "import signal; print([signal.getsignal(n) is signal.SIG_IGN for n in (signal.SIGINT, signal.SIGTERM)])"
    with ignore_signals():
        signal.raise_signal(signal.SIGTERM)
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[True, True]"
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_waiting_run_is_ended_after_the_grace_period(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run may wait for files of a server that does not answer. It does not check the signal, but renews its lease."""
    monkeypatch.setattr(interrupts, "GRACE_SECONDS", 0.2)
    before = signal.getsignal(signal.SIGALRM)
    with Interrupt():
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit) as ended:
            threading.Event().wait(60)
    assert ended.value.code == 143
    assert "resumes from the last checkpoint" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGALRM) is before


def test_run_that_checks_signals_has_unlimited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that reads the received signal is not ended after the grace period."""
    monkeypatch.setattr(interrupts, "GRACE_SECONDS", 0.1)
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGTERM)
        assert interrupt.received == signal.SIGTERM
        time.sleep(0.5)
