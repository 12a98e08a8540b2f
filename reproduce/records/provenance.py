"""Record what produced a result: the environment and the code.

A commit hash is not enough if the tree was not clean, so the difference to the commit is kept as a patch. It covers the
packages, the benchmarks and the two files that name the dependencies, and nothing else in the checkout. Records are not
code: a new record does not change the code of the next run. Except for text that someone wrote into the sources,
nothing here names a person, a host or a folder, because records are made to be published.
"""

import errno
import importlib.metadata
import os
import platform
import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import petra_core
import reproduce
from reproduce.records.storage import StorageError, explain_full_disk

if TYPE_CHECKING:
    import torch

PACKAGES = ("torch", "torchvision", "numpy", "scikit-learn", "ffcv", "numba")
ROOT = Path(__file__).resolve().parents[2]
#: Files and folders that a result depends on. A patch contains no others.
CODE = ("petra_core", "reproduce", "benchmarks", "pyproject.toml", "constraints.txt")
LARGEST_PATCH = 4 << 20  # bytes
#: Options that make a patch independent of the user's settings and bitwise restore the files that ran.
DIFF = (
    *("--no-color", "--no-ext-diff", "--no-textconv", "--binary", "--full-index", "--unified=3", "--no-renames"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--inter-hunk-context=0", "--diff-algorithm=myers", "--no-relative"),
    *("-O/dev/null", "--submodule=short", "--ignore-submodules=none"),
)
#: Environment variables that select kernels of libraries, and with them the last bits of a result.
KERNEL_VARIABLES = re.compile(
    r"(ONEDNN|DNNL|MKL)_(?!VERBOSE|NUM_THREADS|DYNAMIC)\w+|ATEN_CPU_CAPABILITY|OPENBLAS_CORETYPE|BLIS_ARCH_TYPE"
    r"|NPY_(DIS|EN)ABLE_CPU_FEATURES|NVIDIA_TF32_OVERRIDE|CUBLAS(LT)?_(?!LOG)\w+|CUDNN_(?!LOG)\w+"
    r"|TORCH_(BLAS|LINALG)_PREFER_\w+|DISABLE_ADDMM_CUDA_LT"
)
BETTER_HEURISTICS = "TORCH_CUDNN_USE_HEURISTIC_MODE_B"  # read by torch; selects the better heuristics of cuDNN


def environment(device: "torch.device") -> dict[str, Any]:
    """Describe machine and software of this process, ready for JSON. Equal environments give equal descriptions."""
    import torch

    cuda = device.type == "cuda"
    heuristics = {"cudnn_heuristics": "B"} if cuda and os.environ.get(BETTER_HEURISTICS) == "1" else {}
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()} {platform.libc_ver()[0]} {platform.libc_ver()[1]}",
        "packages": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),  # such as AVX2: the kernels that torch uses
        "cores": os.cpu_count(),
        "device": device_name(str(device)),
        "cuda": torch.version.cuda if cuda else None,
        "cudnn": torch.backends.cudnn.version() if cuda else None,  # type: ignore[no-untyped-call]  # torch gives it no types
        "threads": torch.get_num_threads(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "tf32": torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32 if cuda else False,
        **heuristics,
        **({"kernel_variables": chosen} if (chosen := _kernel_variables()) else {}),
    }


def _kernel_variables() -> dict[str, str]:
    """Return the variables that choose kernels and differ from what the suite sets, by name."""
    chosen = {name: value[:80] for name, value in sorted(os.environ.items()) if KERNEL_VARIABLES.fullmatch(name)}
    return {name: value for name, value in chosen.items() if (name, value) != reproduce.WORKSPACE}


def device_name(device: str) -> str:
    """Return `cpu`, without importing torch, or the name of a GPU."""
    if not device.startswith("cuda"):
        return "cpu"
    import torch

    return torch.cuda.get_device_name(device)


def processor() -> str:
    """Return the name of the processor. On Linux, `platform.processor()` is often empty."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@cache
def code() -> tuple[dict[str, Any], bytes]:
    """Return the suite's code: commit and whether the tree was clean, and the difference to the commit as a patch.

    The patch includes untracked files. It contains git's bytes, which need not be UTF-8. Without git or outside a
    checkout, a note reports that the commit is unknown.

    Raises:
        StorageError: As for `_changes`.

    """
    version = petra_core.__version__
    try:
        # An installed copy may be inside another project's checkout: ours tracks this file.
        _git("ls-files", "--error-unmatch", str(Path(__file__).resolve()))
        commit = _git("rev-parse", "HEAD").decode().strip()
    except FileNotFoundError:
        return {"version": version, "commit": None, "note": "git is not installed: the commit is not known"}, b""
    except subprocess.CalledProcessError as error:
        reason = "not run from a git checkout"
        if b"dubious ownership" in (error.stderr or b""):
            reason = "git refuses the checkout, because it belongs to another user (git config safe.directory)"
        return {"version": version, "commit": None, "note": f"{reason}: the commit is not known"}, b""
    new, patch = _changes()
    entry = {"version": version, "commit": commit, "clean": not patch, "untracked": new}
    if len(patch) > LARGEST_PATCH:
        entry["note"] = f"changed; the difference is larger than {LARGEST_PATCH >> 20} MB and was not kept"
        patch = b""
    return entry, patch


def _changes() -> tuple[list[str], bytes]:
    """Return the untracked files, and the difference to the commit as a patch that includes them.

    Raises:
        StorageError: The temporary folder is full, or git failed.

    """
    work = f"compare the code in {ROOT} with its commit"
    try:
        with explain_full_disk(f"to {work}"), tempfile.TemporaryDirectory(prefix="petra-") as folder:
            # A separate index has no flags such as "assume unchanged", which make git skip a file.
            index = str(Path(folder, "index"))
            _git("read-tree", "HEAD", index=index)
            here = [name for name in CODE if (ROOT / name).exists()]
            others = _git("ls-files", "-z", "--others", "--exclude-standard", "--", *here, index=index)
            new = others.decode("utf-8", "replace").split("\0")[:-1]
            if new:
                _git("add", "--intent-to-add", "--", *here, index=index)
            return new, _git("diff", "HEAD", *DIFF, "--", *CODE, index=index)
    except subprocess.CalledProcessError as error:
        words = error.stderr.decode(errors="replace").strip() or error
        fix = f"check that {tempfile.gettempdir()} has room, and that `git status` works in that checkout"
        raise StorageError(errno.EIO, f"git could not {work} ({words}); {fix}") from error


def _git(*arguments: str, index: str | None = None) -> bytes:
    """Return git's output, independent of the user's settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"} | ({} if index is None else {"GIT_INDEX_FILE": index})
    settings = ("core.fsmonitor=false", "core.untrackedCache=false", f"safe.directory={ROOT}")
    command = ["git", "-C", str(ROOT), *(word for setting in settings for word in ("-c", setting)), *arguments]
    return subprocess.run(command, capture_output=True, check=True, env=environment).stdout


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
