"""Test the command that compares bits before and after a change."""

import json
from pathlib import Path

import pytest

from petra_core import methods
from tests import bitwise

ONE = {"chain8 PETRA": {"losses": "a", "weights": "b"}}


def test_differences_name_the_training_and_the_part() -> None:
    """`differences` names each training whose losses or weights differ."""
    assert bitwise.differences(ONE, ONE) == []
    assert bitwise.differences(ONE, {"chain8 PETRA": {"losses": "a", "weights": "c"}}) == [
        "chain8 PETRA: weights differ"
    ]
    assert bitwise.differences(ONE, {}) == ["chain8 PETRA: losses and weights differ"]


def test_hash_is_repeatable_and_depends_on_method() -> None:
    """A repeated training has the same hashes, and another method has different ones."""
    petra, again, backpropagation = (
        bitwise._hash(bitwise.cell("chain2", method))
        for method in (methods.PETRA, methods.PETRA, methods.BACKPROPAGATION)
    )
    assert petra == again
    assert all(petra[part] != backpropagation[part] for part in ("losses", "weights"))


def test_exit_status_reports_equal_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command exits with 0 for equal bits, 1 for differences and 2 if no hashes are stored."""
    monkeypatch.setattr(bitwise, "FILE", tmp_path / "bitwise.json")
    monkeypatch.setattr(bitwise, "hashes", lambda: ONE)
    assert bitwise.main([]) == 2, "nothing is stored for this machine"
    assert "--write" in capsys.readouterr().err
    assert bitwise.main(["--write"]) == 0
    assert bitwise.main([]) == 0
    changed = {bitwise.machine(): {"chain8 PETRA": {"losses": "z", "weights": "b"}}}
    bitwise.FILE.write_text(json.dumps(changed), encoding="utf-8")
    assert bitwise.main([]) == 1
    assert "losses differ" in capsys.readouterr().out
