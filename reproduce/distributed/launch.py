"""Start several processes that train one cell, monitor them, and restart them if one was lost.

`torchrun -m reproduce train` works too, but torchrun restarts all processes after any failure, even after one that will
occur again, such as a missing data set or a non-finite loss. Here the exit code distinguishes the two kinds. A final
failure ends the run immediately. All processes are restarted from the last checkpoint only if one was killed or lost
its connection to another one.

With the settings `rdzv_backend="c10d"` and `rdzv_endpoint="localhost:0"` and two processes, `elastic_launch` of torch
2.15, the Python interface of torchrun, was seen to listen on two ports of all addresses, although the endpoint is
localhost. It restarts after final failures as well, and its workers continue after the launcher is killed.

When one process fails, all others lose their connection to it, and with R replicas, R heads see the same non-finite
loss. Only the first process that reports a failure prints a message. It leaves a mark that silences the others: in a
folder of this launch or, under torchrun, in the store of the rendezvous.

The rendezvous uses a file in the same folder, which only this user can read. The folder also contains a secret that the
processes share. Torch's usual rendezvous, a port, is open to the whole network, and another program may take the port
after it was found free and before it is used.

A process that is still in a process group when it ends calls `os._exit`. The usual shutdown of Python could hang,
because threads of torch.distributed may wait for dead processes. It could also abort, if such a thread frees a tensor
during the shutdown, and then a final failure would look like a killed process.
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

from reproduce.distributed.interrupts import Interrupt

LOST = 75  # exit code of a process that lost the connection to another one (EX_TEMPFAIL of sysexits.h)
POLL_SECONDS = 0.1
GRACE_SECONDS = 5.0  # time between the failure of one process and the killing of the others
STORE_TIMEOUT = timedelta(seconds=5)
MARKS = "PETRA_LAUNCH_MARKS"  # environment variable: folder of the mark and of the rendezvous file
SECRET = "secret"  # file in that folder, readable only by processes of this launch
LAUNCHER = "PETRA_LAUNCHER"  # environment variable: process ID of the launcher


class Failure(click.ClickException):
    """An error that ends the command. Only one of several processes shows its message."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Show the message if this process is the first that reports a failure."""
        if first_to_report():
            super().show(file)


def first_to_report() -> bool:
    """Return whether no other process has reported a failure yet. Return true if there is no place for a mark."""
    folder = os.environ.get(MARKS)
    if folder is None:
        return _first_in_store()
    try:
        Path(folder, "reported").touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        pass  # the disk is full or the folder was deleted: a repeated message is better than none
    return True


def _first_in_store() -> bool:
    """Leave a mark in torchrun's store, which outlives the processes. Return whether it is the first one."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return True
    import torch.distributed as dist

    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    try:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(  # type: ignore[attr-defined]  # documented, but not in the list of what torch exports
            address, port, is_master=False, timeout=STORE_TIMEOUT
        )
        return int(store.add(f"petra/reported/{attempt}", 1)) == 1
    except (dist.DistError, RuntimeError, KeyError, ValueError):
        return True  # a repeated message is better than none


def launch(processes: int, arguments: Sequence[str], *, restarts: int) -> int:
    """Run `python -m reproduce` in several processes, and restart all of them if one was lost.

    Args:
        processes: Number of processes.
        arguments: Arguments of the command.
        restarts: Maximum number of restarts.

    Returns:
        The exit code: 0 if all processes succeeded, 128 + number of a signal if one was received, else the exit code of
        the first process with a final failure.

    """
    with Interrupt() as interrupt:
        for attempt in range(restarts + 1):
            with tempfile.TemporaryDirectory(prefix="petra-") as marks:
                Path(marks, SECRET).write_bytes(secrets.token_bytes(32))
                code = _attempt(processes, arguments, marks, interrupt)
            if code != LOST:
                return code
            if interrupt.received:  # a signal arrived while the last process ended
                return interrupt.exit_code
            if attempt < restarts:
                again = f"({attempt + 1} of {restarts})"
                click.echo(f"a process was lost: all restart from the last checkpoint {again}", err=True)
    click.echo(f"a process was lost, and {restarts} restarts did not help", err=True)
    return 1


def launch_secret() -> bytes | None:
    """Return the secret that the processes of `launch` share, or None in any other process."""
    folder = os.environ.get(MARKS)
    return None if folder is None else Path(folder, SECRET).read_bytes()


def launcher_gone() -> bool:
    """Return whether this process was started by `launch` and the launcher has died."""
    launcher = os.environ.get(LAUNCHER)
    return launcher is not None and launcher != str(os.getppid())


def is_first_process() -> bool:
    """Return whether this is the process that a user started, or the first one of several under torchrun."""
    return LAUNCHER not in os.environ and os.environ.get("RANK", "0") == "0"


def rendezvous_store() -> Any:
    """Return the rendezvous store (torch.distributed.Store) of the processes of `launch`, or None in any other."""
    folder = os.environ.get(MARKS)
    if folder is None:
        return None
    import torch.distributed as dist

    return dist.FileStore(  # type: ignore[attr-defined]  # documented, but not in the list of what torch exports
        str(Path(folder, "meeting")), int(os.environ["WORLD_SIZE"])
    )


@contextlib.contextmanager
def exit_without_shutdown() -> Iterator[None]:
    """End the process with `os._exit` after this context if it is still in a process group of torch.distributed.

    The exit code and the traceback of an exception are those of a usual exit.
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
        with contextlib.suppress(OSError):  # the reader of a pipe may have died
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _in_group() -> bool:
    dist = sys.modules.get("torch.distributed")  # without this import there is no group
    return dist is not None and dist.is_available() and dist.is_initialized()


def _attempt(processes: int, arguments: Sequence[str], marks: str, interrupt: Interrupt) -> int:
    root = str(Path(__file__).resolve().parents[2])
    children: list[subprocess.Popen[bytes]] = []
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
            # A separate session, so that only this process receives Ctrl-C and forwards it once.
            children.append(subprocess.Popen(command, env=environment, start_new_session=True))
        return _watch(children, interrupt)
    finally:
        for process in children:
            if process.poll() is None:
                process.kill()
            process.wait()


def _watch(children: Sequence[subprocess.Popen[bytes]], interrupt: Interrupt) -> int:
    """Wait until all processes have ended, and return the common exit code.

    If one fails, the others get `GRACE_SECONDS` to end by themselves.
    """
    passed_on = False
    deadline = None
    while True:
        codes = [process.poll() for process in children]
        if (received := interrupt.received) and not passed_on:
            passed_on = True
            for process in children:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM if received == signal.SIGHUP else received)
        bad = [code for code in codes if code]
        if bad and deadline is None:
            deadline = time.monotonic() + (GRACE_SECONDS if not passed_on else 60)
        if None not in codes or (deadline is not None and time.monotonic() > deadline):
            return _verdict(codes, interrupt)
        time.sleep(POLL_SECONDS)


def _verdict(codes: Sequence[int | None], interrupt: Interrupt) -> int:
    """Choose the common exit code. A final failure takes precedence over lost connections."""
    if all(code == 0 for code in codes):
        return 0  # even after a signal, which came too late
    if interrupt.received:
        return interrupt.exit_code
    final = [code for code in codes if code is not None and code > 0 and code != LOST]
    return final[0] if final else LOST
