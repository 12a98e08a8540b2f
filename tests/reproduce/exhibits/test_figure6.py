"""Figure 6: the course over training, in as many parts as the records have, judged part by part."""

from pathlib import Path

import pytest

from reproduce.cells.kinds import GradientsCell
from reproduce.exhibits import figure6, gradients
from reproduce.exhibits._exhibit import sheets
from reproduce.exhibits.gradients import BETWEEN, METHOD
from reproduce.grids.plans import gradients as plan
from reproduce.records import results
from reproduce.records.frames import DataFrame, Frames
from reproduce.show.content import Figure, Section, Table
from tests import fake_probes
from tests.sections import made

SMALL = [cell for cell in plan.cells("small") if isinstance(cell, GradientsCell)]


def later_worse(seed: int) -> fake_probes.Value:
    """PETRA's gradient closer in the first epoch by both measures, further in the last."""

    def value(pair: str, measure: str, stage: int, epoch: int) -> float | None:
        if stage == 9:
            return 1.0
        gain = (0.1 + 0.01 * seed) * (2 - epoch) * (-1 if measure == "relative_error" else 1)
        return 0.5 + 0.01 * stage + (gain if pair == METHOD else 0.3 if pair == BETWEEN else 0.0)

    return value


def read(root: Path) -> Section:
    return made(figure6.EXHIBIT, root)


def measure(root: Path, *, singly: bool = False, epochs: int | None = None) -> Section:
    for cell in SMALL[:3]:
        fake_probes.measure(cell, root, later_worse(cell.seed), singly=singly, epochs=epochs, probes=31)
    return read(root)


def table(found: Section) -> Table:
    return next(block for block in found.blocks if isinstance(block, Table))


def figure(found: Section) -> Figure:
    return next(block for block in found.blocks if isinstance(block, Figure))


def parts(root: Path, most: int) -> DataFrame:
    sheet = next(sheet for sheet in sheets(Frames(results.read(root)), "figure6") if sheet.begun)
    return figure6.in_parts(gradients.comparisons(sheet, single=True), sheet.example.epochs, most)


def test_the_statement_is_checked_part_by_part_and_may_fail(tmp_path: Path) -> None:
    found = measure(tmp_path)
    rows = table(found).rows
    head = [(column.group, column.name) for column in table(found).columns]
    assert [row[1].text for row in rows] == ["0 to 1", "1 to 2", "2 to 3"]
    for name in ("cosine similarity", "relative error"):
        claims = [row[head.index((name, "the statement"))].text for row in rows]
        assert claims == ["agree", "cannot tell", "disagree"]
        assert rows[0][head.index((name, "PETRA closer by"))].value == pytest.approx(0.11)
    assert rows[0][head.index(("cosine similarity", "delayed/e2e"))].text.startswith("0.540")  # stages 0 to 8
    assert "ours, part by part of the training: mixed (agree 2" in found.findings[0].text


def test_a_table_has_fewer_parts_than_a_curve(tmp_path: Path) -> None:
    assert len(table(measure(tmp_path, singly=True)).rows) == 6
    assert parts(tmp_path, 24)["begin"].nunique() == 24


def test_a_record_with_means_only_has_a_part_an_epoch(tmp_path: Path) -> None:
    fake_probes.measure(SMALL[0], tmp_path, later_worse(0), singly=True, probes=31)
    fake_probes.measure(SMALL[1], tmp_path, later_worse(1), epochs=2)
    found = parts(tmp_path, 24)
    known = {tuple(ends): sorted(own["seed"].unique()) for ends, own in found.groupby(["begin", "end"])}
    assert known == {(0, 1): [0, 1], (1, 2): [0, 1], (2, 3): [0]}
    values = gradients.profiles(found, "begin")
    stem = values[(values["stage"] == 0) & (values["pair"] == METHOD) & (values["measure"] == "cosine")]
    assert list(stem[stem["seed"] == 0]["value"]) == pytest.approx([0.6, 0.5, 0.4])


@pytest.mark.parametrize(("probes", "count"), [(31, 24), (8, 8), (2, 2), (1, 1)])
def test_micro_batches_one_by_one_make_finer_parts(probes: int, count: int, tmp_path: Path) -> None:
    fake_probes.measure(SMALL[0], tmp_path, later_worse(0), singly=True, probes=probes)
    found = parts(tmp_path, 24)
    assert found["begin"].nunique() == count
    assert (found["begin"].min(), found["end"].max()) == (0, SMALL[0].epochs)


def test_an_unfinished_run_has_the_epochs_that_there_are(tmp_path: Path) -> None:
    found = measure(tmp_path, epochs=2)
    assert [row[1].text for row in table(found).rows] == ["0 to 1", "1 to 2"]
    assert "seed 0: 2 of 3 epochs" in figure(found).caption
    assert "PETRA and end-to-end from 0.61 to 0.50 at epoch 2" in found.sentence


def test_a_value_that_is_not_defined_leaves_a_gap_and_no_error(tmp_path: Path) -> None:
    def nothing_at_the_stem(pair: str, measure: str, stage: int, epoch: int) -> float | None:
        return None if stage == 0 else later_worse(0)(pair, measure, stage, epoch)

    fake_probes.measure(SMALL[0], tmp_path, nothing_at_the_stem, singly=True)
    found = read(tmp_path)
    assert "PETRA and end-to-end from not defined to not defined" in found.sentence
    assert all(row[3].value for row in table(found).rows)


def test_of_many_stages_some_are_drawn_with_both_ends() -> None:
    assert list(figure6._chosen(10)) == list(range(10))
    chosen = figure6._chosen(34)
    assert len(chosen) == figure6.PANELS
    assert (chosen[0], chosen[-1]) == (0, 33)
