"""The sessions: each runs its cells and ends with the report of the same records, also after failures."""

from types import SimpleNamespace

import pytest
from nox.command import CommandFailed

import noxfile


class Session:
    """Notes the commands of a session, and lets `run` end with an exit code."""

    def __init__(self, *posargs, code=0):
        self.posargs = list(posargs)
        self.commands = []
        self.env = {}
        self.virtualenv = SimpleNamespace(location="/environments/of-the-session")
        self._code = code

        self.installed, self.said, self.as_root = [], [], []

    def install(self, *arguments):
        self.installed.append(arguments)

    def log(self, text):
        self.said.append(text)

    warn = log

    def run_install(self, *command, external):
        assert external
        self.as_root.append(command)

    def run(self, *command, success_codes=(0,), **_):
        assert command[:3] == ("python", "-m", "reproduce")
        self.commands.append(command[3:])
        if command[3] == "run" and self._code not in success_codes:
            raise CommandFailed(return_code=self._code)


INSTALL_FFCV = noxfile.install_ffcv


@pytest.fixture(autouse=True)
def nothing_is_installed(monkeypatch):
    monkeypatch.setattr(noxfile, "install_ffcv", lambda session: None)


@pytest.mark.parametrize(
    ("run", "command"),
    [
        (noxfile.reproduce_smoke, ("run", "smoke")),
        (noxfile.reproduce_small, ("run", "small")),
        (noxfile.reproduce_cifar10, ("run", "paper", "--only=dataset=cifar10,cifar100")),
        (noxfile.reproduce_imagenet32, ("run", "paper", "--only=dataset=imagenet32")),
        (noxfile.reproduce_imagenet, ("run", "paper", "--only=dataset=imagenet")),
    ],
)
def test_every_session_runs_its_cells_then_writes_the_report(run, command):
    session = Session("--k", "1,4")
    run.func(session)
    assert session.commands == [(*command, "--k", "1,4"), ("report",)]


@pytest.mark.parametrize("options", [["--records", "here"], ["--k", "1", "--records", "here", "--jobs", "2"]])
def test_the_report_is_of_the_records_of_the_run(options):
    session = Session(*options)
    noxfile.reproduce_smoke.func(session)
    assert session.commands[-1] == ("report", "--records", "here")
    session = Session("--records=here")
    noxfile.reproduce_smoke.func(session)
    assert session.commands[-1] == ("report", "--records=here")


def test_after_failures_there_is_a_report_and_the_session_fails():
    session = Session(code=noxfile.SOME_FAILED)
    with pytest.raises(CommandFailed):
        noxfile.reproduce_smoke.func(session)
    assert session.commands[-1] == ("report",)


@pytest.mark.parametrize("code", [2, 130])
def test_after_a_wrong_command_line_and_ctrl_c_there_is_none(code):
    session = Session(code=code)
    with pytest.raises(CommandFailed):
        noxfile.reproduce_smoke.func(session)
    assert [command[0] for command in session.commands] == ["run"]


@pytest.mark.parametrize("option", ["--dry-run", "--help", "-h"])
def test_a_plan_writes_no_report(option):
    session = Session(option)
    noxfile.reproduce_small.func(session)
    assert session.commands == [("run", "small", option)]


def test_what_is_compiled_is_kept_where_the_machine_would_not_keep_it(monkeypatch):
    session = Session()
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    noxfile.install(session)
    assert session.env == {}
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    noxfile.install(session)
    assert session.env["PYTHONDONTWRITEBYTECODE"] == ""
    assert session.env["PYTHONPYCACHEPREFIX"] == "/environments/of-the-session/compiled"


APT = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get")
ADDED = ("install", "-qq", "--yes", "--no-install-recommends", "g++", "libturbojpeg0-dev")


@pytest.mark.parametrize(
    ("user", "programs", "before"),
    [(0, ["apt-get"], ()), (1000, ["apt-get", "sudo"], ("sudo", "--non-interactive")), (1000, ["apt-get"], None)],
)
def test_what_ffcv_lacks_is_installed_by_those_who_may(monkeypatch, user, programs, before):
    needs = {"g++": False, "pkg-config": True, "libturbojpeg0-dev": False}
    monkeypatch.setattr(noxfile, "FFCV_NEEDS", {name: lambda there=there: there for name, there in needs.items()})
    monkeypatch.setattr(noxfile.shutil, "which", lambda name: f"/usr/bin/{name}" if name in programs else None)
    monkeypatch.setattr(noxfile.os, "geteuid", lambda: user)
    monkeypatch.setattr(noxfile.sys, "stdin", SimpleNamespace(isatty=lambda: False))
    session = Session()
    INSTALL_FFCV(session)
    if before is None:  # nobody may: it is said, and the session goes on with the other loaders
        assert (session.as_root, session.installed) == ([], [])
        assert "g++ libturbojpeg0-dev are missing" in session.said[-1]
        return
    assert session.as_root == [(*before, *APT, "update", "-qq"), (*before, *APT, *ADDED)]
    assert session.installed[0][:2] == ("--editable", ".[ffcv]")


def test_where_all_is_there_ffcv_is_all_that_is_installed(monkeypatch):
    monkeypatch.setattr(noxfile, "FFCV_NEEDS", {"g++": lambda: True})
    session = Session()
    INSTALL_FFCV(session)
    assert session.as_root == []
    assert len(session.installed) == 1
