"""What produced a result: the environment it ran in and the code it ran.

A commit hash alone is not the code when the tree was not clean, so the difference to the commit is kept as a patch.
Records are no code: one that was just written anew does not make the next one's code another.
Nothing here names a person, a host or a folder: records are made to be published.
"""

import importlib.metadata
import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import petra_core

if TYPE_CHECKING:
    import torch

PACKAGES = ("torch", "torchvision", "numpy", "scikit-learn", "ffcv", "numba")
ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("petra_core", "reproduce", "benchmarks")
RECORDS = "reports"
BETTER_HEURISTICS = "TORCH_CUDNN_USE_HEURISTIC_MODE_B"  # torch reads it: cuDNN chooses its kernels with more care


def environment(device: "torch.device") -> dict[str, Any]:
    """The machine and the software, as this process uses them now; JSON-ready, equal for equal environments."""
    import torch

    cuda = device.type == "cuda"
    heuristics = {"cudnn_heuristics": "B"} if cuda and os.environ.get(BETTER_HEURISTICS) == "1" else {}
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()} {platform.libc_ver()[0]} {platform.libc_ver()[1]}",
        "packages": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),  # such as AVX2: which of its kernels torch takes
        "cores": os.cpu_count(),
        "device": device_name(str(device)),
        "cuda": torch.version.cuda if cuda else None,
        "cudnn": torch.backends.cudnn.version() if cuda else None,  # type: ignore[no-untyped-call]
        "threads": torch.get_num_threads(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "tf32": torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32 if cuda else False,
        **heuristics,
    }


def device_name(device: str) -> str:
    """`cpu`, for which nobody waits for torch, or what a GPU is called."""
    if not device.startswith("cuda"):
        return "cpu"
    import torch

    return torch.cuda.get_device_name(device)


def processor() -> str:
    """The processor's name; on Linux `platform.processor()` is often empty."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@cache
def code() -> tuple[dict[str, Any], str]:
    """The suite's own code: (commit and whether the tree was clean, its difference to the commit as a patch).

    Works without git and outside a checkout, and says so.
    """
    version = petra_core.__version__
    try:
        # An installed copy may lie inside somebody else's checkout: ours is one that tracks this very file.
        _git("ls-files", "--error-unmatch", str(Path(__file__).resolve()))
        commit = _git("rev-parse", "HEAD").strip()
        patch = _git("diff", "HEAD", "--no-color", "--no-ext-diff", "--binary", "--", ".", f":(exclude){RECORDS}")
        new = _git("ls-files", "--others", "--exclude-standard", "--", *SOURCES).splitlines()
    except FileNotFoundError:
        return {"version": version, "commit": None, "note": "git is not installed: the commit is not known"}, ""
    except subprocess.CalledProcessError:
        return {"version": version, "commit": None, "note": "not run from a git checkout: the commit is not known"}, ""
    entry = {
        "version": version,
        "commit": commit,
        "clean": not patch and not new,
        "untracked": new,
    }
    return entry, patch


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, errors="replace").stdout


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
