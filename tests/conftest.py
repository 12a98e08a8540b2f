"""What every test relies on: one thread, and real images where the machine has them."""

import gc
import os
import subprocess
import sys
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch
from filelock import FileLock

# One thread in this process and in those that tests start: sums are added in one order on every machine, and
# `pytest -n 2` does not fight itself over two cores.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
torch.set_num_threads(1)

ROOT = Path(__file__).resolve().parent.parent


def pytest_collection_finish() -> None:
    """Take what is imported by now out of what the garbage collector looks through, each time up to a second."""
    gc.collect()
    gc.freeze()
    if "tests.processes" in sys.modules:
        # Now, since a benchmark that came first would start the server with imports of its own.
        forkserver.ensure_running()


def pytest_unconfigure() -> None:
    """Let Python's end find all that there is: libraries that count theirs would complain of what is left."""
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Give every test, and the fixtures that it is the first to need, one thread again.

    A command sets the number of threads for its process, which is its own; called inside a test, it would leave that
    number to the tests that follow, whose sums would then be added in another order than in the processes they start.
    """
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def real_cifar10(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with CIFAR-10 in the official binary layout, `cifar-10-batches-bin/`, inside.

    It is looked for in the folder that the environment variable PETRA_DATA names, else in `../shared/data` beside the
    checkout: ready there, or packed beside an `unpack_cifar10.py`. Where there is neither the test is skipped.
    """
    source = Path(os.environ.get("PETRA_DATA") or ROOT.parent / "shared" / "data")
    if (source / "cifar-10-batches-bin").is_dir():
        return source
    unpacker = source / "unpack_cifar10.py"
    if not unpacker.is_file():
        pytest.skip(f"no real CIFAR-10 in {source}: set PETRA_DATA to the folder that holds cifar-10-batches-bin")
    # pytest-xdist's workers share the parent of their temporary folders: the first one unpacks for all.
    shared = tmp_path_factory.getbasetemp().parent / "real-cifar10"
    with FileLock(f"{shared}.lock"):
        if not (shared / "cifar-10-batches-bin").is_dir():
            partial = tmp_path_factory.mktemp("cifar10")
            subprocess.run([sys.executable, unpacker, partial], check=True, stdout=subprocess.DEVNULL)
            partial.rename(shared)  # whole or not at all
    return shared
