"""Define all commands of the project. `nox -l` lists them, and the README explains how to install nox.

Each session has a separate environment below .nox/. uv creates it with the Python that runs nox, from the versions that
constraints.txt pins. It is kept, so that a second call starts within seconds.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "uv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "tests"]

CONSTRAINTS = "constraints.txt"
PYTHON_FILES = ("petra_core", "reproduce", "benchmarks", "tests", "docs", "examples", "noxfile.py")
# For tests: pytest-xdist uses all cores, and more threads would compete with one another.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

INSTALL = ("apt-get", "install", "-qq", "--yes", "--no-install-recommends")
# Debian packages that FFCV is compiled with, and how to check whether each is installed.
FFCV_NEEDS = {
    "g++": lambda: shutil.which("g++") is not None,
    "pkg-config": lambda: shutil.which("pkg-config") is not None,
    "libopencv-dev": lambda: known_to_pkg_config("opencv4"),
    "libturbojpeg0-dev": lambda: known_to_pkg_config("libturbojpeg"),
    "python3-dev": lambda: Path(sysconfig.get_path("include"), "Python.h").is_file(),
}

ASV_MACHINES = Path("~/.asv-machine.json")
ASV_SOME_FAILED = 2  # exit code of `asv run` and `asv continuous`
FACTOR = "--factor=1.2"  # smallest ratio of two commits that may be significant
# Benchmarks whose results are equal on every machine, except for the last digits of numerical errors.
HISTORY = r"^(cost|numerics|engine\.Calls|memory\.(Stages|Narrow|Paper)|checkpoints\.Checkpoints\.track)"

# Exit code of `reproduce run` if some cells failed; any other failure is one of the command itself.
SOME_FAILED = 1


def install(session: nox.Session, *groups: str) -> None:
    """Install the suite, its dependencies and those of the dependency groups, all as pinned."""
    if os.environ.get("PYTHONDONTWRITEBYTECODE"):
        # Container images often set it. Then each process compiles all of torch again, which takes longer than most
        # tests. The compiled files are kept in the session's folder.
        session.env["PYTHONDONTWRITEBYTECODE"] = ""
        session.env["PYTHONPYCACHEPREFIX"] = str(Path(session.virtualenv.location, "compiled"))
    of_groups = [f"--group={group}" for group in groups]
    session.install("--editable", ".", *of_groups, "--constraint", CONSTRAINTS, "--build-constraint", CONSTRAINTS)


def install_ffcv(session: nox.Session) -> None:
    """Install FFCV and its system packages. If that fails, report why and continue with other loaders."""
    missing = [package for package, there in FFCV_NEEDS.items() if not there()]
    if missing and not install_packages(session, missing):
        session.warn(
            f"FFCV is not installed, because the system packages {' '.join(missing)} are missing and not installable: "
            f"continuing without it (--loader memory or torchvision). Install them with `apt-get install "
            f"{' '.join(missing)}`"
        )
        return
    try:
        session.install("--editable", ".[ffcv]", "--constraint", CONSTRAINTS, "--build-constraint", CONSTRAINTS)
    except CommandFailed:
        session.warn("FFCV could not be compiled (see above): continuing without it (--loader memory or torchvision)")


def install_packages(session: nox.Session, packages: list[str]) -> bool:
    """Install Debian packages, as root or with sudo, and return whether that succeeded."""
    if shutil.which("apt-get") is None:
        return False
    root: list[str] = []
    if os.geteuid() != 0:
        if shutil.which("sudo") is None:
            return False
        # Without a terminal, sudo must not ask for a password.
        root = ["sudo"] if sys.stdin.isatty() else ["sudo", "--non-interactive"]
    session.log(f"FFCV needs {' '.join(packages)}: installing {'it' if len(packages) == 1 else 'them'} with apt-get")
    root += ["env", "DEBIAN_FRONTEND=noninteractive"]
    try:
        session.run_install(*root, "apt-get", "update", "-qq", external=True)
        session.run_install(*root, *INSTALL, *packages, external=True)
    except CommandFailed:
        return False
    return True


def known_to_pkg_config(library: str) -> bool:
    """Return whether pkg-config is installed and finds the library."""
    try:
        return subprocess.run(["pkg-config", "--exists", library], check=False).returncode == 0
    except FileNotFoundError:
        return False


def reproduce(session: nox.Session, *arguments: str) -> None:
    """Run `python -m reproduce` with these arguments."""
    # On Ctrl-C a run finishes its tick and saves. By default, nox would kill it after 0.3 seconds.
    session.run("python", "-m", "reproduce", *arguments, interrupt_timeout=None)


def run_and_report(session: nox.Session, scale: str, *chosen: str) -> None:
    """Run cells of a scale, then write the report from the same records, even if some cells failed.

    No report is written after Ctrl-C, or if nothing was run.
    """
    options = session.posargs
    try:
        reproduce(session, "run", scale, *chosen, *options)
    except CommandFailed as failure:
        if failure.return_code == SOME_FAILED and "--dry-run" not in options:
            reproduce(session, "report", *records_option(options))
        raise
    if not {"--dry-run", "--help", "-h"} & set(options):
        reproduce(session, "report", *records_option(options))


def records_option(options: Sequence[str]) -> list[str]:
    """Return the part of a run's options that selects the folder of records."""
    for number, option in enumerate(options):
        if option == "--records":
            return list(options[number : number + 2])
        if option.startswith("--records="):
            return [option]
    return []


@nox.session(name="reproduce-smoke")
def reproduce_smoke(session: nox.Session) -> None:
    """Train every method on handwritten digits in minutes, then write the report. This is the main job.

    Arguments after `--` go to `python -m reproduce run smoke`, as with every session reproduce-…: see `-- --help`.
    Finished cells are not run again. The report is written even if some cells failed, and shows their status.
    """
    install(session)
    run_and_report(session, "smoke")


@nox.session(name="reproduce-small")
def reproduce_small(session: nox.Session) -> None:
    """Run CIFAR-10 with narrow networks for a few epochs, then write the report: `-- --data-root DIR --dry-run`."""
    install(session)
    run_and_report(session, "small")


@nox.session(name="reproduce-cifar10")
def reproduce_cifar10(session: nox.Session) -> None:
    """Run the paper's cells on CIFAR-10, and those of Table 4 on CIFAR-100, then write the report."""
    install(session)
    install_ffcv(session)
    run_and_report(session, "paper", "--only=dataset=cifar10,cifar100")


@nox.session(name="reproduce-imagenet32")
def reproduce_imagenet32(session: nox.Session) -> None:
    """Run the paper's cells on ImageNet32, then write the report."""
    install(session)
    install_ffcv(session)
    run_and_report(session, "paper", "--only=dataset=imagenet32")


@nox.session(name="reproduce-imagenet")
def reproduce_imagenet(session: nox.Session) -> None:
    """Run the paper's cells on ImageNet, then write the report: `-- --k 1,4 --models revnet18 --data-root DIR`."""
    install(session)
    install_ffcv(session)
    run_and_report(session, "paper", "--only=dataset=imagenet")


@nox.session(name="reproduce-pareprop")
def reproduce_pareprop(session: nox.Session) -> None:
    """Compare PaReprop with reversible backpropagation and backpropagation on transformers, then write the report.

    Arguments go to `python -m benchmarks.pareprop`, as in `-- --networks revswin_tiny --size 224 --batches 64`. To keep
    the results of other networks or machines next to the first, add `-- --record pareprop-NAME`.
    """
    install(session)
    options = session.posargs
    record = [] if "--record" in options else ["--record"]
    session.run("python", "-m", "benchmarks.pareprop", *record, *options)
    if not {"--help", "-h"} & set(options):
        reproduce(session, "report", *records_option(options))


@nox.session
def records(session: nox.Session) -> None:
    """Manage records: `-- list`, `-- check`; `-- merge SOURCE...` merges those of other machines."""
    install(session)
    reproduce(session, "records", *session.posargs)


@nox.session
def train(session: nox.Session) -> None:
    """Train one network, with an option for every setting: `-- --help` lists them."""
    install(session)
    install_ffcv(session)
    reproduce(session, "train", *session.posargs)


@nox.session
def data(session: nox.Session) -> None:
    """Prepare and check data sets: `-- list`, `-- prepare cifar10 --download`, `-- --help`."""
    install(session)
    install_ffcv(session)
    reproduce(session, "data", *session.posargs)


@nox.session
def report(session: nox.Session) -> None:
    """Write the report from the existing records. Arguments go to `python -m reproduce report`."""
    install(session)
    reproduce(session, "report", *session.posargs)


@nox.session
def peers(session: nox.Session) -> None:
    """Compare other implementations of reversible training with ours: `-- --threads 2 --record`, `-- --help`."""
    install(session)
    session.install("--requirement", "benchmarks/peers/requirements.txt", "--constraint", CONSTRAINTS)
    session.run("python", "-m", "benchmarks.peers", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests, with one single-threaded process per core and one more, at most four. Arguments go to pytest."""
    install(session, "tests")
    install_ffcv(session)
    # One more than cores, since some tests wait for processes that they start. At most four: some need gigabytes.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    processes = min(4, cores + 1)
    # Neighbours in a file share expensive fixtures, so each process gets contiguous groups of tests. If a process dies,
    # the test that it ran fails, and another process replaces it, any number of times. (With --dist=load, the default,
    # xdist stops if two processes die together.)
    xdist = (f"--numprocesses={processes}", "--dist=worksteal", f"--max-worker-restart={sys.maxsize}")
    session.run("pytest", *xdist, *session.posargs, env=ONE_THREAD)


@nox.session
def mutants(session: nox.Session) -> None:
    """Change the engine at 200 places, one at a time, and check that its tests notice; takes an hour or more."""
    install(session, "tests")
    session.run("python", "-m", "tests.mutants", *session.posargs, env=ONE_THREAD)


@nox.session
def cluster(session: nox.Session) -> None:
    """Test docs/cluster.md on a temporary Slurm of one node; skipped where Slurm is not installed."""
    install(session, "tests")
    session.run("pytest", "tests/cluster", *session.posargs, env=ONE_THREAD)


@nox.session
def benchmarks(session: nox.Session) -> None:
    """Run every benchmark once, to check that it works; `-- BASE` compares HEAD with the commit BASE instead.

    Timings of the first form are not meaningful. The second form measures both commits in turns, in four rounds, and
    ends with an error if a benchmark became significantly worse or failed. Options after BASE go to `asv continuous`.
    """
    install(session, "benchmarks")
    asv_machine(session)
    if not session.posargs:
        install_ffcv(session)
        session.run("asv", "run", "--quick", "--show-stderr", "--environment=existing:same")
        return
    base, *options = session.posargs
    if base.startswith("-"):
        session.error(f"the first argument must be the commit to compare with, got {base}")
    # The interpreter that runs nox exists for certain, but the one that asv.conf.json names may not.
    environment = f"virtualenv:{sys.version_info.major}.{sys.version_info.minor}"
    measured = ("--interleave-rounds", "--attribute=rounds=4", f"--environment={environment}")
    try:
        session.run("asv", "continuous", base, "HEAD", *measured, FACTOR, *options)
    except CommandFailed as error:
        if error.return_code == ASV_SOME_FAILED:  # `asv continuous` does not compare the others then
            session.run("asv", "compare", base, "HEAD", FACTOR)
        raise


@nox.session(name="benchmarks-html")
def benchmarks_html(session: nox.Session) -> None:
    """Make pages of the history and of the local results of `asv run`, in reports/benchmarks."""
    if session.run("git", "rev-parse", "--is-shallow-repository", silent=True, external=True) == "true\n":
        session.error("this clone is shallow, so the pages would have no points: run `git fetch --unshallow` first")
    install(session, "benchmarks")
    asv_machine(session)
    # asv publishes the benchmarks that it discovered last: with the full profile, all that may have results.
    discover = ("asv", "run", "--bench=just-discover", "--environment=existing:same")
    session.run(*discover, env={"PETRA_BENCHMARKS": "full"})
    session.run("asv", "publish", *session.posargs)


@nox.session(name="benchmarks-history")
def benchmarks_history(session: nox.Session) -> None:
    """Measure the counts and numerical errors of HEAD, to be committed; `-- A..B --steps 12` adds older commits.

    Arguments go to `asv run`. Results that reports/asv already contains are not measured again.
    """
    install(session, "benchmarks")
    asv_machine(session)
    # Rounding depends on the kernels, which torch selects by processor. Nothing else of the machine matters.
    print_kernels = "import torch; print(torch.backends.cpu.get_cpu_capability().lower())"
    machine = f"kernels-{str(session.run('python', '-c', print_kernels, silent=True)).strip()}"
    # Benchmarks that an older commit does not support fail there; continue with the others.
    succeeded = (0, ASV_SOME_FAILED) if session.posargs else (0,)
    with unchanged(ASV_MACHINES):  # with two machines in the file, asv would ask for the current one
        session.run("asv", "machine", f"--machine={machine}", "--os=any", "--cpu=any", "--num_cpu=any", "--ram=any")
        command = ("asv", "run", f"--machine={machine}", f"--bench={HISTORY}", "--skip-existing")
        # One thread, so that the order of sums does not depend on the number of cores.
        session.run(*command, *session.posargs, env=ONE_THREAD, success_codes=succeeded)


def asv_machine(session: nox.Session) -> None:
    """Describe this machine to asv, which would ask otherwise."""
    if not ASV_MACHINES.expanduser().exists():
        session.run("asv", "machine", "--yes")


@contextlib.contextmanager
def unchanged(file: Path) -> Iterator[None]:
    """Restore the content of a file at the end."""
    before = file.expanduser().read_bytes()
    try:
        yield
    finally:
        file.expanduser().write_bytes(before)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style (ruff), formatting and types (mypy, strict)."""
    install(session, "lint")
    session.run("ruff", "check", *PYTHON_FILES)
    session.run("ruff", "format", "--check", *PYTHON_FILES)
    session.run("mypy")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation site in build/site. Arguments go to `mkdocs build`; every warning is an error."""
    session.install("--group=docs", "--constraint", CONSTRAINTS)
    # This is not a warning about our pages, but the announcement that mkdocs.yml mentions.
    session.run("mkdocs", "build", "--strict", *session.posargs, env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def lock(session: nox.Session) -> None:
    """Pin the newest versions that pyproject.toml allows in constraints.txt, one per package for all platforms.

    Arguments go to `uv pip compile`, as in `-- --upgrade-package torch`. Without arguments, all packages are upgraded.
    """
    groups = nox.project.load_toml("pyproject.toml")["dependency-groups"]
    # Include the pins of FFCV, for machines that support it.
    session.install("uv")
    session.run(
        *("uv", "pip", "compile", "pyproject.toml", "--quiet", "--output-file", CONSTRAINTS),
        *(f"--group={group}" for group in groups),
        "--extra=ffcv",
        *("--universal", "--fork-strategy=fewest", "--python-version=3.11"),
        *("--no-annotate", "--custom-compile-command", "nox -s lock"),
        *(session.posargs or ["--upgrade"]),
    )
