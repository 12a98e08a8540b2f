"""Test the sessions: each runs its cells and then writes the report of the same records, even after failures."""

import contextlib

import pytest
from nox.command import CommandFailed

import noxfile


class Session:
    """Record the commands of a session, and end `run` with an exit code."""

    def __init__(self, *posargs, code=0):
        self.posargs = list(posargs)
        self.commands = []
        self._code = code

    def run(self, *command, success_codes=(0,), **_):
        assert command[:2] == ("python", "-m")
        self.commands.append(command[2:])
        if command[3] == "run" and self._code not in success_codes:
            raise CommandFailed(return_code=self._code)


@pytest.fixture(autouse=True)
def nothing_is_installed(monkeypatch):
    for name in ("install", "install_ffcv"):
        monkeypatch.setattr(noxfile, name, lambda *_: None)


def test_sessions_run_cells_then_write_report():
    """Each session passes its options to `run` and then calls `report`."""
    for run, command in (
        (noxfile.reproduce_smoke, ("run", "smoke")),
        (noxfile.reproduce_small, ("run", "small")),
        (noxfile.reproduce_cifar10, ("run", "paper", "--only=dataset=cifar10,cifar100")),
        (noxfile.reproduce_imagenet32, ("run", "paper", "--only=dataset=imagenet32")),
        (noxfile.reproduce_imagenet, ("run", "paper", "--only=dataset=imagenet")),
    ):
        session = Session("--k", "1,4")
        run.func(session)
        assert session.commands == [("reproduce", *command, "--k", "1,4"), ("reproduce", "report")]


@pytest.mark.parametrize("options", [("--k", "1", "--records", "here", "--jobs", "2"), ("--records=here",)])
def test_report_reads_records_of_run(options):
    """The report reads the records folder that was given to the run."""
    session = Session(*options)
    noxfile.reproduce_smoke.func(session)
    assert "=".join(session.commands[-1]) == "reproduce=report=--records=here"


@pytest.mark.parametrize(("code", "commands"), [(noxfile.SOME_FAILED, ["run", "report"]), (2, ["run"])])
def test_report_follows_failed_cells_but_not_usage_errors(code, commands):
    """The session writes the report after failed cells, but not after a usage error."""
    session = Session(code=code)
    with pytest.raises(CommandFailed):
        noxfile.reproduce_smoke.func(session)
    assert [command[1] for command in session.commands] == commands


@pytest.mark.parametrize("option", ["--dry-run", "-h"])
def test_dry_run_and_help_write_no_report(option):
    session = Session(option)
    noxfile.reproduce_small.func(session)
    assert session.commands == [("reproduce", "run", "small", option)]


@pytest.mark.parametrize(
    ("options", "commands"),
    [
        ((), [("benchmarks.pareprop", "--record"), ("reproduce", "report")]),
        (
            ("--record", "mine", "--records=here"),
            [("benchmarks.pareprop", "--record", "mine", "--records=here"), ("reproduce", "report", "--records=here")],
        ),
        (("--help",), [("benchmarks.pareprop", "--record", "--help")]),
    ],
)
def test_pareprop_session_measures_then_reports(options, commands):
    """The session records the PaReprop benchmark and then writes the report of the same records."""
    session = Session(*options)
    noxfile.reproduce_pareprop.func(session)
    assert session.commands == commands


@pytest.mark.parametrize(("code", "commands"), [(0, 1), (noxfile.ASV_SOME_FAILED, 2), (1, 1)])
def test_comparison_of_commits_is_shown_even_if_benchmarks_fail(monkeypatch, code, commands):
    """`asv continuous` gets both commits and the options, and `asv compare` follows it if benchmarks failed."""
    ran = []

    class Asv:
        posargs = ("v1", "--bench", "^stage")

        def run(self, *command, **_):
            ran.append(command)
            if command[1] == "continuous" and code:
                raise CommandFailed(return_code=code)

    monkeypatch.setattr(noxfile, "asv_machine", lambda session: None)
    with pytest.raises(CommandFailed) if code else contextlib.nullcontext():
        noxfile.benchmarks.func(Asv())
    assert ran[0][:4] == ("asv", "continuous", "v1", "HEAD")
    assert ran[0][-2:] == ("--bench", "^stage")
    assert [command[1:4] for command in ran[1:]] == [("compare", "v1", "HEAD")] * (commands - 1)


def test_benchmarks_html_refuses_shallow_clone():
    """The session refuses a shallow clone and suggests `git fetch --unshallow`."""

    class Shallow:
        def run(self, *command, **_):
            assert command == ("git", "rev-parse", "--is-shallow-repository")
            return "true\n"

        def error(self, message):
            raise ValueError(message)

    with pytest.raises(ValueError, match="git fetch --unshallow"):
        noxfile.benchmarks_html.func(Shallow())
