"""Test the sessions: each runs its cells and then writes the report of the same records, even after failures."""

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
        monkeypatch.setattr(noxfile, name, lambda session: None)


def test_every_session_runs_its_cells_then_writes_the_report():
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
def test_the_report_is_of_the_records_of_the_run(options):
    session = Session(*options)
    noxfile.reproduce_smoke.func(session)
    assert "=".join(session.commands[-1]) == "reproduce=report=--records=here"


@pytest.mark.parametrize(("code", "commands"), [(noxfile.SOME_FAILED, ["run", "report"]), (2, ["run"])])
def test_after_failures_there_is_a_report_and_after_a_wrong_command_line_none(code, commands):
    session = Session(code=code)
    with pytest.raises(CommandFailed):
        noxfile.reproduce_smoke.func(session)
    assert [command[1] for command in session.commands] == commands


@pytest.mark.parametrize("option", ["--dry-run", "-h"])
def test_a_plan_writes_no_report(option):
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
def test_pareprop_is_measured_then_shown(options, commands):
    session = Session(*options)
    noxfile.reproduce_pareprop.func(session)
    assert session.commands == commands


def test_pages_of_the_history_need_the_history():
    class Shallow:
        def run(self, *command, **_):
            assert command == ("git", "rev-parse", "--is-shallow-repository")
            return "true\n"

        def error(self, message):
            raise ValueError(message)

    with pytest.raises(ValueError, match="git fetch --unshallow"):
        noxfile.benchmarks_html.func(Shallow())
