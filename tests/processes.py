"""Other processes for tests: forked from a server that has imported torch, since to import it takes seconds each time.

The server has no threads and holds nothing of the test's, so a process of it is as much another one as a fresh one is.
"""

import multiprocessing
import socket

FORKED = multiprocessing.get_context("forkserver")
#: What takes long to import; torch imports its compiler when the first optimizer is made, which takes longest of all.
#: Not the tests themselves, which pytest has rewritten.
FORKED.set_forkserver_preload(["torch._dynamo", "petra_core.distributed", "reproduce.records", "reproduce.training"])


def free_port() -> int:
    """A port on the loopback device that nobody uses at this moment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port
