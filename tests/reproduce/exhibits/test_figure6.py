"""Figure 6: the course over training, in as many points as the records have."""

import csv
import io
from pathlib import Path

import pytest

from reproduce.cells.kinds import GradientsCell
from reproduce.exhibits import figure6
from reproduce.exhibits.gradients import BETWEEN, METHOD
from reproduce.records import results
from reproduce.show.content import Figure, Section, Table
from tests import fake_probes

SMALL = [cell for cell in figure6.cells("small") if isinstance(cell, GradientsCell)]


def later_worse(seed: int) -> fake_probes.Value:
    """PETRA's gradient closer in the first epoch by both measures, further in the last."""

    def value(pair: str, measure: str, stage: int, epoch: int) -> float | None:
        if stage == 9:
            return 1.0
        gain = (0.1 + 0.01 * seed) * (2 - epoch) * (-1 if measure == "relative_error" else 1)
        return 0.5 + 0.01 * stage + (gain if pair == METHOD else 0.3 if pair == BETWEEN else 0.0)

    return value


def section(root: Path, *, singly: bool, epochs: int | None = None, probes: int = 31) -> Section:
    for cell in SMALL[:3]:
        fake_probes.measure(cell, root, later_worse(cell.seed), singly=singly, epochs=epochs, probes=probes)
    return figure6.section(results.read(root))


def table(found: Section) -> Table:
    return next(block for block in found.blocks if isinstance(block, Table))


def test_the_statement_is_checked_part_by_part(tmp_path: Path) -> None:
    found = section(tmp_path, singly=False)
    rows = table(found).rows
    head = [(column.group, column.name) for column in table(found).columns]
    assert [row[1].text for row in rows] == ["0 to 1", "1 to 2", "2 to 3"]
    for measure in ("cosine similarity", "relative error"):
        claims = [row[head.index((measure, "the statement"))].text for row in rows]
        assert claims == ["agree", "cannot tell", "disagree"]
        assert rows[0][head.index((measure, "PETRA closer by"))].value == pytest.approx(0.11)
    assert rows[0][head.index(("cosine similarity", "delayed/e2e"))].text.startswith("0.540")  # stages 0 to 8
    assert "ours, part by part of the training: mixed (agree 2" in found.findings[0].text


def test_a_stretch_in_words() -> None:
    assert [figure6._epochs(length) for length in (1, 1 / 3, 12.5)] == ["an epoch", "0.33 epochs", "12 epochs"]


def test_epochs_or_finer_parts_as_the_records_have_them(tmp_path: Path) -> None:
    for singly, points in ((False, 3), (True, 24)):
        found = section(tmp_path / str(singly), singly=singly)
        lines = list(csv.DictReader(io.StringIO(table(found).csv())))
        assert len(lines) == points * 3 * 10
        assert len({line["epoch_begin"] for line in lines}) == points
        assert len(table(found).rows) == (6 if singly else 3)


def test_an_unfinished_run_has_the_epochs_that_there_are(tmp_path: Path) -> None:
    found = section(tmp_path, singly=False, epochs=2)
    assert [row[1].text for row in table(found).rows] == ["0 to 1", "1 to 2"]
    (figure,) = [block for block in found.blocks if isinstance(block, Figure)]
    assert "seed 0: 2 of 3 epochs" in figure.caption
    assert "at the stem from 0.61 to 0.50 at epoch 2" in figure.description


def test_a_value_that_is_not_defined_leaves_a_gap_and_no_error(tmp_path: Path) -> None:
    def nothing_at_the_stem(pair: str, measure: str, stage: int, epoch: int) -> float | None:
        return None if stage == 0 else later_worse(0)(pair, measure, stage, epoch)

    fake_probes.measure(SMALL[0], tmp_path, nothing_at_the_stem, singly=True)
    found = figure6.section(results.read(tmp_path))
    (figure,) = [block for block in found.blocks if isinstance(block, Figure)]
    assert "not defined at the stem" in figure.description
    lines = list(csv.DictReader(io.StringIO(table(found).csv())))
    assert {line[f"{METHOD}/cosine"] for line in lines if line["stage"] == "0"} == {""}


def test_of_many_stages_some_are_drawn_with_both_ends() -> None:
    assert figure6._chosen(10) == list(range(10))
    chosen = figure6._chosen(34)
    assert len(chosen) == figure6.PANELS
    assert (chosen[0], chosen[-1]) == (0, 33)
