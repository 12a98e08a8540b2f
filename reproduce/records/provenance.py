"""What produced a result: the environment it ran in and the code it ran.

A commit hash alone is not the code when the tree was not clean, so the difference to the commit is kept as a patch.
Records are no code: one that was just written anew does not make the next one's code another.
And a commit can be gone from the history, after a rebase or a squash, while its code is still there: git's hashes of
the source folders are kept too, by which `in_history` finds it again.
Nothing here names a person, a host or a folder: records are made to be published.
"""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PACKAGES = ("torch", "torchvision", "numpy", "scikit-learn", "ffcv", "numba")
ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("petra_core", "reproduce")
RECORDS = "reports"


def environment(device: "torch.device") -> dict[str, Any]:
    """The machine and the software, as this process uses them now; JSON-ready, equal for equal environments."""
    import torch

    cuda = device.type == "cuda"
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
    version = _version("petra-suite")
    try:
        _check_ours()
        commit = _git("rev-parse", "HEAD").strip()
        sources = _sources(["HEAD"])["HEAD"]
        patch = _git("diff", "HEAD", "--no-color", "--no-ext-diff", "--binary", "--", ".", f":(exclude){RECORDS}")
        new = _git("ls-files", "--others", "--exclude-standard", "--", *SOURCES).splitlines()
    except FileNotFoundError:
        return {"version": version, "commit": None, "note": "git is not installed: the commit is not known"}, ""
    except subprocess.CalledProcessError:
        return {"version": version, "commit": None, "note": "not run from a git checkout: the commit is not known"}, ""
    entry = {
        "version": version,
        "commit": commit,
        "sources": sources,
        "clean": not patch and not new,
        "untracked": new,
    }
    return entry, patch


def in_history(commit: str, sources: Mapping[str, str] | None = None) -> str | None:
    """The commit in this checkout's history that has the code of a record.

    Args:
        commit: that the record names.
        sources: the hashes of the source folders that it has, if it has them.

    Returns:
        The same commit, or the newest one whose source folders are the same; empty: there is none; None: the history is
        not known here (no git, no checkout, or a shallow one).

    """
    history = _history()
    if history is None:
        return None
    if commit in history:
        return commit
    return next((other for other, folders in history.items() if sources and folders == dict(sources)), "")


@cache
def _history() -> dict[str, dict[str, str]] | None:
    """The hashes of the source folders of every commit, newest first."""
    try:
        _check_ours()
        if _git("rev-parse", "--is-shallow-repository").strip() == "true":
            return None
        return _sources(_git("rev-list", "HEAD").split())
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None


def _sources(commits: Sequence[str]) -> dict[str, dict[str, str]]:
    """Git's hashes of the source folders of each commit."""
    asked = [(commit, folder) for commit in commits for folder in SOURCES]
    answers = _git("cat-file", "--batch-check", asked="".join(f"{commit}:{folder}\n" for commit, folder in asked))
    found: dict[str, dict[str, str]] = {commit: {} for commit in commits}
    for (commit, folder), answer in zip(asked, answers.splitlines(), strict=True):
        if not answer.endswith(" missing"):
            found[commit][folder] = answer.split()[0]
    return found


def _check_ours() -> None:
    """An installed copy may lie inside somebody else's checkout: ours is one that tracks this very file."""
    _git("ls-files", "--error-unmatch", str(Path(__file__).resolve()))


def _git(*arguments: str, asked: str = "") -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, input=asked, text=True, errors="replace").stdout


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
