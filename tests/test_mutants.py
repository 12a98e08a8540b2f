"""Test the mutation check: its changes, their removal, and its exit status."""

import ast
import signal
from pathlib import Path

import pytest

from tests import mutants
from tests.mutants import Mutant

SOURCE = '''"""Docstring."""
def f(items: list[int], k: int = 1) -> bool:
    """Say 2."""
    if not items and k < 3:
        raise ValueError(f"{k - 1} of 4")
    items.append(k + 5)
    return any(item == k for item in items)
'''


def test_mutants_cover_every_kind_but_no_messages(tmp_path: Path) -> None:
    """Mutants cover every kind of change, skip docstrings and error messages, and are valid Python."""
    file = tmp_path / "module.py"
    file.write_text(SOURCE, encoding="utf-8")
    changes = {(mutant.before, mutant.after) for mutant in mutants.mutants(file, tmp_path)}
    assert changes == {
        ("1", "2"),
        ("not items and k < 3", "(not items or k < 3)"),
        ("not items", "(items)"),
        ("k < 3", "k <= 3"),
        ("3", "4"),
        ("items.append(k + 5)", "pass"),
        ("k + 5", "(k - 5)"),
        ("5", "6"),
        ("any(item == k for item in items)", "all((item == k for item in items))"),
        ("item == k", "item != k"),
    }
    for mutant in mutants.mutants(file, tmp_path):
        ast.parse(mutant.apply(SOURCE.encode()))


def test_chosen_depends_only_on_seed() -> None:
    """`chosen` draws the same mutants for equal seeds and different ones for different seeds."""
    assert mutants.chosen(5, 3) == mutants.chosen(5, 3)
    assert mutants.chosen(5, 3) != mutants.chosen(5, 4)
    folders = {Path(mutant.file).parent for mutant in mutants.chosen(200, 0)}
    assert folders == {Path("petra_core"), Path("petra_core/inspection")}


def test_chosen_keeps_mutants_if_another_line_changes(tmp_path: Path) -> None:
    """An edit of the engine replaces only mutants of the edited lines."""
    for file in mutants.engine_files():
        copied = tmp_path / file.relative_to(mutants.ROOT)
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_bytes(b"ADDED = 1\n" + file.read_bytes())
    before, after = ({mutant.key for mutant in mutants.chosen(200, 0, root)} for root in (mutants.ROOT, tmp_path))
    assert len(before & after) > 0.9 * len(before)


def test_mutant_is_caught_without_changing_a_file(tmp_path: Path) -> None:
    """The tests fail with a mutant and pass without any, a timeout has a separate status, and no file changes."""
    file = mutants.ROOT / "petra_core" / "errors.py"
    before = file.read_bytes()
    mutant = next(m for m in mutants.mutants(file) if "<" in m.before or ">" in m.before)
    mutants.copy_repository(tmp_path)
    tests = ("tests/petra_core/test_errors.py",)
    assert mutants.status(None, tmp_path, tests, 100) == 0
    assert mutants.status(mutant, tmp_path, tests, 100) == pytest.ExitCode.TESTS_FAILED
    assert mutants.status(None, tmp_path, tests, 0.01) == -signal.SIGALRM
    assert (tmp_path / mutant.file).read_bytes() == file.read_bytes() == before


def test_report_fails_if_a_mutant_survives(capsys: pytest.CaptureFixture[str]) -> None:
    candidates = [Mutant("petra_core/a.py", line, "", "a < b", "a <= b", line) for line in range(40)]
    assert mutants.report(candidates, []) == 0
    assert mutants.report(candidates, candidates[7:8]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "100.0% of 40 mutants caught",
        "not explained: petra_core/a.py:7: a < b -> a <= b",
        "97.5% of 40 mutants caught",
    ]
