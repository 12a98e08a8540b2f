"""Test errors in the published values. The golden texts have the values and their marks."""

import pytest

from reproduce import published


def test_invalid_number_or_mark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text in place of a number, and an unknown mark, raise a ValueError."""
    row = published.read("table1_complexity")[0]
    assert row["activation_storage"] == "FG"
    with pytest.raises(ValueError, match="FG"):
        row.number("activation_storage")
    monkeypatch.setattr(published.csv, "DictReader", lambda _: [{"source": "hearsay"}])
    with pytest.raises(ValueError, match="hearsay"):
        published.read("table3_memory")
