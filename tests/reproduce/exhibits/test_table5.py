"""Test Table 5: arithmetic on invented stage costs, and texts that name what is modelled."""

from pathlib import Path
from typing import Any

import pytest

from reproduce.cells.kinds import StageCostCell
from reproduce.exhibits import table5
from reproduce.grids.plans import PLANS
from reproduce.presentation.content import TIMES, ExhibitStatus, Section
from reproduce.presentation.statements import ClaimVerdict
from reproduce.published import Mark
from tests import fake_records, sections

FOUR = [0.1, 0.4, 0.2, 0.1, *[0.0] * 6]  # forward times of RevNet-18's ten stages, only four of which cost anything


def made_up(forwards: list[float], update: float = 0.0) -> dict[str, Any]:
    """Return a result in which a backward takes twice a forward, and the update of every stage takes `update`."""
    last = len(forwards) - 1

    def times(seconds: float) -> dict[str, float]:
        return {"median": seconds, "lowest": seconds, "highest": 2 * seconds}

    rows = [
        {
            "stage": stage,
            "invertible": stage not in (0, last),
            "parameters": 4000,
            "bytes_up": 0 if stage == last else 10**6,
            "bytes_down": 0 if stage == 0 else 2 * 10**6,
            "forward": times(seconds),
            "backward": times(2 * seconds),
            "update": times(update),
        }
        for stage, seconds in enumerate(forwards)
    ]
    return {"stages": rows, "load": [0.5, 1.5], "cores": 2}


def cells(scale: str) -> list[StageCostCell]:
    return [cell for cell in PLANS["table5"](scale) if isinstance(cell, StageCostCell)]


def read(root: Path) -> Section:
    return sections.made(table5.EXHIBIT, root)


def test_modelled_times_follow_stage_costs(tmp_path: Path) -> None:
    """The modelled times, speed-up, bottleneck and idle share follow from the stage costs."""
    cell = cells("smoke")[0]
    fake_records.begin(cell, tmp_path).finish(made_up(FOUR))
    table = sections.table(read(tmp_path), "table5-smoke")
    (row,) = table.rows
    values = dict(zip([column.name for column in table.columns], row, strict=True))
    assert values["without overlap, ms"].value == pytest.approx(3 * 800)
    assert values["PETRA, ms"].value == pytest.approx(3 * 400)
    assert values["speed-up"].text == "2.00"
    assert values["stage j"].text == "1"
    assert values["share of all work, %"].text == "50.0"
    assert values["idle, %"].text == "80.0"
    assert values["devices enough"].text == "3"
    assert "load before and after 0.5 and 1.5 on 2 cores (RevNet-18)" in table.notes[0]


def test_stages_are_partitioned_by_cost_and_merged(tmp_path: Path) -> None:
    """The first of 18 stages takes twice as long, and an even cut gives its device another one."""
    fake_records.begin(cells("smoke")[1], tmp_path).finish(made_up([0.2, *[0.1] * 17]))
    table = sections.table(read(tmp_path), "table5-arrangements")
    assert "scale “smoke”" in table.caption
    names = [column.name for column in table.columns]
    rendered = [names.index(name) for name in ("way", "devices", "staleness", "speed-up")]
    assert [[row[place].text for place in rendered] for row in table.rows] == [
        ["one device a stage", "18", "34", "9.50"],
        ["one device a stage, asynchronous 1F1B", "18", "17", "9.50"],
        ["equal numbers", "10", "34", "6.33"],
        ["balanced", "10", "34", "9.50"],
        ["balanced, merged", "10", "18", "9.50"],
        ["balanced, merged, asynchronous 1F1B", "10", "9", "9.50"],
    ]


def test_table5_note_names_the_gpu(tmp_path: Path) -> None:
    """The note names the GPU on which the costs were measured."""
    environment = {**fake_records.ENVIRONMENT, "device": "A GPU", "threads": 2}
    fake_records.begin(cells("smoke")[0], tmp_path, environment=environment).finish(made_up(FOUR))
    assert "Measured on A GPU, 2 threads; load" in sections.table(read(tmp_path), "table5-smoke").notes[0]


def test_narrow_network_is_not_compared_with_published_value(tmp_path: Path) -> None:
    """The sentence about a narrow network contains no published value."""
    fake_records.begin(cells("smoke")[0], tmp_path).finish(made_up(FOUR))
    assert read(tmp_path).sentence.endswith("of 2.0 times for RevNet-18, J = 10.")


def test_largest_scale_is_compared_with_published_speedup(tmp_path: Path) -> None:
    """Sentence and table compare the largest scale with the published speed-up, and the verdict stays open."""
    fake_records.begin(cells("smoke")[0], tmp_path).finish(made_up(FOUR))
    fake_records.begin(cells("paper")[0], tmp_path).finish(made_up([0.1] * 10))
    section = read(tmp_path)
    verdicts = [judgement.verdict for judgement in sections.judged("table5", tmp_path)]
    assert verdicts == [ClaimVerdict.OPEN, ClaimVerdict.UNKNOWN], "modelled is not measured"
    assert "10.0 times for RevNet-18, J = 10 (second-hand: 3.0)" in section.sentence
    assert section.count == "2 of 8 cells"
    assert sections.table(section, "table5-arrangements").caption.endswith("scale “paper”.")
    first, second = sections.table(section, "table5").rows
    assert (first[2].text, first[2].mark) == (f"3.0{TIMES}", Mark.SECOND_HAND)
    assert first[3].text == "not run"  # on J devices
    assert first[4].text == "10.00"
    assert [entry.text for entry in second] == ["RevNet-34", "18", f"2.4{TIMES}", "not run", "not run"]
    fake_records.begin(cells("paper")[1], tmp_path).finish(made_up([0.1] * 18))
    text = read(tmp_path).sentence
    assert "and 18.0 times for RevNet-34, J = 18 (second-hand: 2.4). The published speed-up falls with J" in text


def test_table5_without_measurements_has_published_values_only(tmp_path: Path) -> None:
    """Without measurements only the published table is made."""
    section = read(tmp_path)
    assert sections.status_of("table5", tmp_path) is ExhibitStatus.NOT_RUN
    assert [table.key for table in sections.tables(section)] == ["table5"]


def test_table5_cells_use_networks_and_batch_of_the_paper() -> None:
    """At scale paper, the cells have the networks, width and batch size of the paper."""
    paper = cells("paper")
    assert [(cell.model, cell.width, cell.batch_size) for cell in paper] == [
        (f"revnet{depth}", 64, 64) for depth in (18, 34, 50)
    ]
    assert {(cell.method, cell.accumulation, cell.dataset) for cell in paper} == {("PETRA", 1, "cifar10")}
