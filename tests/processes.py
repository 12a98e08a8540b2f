"""Start other processes for tests. They are forked from a server that has imported torch, which takes seconds.

The server has no threads and no state of a test, so its processes behave as fresh ones. A command of several processes,
each of which would import torch, is forked from it as well (`Command`). Tests of Python's start-up itself start Python
instead.
"""

import atexit
import contextlib
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

if TYPE_CHECKING:
    from click.testing import Result

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 600  # timeout of a test in seconds; a busy machine takes long to start Python

FORKED = multiprocessing.get_context("forkserver")
FORK = multiprocessing.get_context("fork")
#: The tests themselves are not preloaded, because pytest has rewritten them.
FORKED.set_forkserver_preload(["tests.preloaded"])


def free_port() -> int:
    """Return a free port on the loopback device."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def wait_for(what: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Poll until the result is true, and return it."""
    deadline = time.monotonic() + seconds
    while not (result := what()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return result


def children(pid: int) -> list[int]:
    """Return the running processes that this process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Command:
    """Run a function in a process with a new session, as a script of Python would. Tests use the fixture `start`.

    Args:
        work: Function to run. Exceptions are printed, and `sys.exit` sets the exit code, as in a script.
        arguments: Arguments of the function.
        environment: Environment variables in addition to those of the server.

    """

    def __init__(self, work: Callable[..., object], *arguments: Any, **environment: str) -> None:
        number, name = tempfile.mkstemp(prefix="petra-stderr-")
        os.close(number)
        self._errors = Path(name)
        self._process = FORKED.Process(target=_script, args=(work, arguments, environment, name))
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def stderr(self, code: int = 0) -> str:
        """Return the output on stderr, after the end of the process with this exit code."""
        self._process.join(PATIENCE)
        assert self.returncode is not None, "waited in vain"
        text = self._errors.read_text()
        assert self.returncode == code, text
        return text

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def close(self) -> None:
        """End the process and all processes that it started, if it still runs."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.join()
        self._errors.unlink(missing_ok=True)


#: The fixture `start`, a function that makes a `Command`.
Start = Callable[..., Command]


def call(*arguments: object, code: int | None = None, **settings: Any) -> "Result":
    """Run a command of `python -m reproduce` in this process, which exits with `code` if that is not None.

    Other keywords are settings of click's runner.
    """
    from click.testing import CliRunner

    from reproduce.commands.cli import main

    result = CliRunner().invoke(main, [str(argument) for argument in arguments], **settings)
    assert code in (None, result.exit_code), result.output
    return result


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder, and return its output."""
    command = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def reproduce(*arguments: str) -> None:
    """Run `python -m reproduce` with these arguments. Further processes are forked from the one that starts them."""
    from reproduce.distributed import launch
    from reproduce.running import runner

    # Not in the test's process.
    launch.subprocess = SimpleNamespace(Popen=Popen)  # type: ignore[attr-defined]
    runner.multiprocessing = SimpleNamespace(get_context=lambda _: FORK)  # type: ignore[attr-defined]
    run_module("reproduce", *arguments)


def run_module(name: str, *arguments: str) -> None:
    """Run `python -m name` with these arguments."""
    sys.argv = [name, *arguments]
    runpy.run_module(name, run_name="__main__")


def _script(work: Callable[..., object], arguments: tuple[Any, ...], environment: dict[str, str], errors: str) -> None:
    os.setsid()
    os.chdir(ROOT)
    os.environ.update(environment)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_TRUNC), 2)
    _to_the_end(lambda: work(*arguments))


def _to_the_end(work: Callable[[], object]) -> None:
    """Call the function and end this process as Python ends a script, except for unloading all modules."""
    code: Any = None
    try:
        work()
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


class Popen:
    """Implement the part of subprocess.Popen that commands of this suite use, for modules in forked processes."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        start_new_session: bool,
        stdout: IO[bytes] | None = None,
        preexec_fn: Callable[[], None] | None = None,
        **fixed: Any,
    ) -> None:
        assert list(command[:2]) == [sys.executable, "-m"]
        assert start_new_session
        assert fixed in ({}, {"cwd": ROOT, "stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT})
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a newly started program
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.environ.clear()
            os.environ.update(env)
            if stdout is not None:
                os.dup2(stdout.fileno(), 1)
                os.dup2(stdout.fileno(), 2)
            if preexec_fn is not None:
                preexec_fn()
            _to_the_end(lambda: reproduce(*command[3:]) if command[2] == "reproduce" else run_module(*command[2:]))

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self) -> int:
        while self.poll() is None:
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def in_processes(ranks: int, work: Callable[..., None], *arguments: Any) -> None:
    """Call `work(rank, *arguments)` in `ranks` processes of one group."""
    mp.start_processes(
        _in_group, (ranks, free_port(), work, arguments), nprocs=ranks, start_method=FORKED.get_start_method()
    )


def _in_group(rank: int, ranks: int, port: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", timedelta(seconds=180), world_size=ranks, rank=rank)
    try:
        work(rank, *arguments)
    finally:
        dist.destroy_process_group()
