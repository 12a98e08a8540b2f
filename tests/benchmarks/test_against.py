"""Test the comparison of two commits: the verdict on each benchmark, and that each commit is measured twice."""

import math
from pathlib import Path

import pytest
from asv import util
from asv.results import Results
from asv.runner import BenchmarkResult

from benchmarks import against
from benchmarks.against import ChangeVerdict, ComparedBenchmark


def row(base: tuple[float | None, ...], head: tuple[float | None, ...], name: str = "a") -> ComparedBenchmark:
    return ComparedBenchmark(name, "seconds", base, head)


def test_verdicts():
    """The verdict follows from the ratio of the two ranges, and covers noise, failures and skips."""
    for base, head, verdict in (
        ((1.0, 1.1), (1.5, 1.3), ChangeVerdict.SAME),  # 1.3 is within 1.2 times 1.1
        ((1.0, 1.1), (1.5, 1.33), ChangeVerdict.WORSE),
        ((1.0, 1.1), (0.84, 0.8), ChangeVerdict.SAME),
        ((1.0, 1.1), (0.83, 0.8), ChangeVerdict.BETTER),
        ((1.0, 1.21), (9.0, 9.0), ChangeVerdict.NOISY),
        ((0.0, 0.0), (1e-9, 1e-9), ChangeVerdict.WORSE),  # bitwise equal before, and no longer
        ((0.0, 0.0), (0.0, 0.0), ChangeVerdict.SAME),
        ((1.0, 1.0), (None, None), ChangeVerdict.FAILS),
        ((None, None), (1.0, 1.0), ChangeVerdict.UNKNOWN),
        ((1.0, 1.0), (math.nan, math.nan), ChangeVerdict.SKIPPED),
    ):
        assert row(base, head).verdict(1.2) is verdict, (base, head)


def test_report_lists_noisy_and_regressed_benchmarks():
    rows = [
        row((1, 1), (1, 1), "same"),
        row((1, 2), (9, 9), "noisy"),
        row((1, 1), (2, 2), "worse"),
        row((1, 1), (None, None), "fails"),
        ComparedBenchmark("drift", "relative", (0, 0), (1.23456e-7, 1.23456e-7)),
    ]
    lines = against.report(rows, 1.2).splitlines()
    assert [line.split()[-1] for line in lines[:6]] == ["benchmark", "drift", "worse", "fails", "same", "noisy"]
    assert lines[1].split() == ["worse", "0", "0", "1.23e-07", "1.23e-07", "drift"]
    assert lines[2].split() == ["worse", "1.00s", "1.00s", "2.00s", "2.00s", "2.00", "worse"]
    assert lines[-2] == "noisy (differs from itself by more than 1.2), not judged: noisy"
    assert lines[-1] == "regressed: drift, worse, fails"
    assert against.report(rows[:2], 1.2).endswith("\nnothing regressed by more than 1.2")
    for nothing in ([], [row((None, None), (None, None))]):
        assert "nothing was measured at both commits" in against.report(nothing, 1.2)
        assert "regressed" not in against.report(nothing, 1.2)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Make a project of two commits with a configuration of asv. Nothing is measured in it."""
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


def store(root: Path, commit: str, values: list[float | None]) -> None:
    """Store results as asv does."""
    benchmark = {"name": "a.B.track_c", "version": "1", "params": [["'x'", "'y'"]], "unit": "bytes"}
    results = Results({"machine": "here"}, {}, commit, 0, "3.11", "virtualenv-py3.11", {})
    nothing = [None] * len(values)
    results.add_result(benchmark, BenchmarkResult(values, nothing, nothing, 0, "", None))
    results.save(str(root / "results"))
    util.write_json(str(root / "results" / "benchmarks.json"), {benchmark["name"]: benchmark}, 2)


@pytest.mark.parametrize("base", [[100, 7], [None, None]])
@pytest.mark.parametrize(("head", "code"), [([100, 7], 0), ([300, 7], 1), ([100, None], 1)])
def test_exit_code_reports_regressions(repository, monkeypatch, capsys, base, head, code):
    """Each commit is measured twice, and a regression or an unmeasured base gives exit code 1."""
    measured = []

    def measure(commits, options):
        measured.extend(commits)
        for commit, values in zip(commits, (base, base, head, head), strict=True):
            store(repository, commit, values)

    monkeypatch.setattr(against, "measure", measure)
    # If the base could not be installed, nothing is known, which is not a success.
    assert against.main(["HEAD^", "--factor", "1.5"]) == (code if base[0] else 1)
    base, judged = against._git("rev-parse", "HEAD^"), against._git("rev-parse", "HEAD")
    again = against.same_files(base)
    assert against._git("diff", base, again) == against._git("branch", "--all", "--contains", again) == ""
    assert measured == [base, against.same_files(base), judged, against.same_files(judged)]
    printed = capsys.readouterr().out
    assert "a.B.track_c('x')" in printed
    assert "a.B.track_c('y')" in printed
    kept = {file.name.split("-")[0] for file in (repository / "results" / "here").glob("*-*.json")}
    assert kept == {base[:8], judged[:8]}  # the second measurements do not belong to the history


def test_main_rejects_unknown_and_equal_commits(repository, capsys):
    with pytest.raises(SystemExit, match=r"git rev-parse --verify nowhere\^\{commit\}: fatal"):
        against.main(["nowhere"])
    with pytest.raises(SystemExit):
        against.main(["main"])
    assert "main and HEAD are the same commit" in capsys.readouterr().err
