"""Two commits side by side: what is said of each benchmark, and that the base is measured twice."""

import math
import subprocess
from pathlib import Path

import pytest
from asv import util
from asv.results import Results
from asv.runner import BenchmarkResult

from benchmarks import against
from benchmarks.against import Row, Verdict


def row(base: float | None, again: float | None, head: float | None, name: str = "a.B.time_c") -> Row:
    return Row(name, "seconds", base, again, head)


@pytest.mark.parametrize(
    ("base", "again", "head", "verdict"),
    [
        (1.0, 1.1, 1.3, Verdict.SAME),  # 1.3 is within 1.2 times the larger one
        (1.0, 1.1, 1.33, Verdict.WORSE),
        (1.1, 1.0, 1.33, Verdict.WORSE),
        (1.0, 1.1, 0.84, Verdict.SAME),
        (1.0, 1.1, 0.83, Verdict.BETTER),
        (1.0, 1.21, 9.0, Verdict.NOISY),
        (1.21, 1.0, 0.1, Verdict.NOISY),
        (0.0, 0.0, 1e-9, Verdict.WORSE),  # equal to the bit before, and no longer
        (0.0, 0.0, 0.0, Verdict.SAME),
        (0.0, 1e-9, 0.0, Verdict.NOISY),
        (1.0, 1.0, None, Verdict.FAILS),
        (None, None, 1.0, Verdict.UNKNOWN),
        (1.0, None, 1.0, Verdict.UNKNOWN),
        (math.nan, math.nan, math.nan, Verdict.SKIPPED),
        (1.0, 1.0, math.nan, Verdict.SKIPPED),
    ],
)
def test_verdicts(base, again, head, verdict):
    assert row(base, again, head).verdict(1.2) is verdict


def test_the_report_names_what_is_noisy_and_what_regressed():
    rows = [row(1, 1, 1, "same"), row(1, 2, 9, "noisy"), row(1, 1, 2, "worse"), row(1, 1, None, "fails")]
    lines = against.report(rows, 1.2).splitlines()
    assert [line.split()[-1] for line in lines[:5]] == ["benchmark", "worse", "fails", "same", "noisy"]
    assert lines[1].split()[:-1] == ["worse", "1.00s", "1.00s", "2.00s", "2.00"]
    assert lines[-2] == "noisy (the base differs from itself by more than 1.2), not judged: noisy"
    assert lines[-1] == "regressed: worse, fails"
    assert against.report(rows[:2], 1.2).endswith("\nnothing regressed by more than 1.2")


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A project of two commits with a configuration of asv; nothing is ever measured in it."""
    monkeypatch.setattr(against, "ROOT", tmp_path)
    for key in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{key}_NAME", "somebody")
        monkeypatch.setenv(f"GIT_{key}_EMAIL", "somebody@localhost")
    against._git("init", "--quiet", "--initial-branch=main")
    (tmp_path / "asv.conf.json").write_text('{"version": 1, "repo": ".", "results_dir": "results"}')
    against._git("add", ".")
    against._git("commit", "--quiet", "--message=first")
    against._git("commit", "--quiet", "--allow-empty", "--message=second")
    return tmp_path


def test_the_base_once_more_has_its_files_and_is_in_no_branch(repository):
    base = against._git("rev-parse", "HEAD")
    again = against.same_files(base)
    assert again == against.same_files(base) != base
    assert against._git("diff", base, again) == ""
    assert against._git("branch", "--all", "--contains", again) == ""


def store(root: Path, commit: str, values: list[float | None]) -> None:
    """Results as asv leaves them."""
    benchmark = {"name": "a.B.track_c", "version": "1", "params": [["'x'", "'y'"]], "unit": "bytes"}
    results = Results({"machine": "here"}, {}, commit, 0, "3.11", "virtualenv-py3.11", {})
    nothing = [None] * len(values)
    results.add_result(benchmark, BenchmarkResult(values, nothing, nothing, 0, "", None))
    results.save(str(root / "results"))
    util.write_json(str(root / "results" / "benchmarks.json"), {benchmark["name"]: benchmark}, 2)


@pytest.mark.parametrize(("head", "code"), [([100, 7], 0), ([300, 7], 1), ([100, None], 1)])
def test_the_exit_code_tells_whether_something_regressed(repository, monkeypatch, capsys, head, code):
    measured = []

    def measure(commits, options):
        measured.extend(commits)
        for commit, values in zip(commits, ([100, 7], [100, 7], head), strict=True):
            store(repository, commit, values)

    monkeypatch.setattr(against, "measure", measure)
    assert against.main(["HEAD^", "--factor", "1.5"]) == code
    base, again, judged = measured
    assert (base, judged) == (against._git("rev-parse", "HEAD^"), against._git("rev-parse", "HEAD"))
    assert again == against.same_files(base)
    printed = capsys.readouterr().out
    assert "a.B.track_c('x')" in printed
    assert "a.B.track_c('y')" in printed
    kept = {file.name.split("-")[0] for file in (repository / "results" / "here").glob("*-*.json")}
    assert kept == {base[:8], judged[:8]}  # what was measured twice belongs to no history


def test_no_commit_of_that_name(repository):
    with pytest.raises(SystemExit, match=r"git rev-parse --verify nowhere\^\{commit\}: fatal"):
        against.main(["nowhere"])


@pytest.mark.parametrize("options", [["--factor", "0.9"], ["--rounds", "0"]])
def test_options_out_of_range(options, capsys):
    with pytest.raises(SystemExit):
        against.main(["HEAD", *options])
    assert "is at least 1, got 0" in capsys.readouterr().err


def test_asv_measures_all_in_turns(repository, monkeypatch):
    commands = []

    def run(command, **_):
        commands.append(command)
        return subprocess.CompletedProcess(command, against.SOME_FAILED)

    monkeypatch.setattr(subprocess, "run", run)
    against.measure(["b", "a", "h"], against.argparse.Namespace(bench=["^tick", "^stage"], rounds=3))
    words = commands[0][3:]
    assert words[:4] == ["run", "--interleave-rounds", "--attribute", "rounds=3"]
    assert words[4:8] == ["--bench", "^tick", "--bench", "^stage"]
    assert Path(words[8].removeprefix("HASHFILE:")).read_text() == "b\na\nh"
