"""Every command that a person needs: `nox -l` lists them, the README shows how to get nox.

Each session has an environment of its own below .nox/, made by uv with the Python that runs nox, from the versions that
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
# Of tests: pytest-xdist fills the cores, and more threads would only get into each other's way.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

INSTALL = ("apt-get", "install", "-qq", "--yes", "--no-install-recommends")
# What FFCV is compiled with, and whether it is there, by the names of Debian's packages.
FFCV_NEEDS = {
    "g++": lambda: shutil.which("g++") is not None,
    "pkg-config": lambda: shutil.which("pkg-config") is not None,
    "libopencv-dev": lambda: known_to_pkg_config("opencv4"),
    "libturbojpeg0-dev": lambda: known_to_pkg_config("libturbojpeg"),
    "python3-dev": lambda: Path(sysconfig.get_path("include"), "Python.h").is_file(),
}

ASV_MACHINES = Path("~/.asv-machine.json")
ASV_SOME_FAILED = 2  # exit code of `asv run`
# The benchmarks whose figures are the same on every machine, but for the last digits of numerical errors.
HISTORY = r"^(cost|numerics|engine\.Calls|memory\.(Stages|Narrow|Paper)|checkpoints\.Checkpoints\.track)"

# Exit code of `reproduce run` with something to report; any other failure is one of the command itself.
SOME_FAILED = 1


def install(session: nox.Session, *groups: str) -> None:
    """The suite itself, its dependencies and those of the dependency groups, all as pinned."""
    if os.environ.get("PYTHONDONTWRITEBYTECODE"):
        # Images of containers often set it. Then each process compiles all of torch anew, which takes longer than most
        # tests; what is compiled can be kept in the session's own folder.
        session.env["PYTHONDONTWRITEBYTECODE"] = ""
        session.env["PYTHONPYCACHEPREFIX"] = str(Path(session.virtualenv.location, "compiled"))
    of_groups = [f"--group={group}" for group in groups]
    session.install("--editable", ".", *of_groups, "--constraint", CONSTRAINTS, "--build-constraint", CONSTRAINTS)


def install_ffcv(session: nox.Session) -> None:
    """FFCV, and the system packages that it takes; where it cannot be had, say why and go on with other loaders."""
    missing = [package for package, there in FFCV_NEEDS.items() if not there()]
    if missing and not install_packages(session, missing):
        session.warn(
            f"FFCV is not installed, since the system packages {' '.join(missing)} are missing and could not be added: "
            f"going on without it (--loader memory or torchvision). Install them with `apt-get install "
            f"{' '.join(missing)}`"
        )
        return
    try:
        session.install("--editable", ".[ffcv]", "--constraint", CONSTRAINTS, "--build-constraint", CONSTRAINTS)
    except CommandFailed:
        session.warn("FFCV could not be compiled (see above): going on without it (--loader memory or torchvision)")


def install_packages(session: nox.Session, packages: list[str]) -> bool:
    """Install Debian's packages, as root or with sudo; whether that succeeded."""
    if shutil.which("apt-get") is None:
        return False
    root: list[str] = []
    if os.geteuid() != 0:
        if shutil.which("sudo") is None:
            return False
        # Where nobody can type a password, sudo must not ask for one.
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
    """Whether pkg-config is there and finds the library."""
    try:
        return subprocess.run(["pkg-config", "--exists", library], check=False).returncode == 0
    except FileNotFoundError:
        return False


def reproduce(session: nox.Session, *arguments: str) -> None:
    """`python -m reproduce` with these arguments."""
    # On Ctrl-C a run finishes its tick and saves. Without this setting nox would kill it after 0.3 seconds.
    session.run("python", "-m", "reproduce", *arguments, interrupt_timeout=None)


def run_and_report(session: nox.Session, scale: str, *chosen: str) -> None:
    """Run cells of a scale, then write the report from the same records, even if some of them failed.

    Not after Ctrl-C, nor where nothing was run.
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
    """What of a run's options says where the records are."""
    for number, option in enumerate(options):
        if option == "--records":
            return list(options[number : number + 2])
        if option.startswith("--records="):
            return [option]
    return []


@nox.session(name="reproduce-smoke")
def reproduce_smoke(session: nox.Session) -> None:
    """The main job: train every method on handwritten digits in minutes, then write the report.

    Arguments after `--` go to `python -m reproduce run smoke`, as with every session reproduce-…: see `-- --help`.
    What is finished is not run again. The report is written even if some runs failed, and shows them as what they are.
    """
    install(session)
    run_and_report(session, "smoke")


@nox.session(name="reproduce-small")
def reproduce_small(session: nox.Session) -> None:
    """CIFAR-10 with narrow networks in a few epochs, then the report: `-- --data-root DIR --dry-run`."""
    install(session)
    run_and_report(session, "small")


@nox.session(name="reproduce-cifar10")
def reproduce_cifar10(session: nox.Session) -> None:
    """The paper's runs on CIFAR-10, and those of Table 4 on CIFAR-100, then the report."""
    install(session)
    install_ffcv(session)
    run_and_report(session, "paper", "--only=dataset=cifar10,cifar100")


@nox.session(name="reproduce-imagenet32")
def reproduce_imagenet32(session: nox.Session) -> None:
    """The paper's runs on ImageNet32, then the report."""
    install(session)
    install_ffcv(session)
    run_and_report(session, "paper", "--only=dataset=imagenet32")


@nox.session(name="reproduce-imagenet")
def reproduce_imagenet(session: nox.Session) -> None:
    """The paper's runs on ImageNet, then the report: `-- --k 1,4 --models revnet18 --data-root DIR --device cuda`."""
    install(session)
    install_ffcv(session)
    run_and_report(session, "paper", "--only=dataset=imagenet")


@nox.session(name="reproduce-pareprop")
def reproduce_pareprop(session: nox.Session) -> None:
    """Measure PaReprop beside reversible backpropagation and backpropagation on transformers, then write the report.

    Arguments go to `python -m benchmarks.pareprop`, as in `-- --networks revswin_tiny --size 224 --batches 64`. A run
    of other networks, or of another machine, is kept beside the first with `-- --record pareprop-NAME`.
    """
    install(session)
    options = session.posargs
    record = [] if "--record" in options else ["--record"]
    session.run("python", "-m", "benchmarks.pareprop", *record, *options)
    if not {"--help", "-h"} & set(options):
        reproduce(session, "report", *records_option(options))


@nox.session
def records(session: nox.Session) -> None:
    """See to records: `-- list`, `-- check`, `-- merge SOURCE...` brings those of other machines here."""
    install(session)
    reproduce(session, "records", *session.posargs)


@nox.session
def train(session: nox.Session) -> None:
    """Train one network with every setting an option: `-- --help` lists them."""
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
    """Write the report anew from the records that are there; arguments go to `python -m reproduce report`."""
    install(session)
    reproduce(session, "report", *session.posargs)


@nox.session
def peers(session: nox.Session) -> None:
    """Measure other implementations of reversible training beside ours: `-- --threads 2 --record`, `-- --help`."""
    install(session)
    session.install("--requirement", "benchmarks/peers/requirements.txt", "--constraint", CONSTRAINTS)
    session.run("python", "-m", "benchmarks.peers", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests, a process of one thread on every core, at most four; arguments go to pytest."""
    install(session, "tests")
    install_ffcv(session)
    # Not more than four: some tests hold gigabytes.
    processes = min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    # Neighbours in a file share what is expensive to make, so each process gets whole stretches. One that dies is the
    # failure of the test that it ran, and another takes its place, as often as that happens. (With --dist=load, the
    # default, xdist itself breaks off where two die at once.)
    xdist = (f"--numprocesses={processes}", "--dist=worksteal", f"--max-worker-restart={sys.maxsize}")
    session.run("pytest", *xdist, *session.posargs, env=ONE_THREAD)


@nox.session
def mutants(session: nox.Session) -> None:
    """Change the engine at 200 places, one at a time, and see whether its tests notice; takes an hour or more."""
    install(session, "tests")
    session.run("python", "-m", "tests.mutants", *session.posargs, env=ONE_THREAD)


@nox.session
def cluster(session: nox.Session) -> None:
    """Try docs/cluster.md with a Slurm of one node, started for that; skipped where Slurm is not installed."""
    install(session, "tests")
    session.run("pytest", "tests/cluster", *session.posargs, env=ONE_THREAD)


@nox.session
def benchmarks(session: nox.Session) -> None:
    """Run every benchmark once, to see that it runs; `-- BASE` compares HEAD with the commit BASE instead.

    What is said of the first are no timings to keep. The second takes as long as it needs to tell what has become
    slower or larger from what is noise; arguments after `--` go to `python -m benchmarks.against`.
    """
    install(session, "benchmarks")
    asv_machine(session)
    if session.posargs:
        session.run("python", "-m", "benchmarks.against", *session.posargs)
    else:
        install_ffcv(session)
        session.run("asv", "run", "--quick", "--show-stderr", "--environment=existing:same")


@nox.session(name="benchmarks-html")
def benchmarks_html(session: nox.Session) -> None:
    """Make pages of the history and of what `asv run` has left on this machine, in reports/benchmarks."""
    if session.run("git", "rev-parse", "--is-shallow-repository", silent=True, external=True) == "true\n":
        session.error("this clone is shallow, so the pages would have no points: run `git fetch --unshallow` first")
    install(session, "benchmarks")
    asv_machine(session)
    # What asv publishes is what it last discovered: with the full profile, all that there may be results of.
    discover = ("asv", "run", "--bench=just-discover", "--environment=existing:same")
    session.run(*discover, env={"PETRA_BENCHMARKS": "full"})
    session.run("asv", "publish", *session.posargs)


@nox.session(name="benchmarks-history")
def benchmarks_history(session: nox.Session) -> None:
    """Measure HEAD's counts and numerical errors, to be committed; `-- A..B --steps 12` adds older commits.

    Arguments go to `asv run`. What is in reports/asv already is not measured again.
    """
    install(session, "benchmarks")
    asv_machine(session)
    # Rounding is that of the kernels, which torch chooses by the processor; nothing else of a machine is in there.
    print_kernels = "import torch; print(torch.backends.cpu.get_cpu_capability().lower())"
    machine = f"kernels-{str(session.run('python', '-c', print_kernels, silent=True)).strip()}"
    # What an older commit cannot do yet fails there, and is no reason to stop.
    succeeded = (0, ASV_SOME_FAILED) if session.posargs else (0,)
    with unchanged(ASV_MACHINES):  # where there are two, asv would ask for one under any other name of this machine
        session.run("asv", "machine", f"--machine={machine}", "--os=any", "--cpu=any", "--num_cpu=any", "--ram=any")
        command = ("asv", "run", f"--machine={machine}", f"--bench={HISTORY}", "--skip-existing")
        # One thread, so that sums have one order whatever the machine's cores.
        session.run(*command, *session.posargs, env=ONE_THREAD, success_codes=succeeded)


def asv_machine(session: nox.Session) -> None:
    """Tell asv what this machine is, or it would ask."""
    if not ASV_MACHINES.expanduser().exists():
        session.run("asv", "machine", "--yes")


@contextlib.contextmanager
def unchanged(file: Path) -> Iterator[None]:
    """Whatever is written into the file meanwhile, it ends as it was."""
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
    # Not a warning about our pages but the announcement that mkdocs.yml mentions.
    session.run("mkdocs", "build", "--strict", *session.posargs, env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def lock(session: nox.Session) -> None:
    """Pin the newest versions that pyproject.toml allows in constraints.txt: one version of each for all platforms.

    Arguments go to `uv pip compile`, as `-- --upgrade-package torch`; without any everything is upgraded.
    """
    groups = nox.project.load_toml("pyproject.toml")["dependency-groups"]
    # With FFCV: its pins stand in the file for the machines that can have it.
    session.install("uv")
    session.run(
        *("uv", "pip", "compile", "pyproject.toml", "--quiet", "--output-file", CONSTRAINTS),
        *(f"--group={group}" for group in groups),
        "--extra=ffcv",
        *("--universal", "--fork-strategy=fewest", "--python-version=3.11"),
        *("--no-annotate", "--custom-compile-command", "nox -s lock"),
        *(session.posargs or ["--upgrade"]),
    )
