"""Every command that a person needs: `nox -l` lists them, the README shows how to get nox.

Each session has an environment of its own below .nox/, made by uv with the Python that runs nox, from the versions that
constraints.txt pins. It is kept, so that a second call starts within seconds.
"""

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "uv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "tests"]

CONSTRAINTS = "constraints.txt"
PYTHON_FILES = ("petra_core", "reproduce", "benchmarks", "tests", "noxfile.py")
# pytest-xdist fills the cores; more threads would only get into each other's way.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

SOME_FAILED = 1  # exit code of `reproduce run`; any other failure is one of the command itself


def install(session: nox.Session, *groups: str) -> None:
    """The suite itself, its dependencies and those of the dependency groups, all as pinned."""
    of_groups = [f"--group={group}" for group in groups]
    session.install("--editable", ".", *of_groups, "--constraint", CONSTRAINTS, "--build-constraint", CONSTRAINTS)


def reproduce(session: nox.Session, *arguments: str) -> None:
    """`python -m reproduce` with these arguments."""
    # On Ctrl-C a run finishes its tick and saves. Without this setting nox would kill it after 0.3 seconds.
    session.run("python", "-m", "reproduce", *arguments, interrupt_timeout=None)


@nox.session(name="reproduce-smoke")
def reproduce_smoke(session: nox.Session) -> None:
    """The main job: train every method on handwritten digits in minutes, then write the report.

    Arguments after `--` go to `python -m reproduce run smoke`. What is finished is not run again. The report is written
    even if some runs failed, and shows them as what they are.
    """
    install(session)
    try:
        reproduce(session, "run", "smoke", *session.posargs)
    except CommandFailed as failure:
        if failure.return_code == SOME_FAILED:
            reproduce(session, "report")
        raise
    reproduce(session, "report")


@nox.session
def train(session: nox.Session) -> None:
    """Train one network with every setting an option: `-- --help` lists them."""
    install(session)
    reproduce(session, "train", *session.posargs)


@nox.session
def report(session: nox.Session) -> None:
    """Write the report anew from the records that are there; arguments go to `python -m reproduce report`."""
    install(session)
    reproduce(session, "report", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests, in two processes of one thread each; arguments go to pytest."""
    install(session, "tests")
    session.run("pytest", "--numprocesses=2", *session.posargs, env=ONE_THREAD)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style (ruff), formatting and types (mypy, strict)."""
    install(session, "lint")
    session.run("ruff", "check", *PYTHON_FILES)
    session.run("ruff", "format", "--check", *PYTHON_FILES)
    session.run("mypy")


@nox.session
def lock(session: nox.Session) -> None:
    """Pin the newest versions that pyproject.toml allows in constraints.txt: one version of each for all platforms.

    Arguments go to `uv pip compile`, as `-- --upgrade-package torch`; without any everything is upgraded.
    """
    groups = nox.project.load_toml("pyproject.toml")["dependency-groups"]
    session.install("uv")
    session.run(
        *("uv", "pip", "compile", "pyproject.toml", "--quiet", "--output-file", CONSTRAINTS),
        *(f"--group={group}" for group in groups),
        *("--universal", "--fork-strategy=fewest", "--python-version=3.11"),
        *("--no-annotate", "--custom-compile-command", "nox -s lock"),
        *(session.posargs or ["--upgrade"]),
    )
