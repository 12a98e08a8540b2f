"""Table 3: the published values keep their mark, and what the rule gives stands beside them."""

import pytest

from reproduce import published
from reproduce.exhibits import table3
from reproduce.modelling.buffer_rules import CONSISTENT_RULE
from reproduce.records import results
from reproduce.show.content import Table, Tone


def test_section_has_the_published_values_with_their_mark_and_a_difference_of_nought() -> None:
    section = table3.section(results.Results((), ()))
    table = section.blocks[1]
    assert isinstance(table, Table)
    for row, line in zip(published.read("table3_memory"), table.rows, strict=True):
        assert (line[2].text, line[2].mark, line[2].tone) == (row["memory_gb"], row.mark, Tone.PUBLISHED)
        assert line[5].text == "0.0"
    assert section.findings[0].tone is Tone.GOOD
    assert "4 of 4 rows" in section.findings[0].text


def test_finding_is_an_alert_when_the_digits_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table3, "PUBLISHED_RULE", CONSISTENT_RULE)
    finding = table3.section(results.Results((), ())).findings[0]
    assert finding.tone is Tone.ALERT
    assert "0 of 4 rows" in finding.text
