"""Other processes for tests: forked from a server that has imported torch, since to import it takes seconds each time.

The server has no threads and holds nothing of the test's, so a process of it is as much another one as a fresh one is.
"""

import multiprocessing

FORKED = multiprocessing.get_context("forkserver")
#: What takes long to import; torch imports its compiler when the first optimizer is made, which takes longest of all.
#: Not the tests themselves, which pytest has rewritten.
FORKED.set_forkserver_preload(["torch._dynamo", "petra_core.distributed", "reproduce.records", "reproduce.training"])
