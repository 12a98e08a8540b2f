"""Test the mutation check: its changes, their removal, and its exit status."""

import ast
from pathlib import Path

import pytest

from tests import mutants
from tests.mutants import Mutant, Workplace

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
        mutant.apply(tmp_path)
        ast.parse(file.read_text(encoding="utf-8"))
        file.write_text(SOURCE, encoding="utf-8")


def test_chosen_depends_only_on_seed() -> None:
    """`chosen` draws the same mutants for equal seeds and different ones for different seeds."""
    assert mutants.chosen(5, 3) == mutants.chosen(5, 3)
    assert mutants.chosen(5, 3) != mutants.chosen(5, 4)
    folders = {Path(mutant.file).parent for mutant in mutants.chosen(200, 0)}
    assert folders == {Path("petra_core"), Path("petra_core/inspection")}


def test_workplace_catches_mutant_in_copy_and_reverts_it(tmp_path: Path) -> None:
    """A mutant is caught in a copy and reverted there, a timeout counts as caught, and the source is unchanged."""
    file = mutants.ROOT / "petra_core" / "errors.py"
    before = file.read_bytes()
    mutant = next(m for m in mutants.mutants(file) if "<" in m.before or ">" in m.before)
    place = Workplace(tmp_path, ("tests/petra_core/test_errors.py",))
    assert not place.caught(None, 100)
    assert place.caught(mutant, 100)
    assert (tmp_path / mutant.file).read_bytes() == before
    assert place.caught(None, 0.01), "what takes too long is caught"
    assert file.read_bytes() == before


def test_report_fails_on_unexplained_survivor(capsys: pytest.CaptureFixture[str]) -> None:
    """A surviving mutant without an explanation gives exit status 1."""
    candidates = [Mutant("petra_core/a.py", line, "a < b", "a <= b", line) for line in range(40)]
    other = Mutant("petra_core/b.py", 7, "1", "2", 0)
    assert mutants.report(candidates, [], {}) == 0
    assert mutants.report([*candidates, other], [other], {}) == 1
    assert "not explained: petra_core/b.py:7: 1 -> 2" in capsys.readouterr().out
    assert mutants.report([*candidates, other], [other], {other.key: "the value is not used"}) == 0
    assert "100.0% of 40 mutants caught; 1 more are listed" in capsys.readouterr().out
