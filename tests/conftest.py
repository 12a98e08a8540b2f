"""Set up every test: one thread, no waiting for the disk, and real images if the machine has them."""

import contextlib
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from filelock import FileLock

if TYPE_CHECKING:  # the fixtures import them, since most tests do not need them
    from reproduce.records.frames import Frames
    from tests.processes import Start

# One thread in this process and in processes that tests start: sums are added in the same order on every machine, and
# `pytest -n 2` does not compete with itself for two cores.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
torch.set_num_threads(1)
# Only a crash of the machine shows whether a file was flushed, but every flush waits for the disk for milliseconds. The
# replacement raises OSError for an invalid descriptor, too.
os.fsync = os.fstat

pytest.register_assert_rewrite("tests.command_lines", "tests.trainings")  # whose asserts have no messages

ROOT = Path(__file__).resolve().parent.parent

frozen = 0  # number of imported modules when objects were last excluded from garbage collection


def freeze_imports() -> None:
    """Exclude the objects of imported modules from garbage collection, which would take up to a second each time."""
    global frozen
    if len(sys.modules) >= frozen + 100:
        gc.collect()
        gc.freeze()
        frozen = len(sys.modules)


def pytest_collection_finish() -> None:
    """Exclude the objects imported so far from garbage collection, and start the server of `tests.processes`."""
    freeze_imports()
    if "tests.processes" in sys.modules:
        # Now, because a benchmark that runs first would start the server with different imports.
        forkserver.ensure_running()


def pytest_unconfigure() -> None:
    """Include all objects again, because libraries that count theirs would report leaks at exit."""
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Reset the number of threads to one for every test and its fixtures, and freeze what the last one imported.

    A command sets the number of threads of its process. Called inside a test, it would change that number for the
    following tests, whose sums would then be added in another order than in the processes that they start. Tests import
    further modules, such as the 800 of torch's fake tensors.
    """
    torch.set_num_threads(1)
    freeze_imports()


@pytest.fixture
def start() -> "Iterator[Start]":
    """Start functions as commands (`tests.processes.Command`), which end with the test."""
    from tests.processes import Command

    with contextlib.ExitStack() as started:
        yield lambda *given, **environment: started.enter_context(contextlib.closing(Command(*given, **environment)))


@pytest.fixture(scope="session")
def golden_frames(tmp_path_factory: pytest.TempPathFactory) -> "Frames":
    """Return the records of the golden files, and all planned cells. Two files of tests use them."""
    from tests.golden import dump

    return dump.frames_of(dump.chosen(tmp_path_factory.mktemp("records")))


@pytest.fixture(scope="session")
def real_cifar10(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that contains CIFAR-10 in the official binary layout, `cifar-10-batches-bin/`.

    The folder is the one in the environment variable PETRA_DATA, or `../shared/data` next to the checkout. It contains
    the data, or an archive with `unpack_cifar10.py`. If there is neither, the test is skipped.
    """
    source = Path(os.environ.get("PETRA_DATA") or ROOT.parent / "shared" / "data")
    if (source / "cifar-10-batches-bin").is_dir():
        return source
    unpacker = source / "unpack_cifar10.py"
    if not unpacker.is_file():
        pytest.skip(f"no real CIFAR-10 in {source}: set PETRA_DATA to the folder that contains cifar-10-batches-bin")
    # pytest-xdist's workers share the parent of their temporary folders: the first worker unpacks for all.
    shared = tmp_path_factory.getbasetemp().parent / "real-cifar10"
    with FileLock(f"{shared}.lock"):
        if not (shared / "cifar-10-batches-bin").is_dir():
            partial = tmp_path_factory.mktemp("cifar10")
            subprocess.run([sys.executable, unpacker, partial], check=True, stdout=subprocess.DEVNULL)
            partial.rename(shared)  # completely or not at all
    return shared
