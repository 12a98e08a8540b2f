"""Start several processes that train one cell, watch over them, and start them again where one was lost.

torchrun starts processes too, and `torchrun -m reproduce train` works; but it starts all of them again after any
failure, also after one that will come back, such as a data set that is missing or a loss that is not finite. Here the
exit code says which it was: what a process knows to be final ends the run at once, and only a process that was killed,
or that lost another one, leads to a new start, from the last checkpoint.

When one fails all others lose it, and in R replicas R heads see the same loss that is not finite. One message is
enough: the first process that reports a failure leaves a mark, in a folder of this start or, under torchrun, in the
store at which its processes met, and the others are silent.

They meet in a file of the same folder, which nobody else may read, and which contains a secret that they share: torch's
usual way, a port, is open to the whole network, and somebody else may take it between the moment at which it was free
and its use.

A process that is still in a group when it ends leaves at once, without Python's own end: threads of torch.distributed
may wait for processes that are gone, and one that lets go of a tensor while Python ends aborts its process, so that a
failure that is final would be taken for a process that was killed.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import click

LOST = 75  # exit code of a process that lost another one (EX_TEMPFAIL of sysexits.h)
POLL_SECONDS = 0.1
GRACE_SECONDS = 5.0  # between the end of one process and the killing of the others
STORE_PATIENCE = timedelta(seconds=5)
MARKS = "PETRA_LAUNCH_MARKS"  # environment variable: the folder of the mark, and of the file in which all meet
SECRET = "secret"  # the file in that folder which only processes of this start can read
LAUNCHER = "PETRA_LAUNCHER"  # likewise: the number of the process that has started this one and watches over it


class Failure(click.ClickException):
    """The end of the command, with a message that only one of several processes shows."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Show the message, if this process is the first that reports a failure."""
        if first_to_report():
            super().show(file)


def first_to_report() -> bool:
    """Whether no other process has reported a failure yet; true of all where they have no place for a mark."""
    folder = os.environ.get(MARKS)
    if folder is None:
        return _first_in_store()
    try:
        Path(folder, "reported").touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        pass  # the disk is full, or the folder gone: better reported twice than not at all
    return True


def _first_in_store() -> bool:
    """Whether no other process has left its mark in torchrun's store, which its agent keeps beyond the processes."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return True
    import torch.distributed as dist

    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    try:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(  # type: ignore[attr-defined]  # documented, but not in the list of what torch exports
            address, port, is_master=False, timeout=STORE_PATIENCE
        )
        return int(store.add(f"petra/reported/{attempt}", 1)) == 1
    except (dist.DistError, RuntimeError, KeyError, ValueError):
        return True  # better reported twice than not at all


def launch(processes: int, arguments: Sequence[str], *, restarts: int) -> int:
    """Run `python -m reproduce` with `arguments` in that many processes, all again after one was killed; wait for them.

    Returns:
        The exit code: 0 if all ended well, else that of the first that did not; 128 + number of a signal.

    """
    with _signals() as received:
        for attempt in range(restarts + 1):
            with tempfile.TemporaryDirectory(prefix="petra-") as marks:
                Path(marks, SECRET).write_bytes(secrets.token_bytes(32))
                code = _attempt(processes, arguments, marks, received)
            if code != LOST:
                return code
            if received:  # as the last one ended
                return 128 + received[0]
            if attempt < restarts:
                again = f"({attempt + 1} of {restarts})"
                click.echo(f"a process was lost: all start again from the last checkpoint {again}", err=True)
    click.echo(f"a process was lost, and {restarts} new starts did not help", err=True)
    return 1


def launch_secret() -> bytes | None:
    """The secret that the processes of `launch` have in common; None in any other process."""
    folder = os.environ.get(MARKS)
    return None if folder is None else Path(folder, SECRET).read_bytes()


def launcher_gone() -> bool:
    """Whether this process is one of `launch`, and that was killed: nobody would stop it any more."""
    launcher = os.environ.get(LAUNCHER)
    return launcher is not None and int(launcher) != os.getppid()


def meeting_place() -> Any:
    """The store (torch.distributed.Store) at which the processes of `launch` find each other; None in any other."""
    folder = os.environ.get(MARKS)
    if folder is None:
        return None
    import torch.distributed as dist

    return dist.FileStore(  # type: ignore[attr-defined]  # documented, but not in the list of what torch exports
        str(Path(folder, "meeting")), int(os.environ["WORLD_SIZE"])
    )


@contextlib.contextmanager
def leaving_at_once() -> Iterator[None]:
    """End the process where its work ends, if torch.distributed still has a group of it then; else let it end as usual.

    The exit code, and what is printed of an exception, are those that Python would give.
    """
    code: Any = None
    try:
        yield
    except (Exception, SystemExit) as error:
        if not _in_group():
            raise
        if isinstance(error, SystemExit):
            code = error.code
        else:
            sys.excepthook(type(error), error, error.__traceback__)
            code = 1
    if not _in_group():
        return
    if isinstance(code, str):
        click.echo(code, err=True)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # whoever read it may be gone
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _in_group() -> bool:
    dist = sys.modules.get("torch.distributed")  # who has not imported it is in no group
    return dist is not None and dist.is_available() and dist.is_initialized()


def _attempt(processes: int, arguments: Sequence[str], marks: str, received: Sequence[int]) -> int:
    root = str(Path(__file__).resolve().parents[2])
    team: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(processes):
            environment = os.environ | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(processes),
                "LOCAL_WORLD_SIZE": str(processes),
                MARKS: marks,
                LAUNCHER: str(os.getpid()),
                "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
            }
            command = [sys.executable, "-m", "reproduce", *arguments]
            # In a session of its own, so that Ctrl-C reaches the others through this process alone, and once.
            team.append(subprocess.Popen(command, env=environment, start_new_session=True))
        return _watch(team, received)
    finally:
        for process in team:
            if process.poll() is None:
                process.kill()
            process.wait()


@contextlib.contextmanager
def _signals() -> Iterator[Sequence[int]]:
    """Note the signals that mean to end, and do nothing else about them."""
    received: list[int] = []
    endings = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # a terminal that is closed, unless `nohup` says otherwise
        endings.append(signal.SIGHUP)
    before = {number: signal.signal(number, lambda n, _: received.append(n)) for number in endings}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(team: Sequence[subprocess.Popen[bytes]], received: Sequence[int]) -> int:
    """Wait until all have ended, or one has ended badly and the others had time to do so too; their exit code."""
    passed_on = False
    deadline = None
    while True:
        codes = [process.poll() for process in team]
        if received and not passed_on:
            passed_on = True
            for process in team:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM if received[0] == signal.SIGHUP else received[0])
        bad = [code for code in codes if code]
        if bad and deadline is None:
            deadline = time.monotonic() + (GRACE_SECONDS if not passed_on else 60)
        at_once = signal.SIGINT in received[1:]  # Ctrl-C once more; SIGTERM may come from several sides
        if None not in codes or (deadline is not None and time.monotonic() > deadline) or at_once:
            return _verdict(codes, received)
        time.sleep(POLL_SECONDS)


def _verdict(codes: Sequence[int | None], received: Sequence[int]) -> int:
    """One exit code for all: a failure that is final counts more than that others lost the process."""
    if all(code == 0 for code in codes):
        return 0  # all had finished when the signal came
    if received:
        return 128 + received[0]
    final = [code for code in codes if code is not None and code > 0 and code != LOST]
    return final[0] if final else LOST
