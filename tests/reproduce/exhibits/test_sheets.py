"""Runs are found by the cell that a table means, whatever the seed, the loader and the precision."""

from dataclasses import replace
from pathlib import Path

import pytest

from petra_core import methods
from reproduce.exhibits import sheets
from reproduce.exhibits.sheets import Sheet, accuracy_entry, counted, data, family_note, judged_entries, told
from reproduce.grids import paper, small
from reproduce.records import results
from reproduce.show.content import MINUS, TIMES, Tone
from reproduce.show.statistics import Estimate, judge
from tests import fake_records

CELL = paper.cell("imagenet", epochs=6, drops=(), batch_size=8)


def found(root: Path) -> list[Sheet]:
    return sheets.sheets(results.read(root, [CELL]), "paper", [CELL])


def test_seeds_beyond_the_grids_count_and_another_setting_does_not(tmp_path: Path) -> None:
    for seed in (0, 7):
        fake_records.train(replace(CELL, seed=seed), tmp_path, 70.0 + seed)
    fake_records.train(replace(CELL, learning_rate=0.3), tmp_path, 20.0)
    (sheet,) = found(tmp_path)
    assert sheet.group(replace(CELL, seed=3)).values("test_accuracy") == {0: 70.0, 7: 77.0}
    assert sheet.group(replace(CELL, learning_rate=0.3)).runs == ()
    assert sheet.progress == "2 of 2 runs finished"


def test_precisions_are_sheets_apart_and_so_are_images_of_torchvision(tmp_path: Path) -> None:
    for precision in ("float32", "bf16", "tf32"):
        fake_records.train(replace(CELL, precision=precision, loader="ffcv"), tmp_path, 70.0)
    fake_records.train(replace(CELL, loader="torchvision"), tmp_path, 50.0)
    assert [sheet.key for sheet in found(tmp_path)] == [
        "paper-tf32",
        "paper-float32-torchvision",
        "paper",
        "paper-bf16",
    ]
    assert [len(sheet.runs) for sheet in found(tmp_path)] == [1] * 4


def test_of_two_loaders_with_the_same_bits_the_finished_run_counts(tmp_path: Path) -> None:
    cell = small.cell()
    fake_records.train(cell, tmp_path, 70.0)
    fake_records.train(replace(cell, loader="ffcv"), tmp_path, 20.0, epochs=1)
    (sheet,) = sheets.sheets(results.read(tmp_path), "small", [cell])
    (run,) = sheet.group(cell).runs
    assert run.done


def test_what_is_only_planned_makes_no_sheet(tmp_path: Path) -> None:
    assert found(tmp_path) == []
    fake_records.begin(CELL, tmp_path)
    (sheet,) = found(tmp_path)
    assert sheet.begun([CELL])
    assert not sheet.begun([replace(CELL, momentum=0.0)])


def test_an_accuracy_says_how_many_seeds_and_what_became_of_the_others(tmp_path: Path) -> None:
    cells = [small.cell(seed=seed) for seed in range(4)]
    fake_records.train(cells[0], tmp_path, 60.0)
    fake_records.train(cells[1], tmp_path, 61.0)
    fake_records.train(cells[2], tmp_path, 61.0, epochs=1).fail("diverged", "nan")
    (sheet,) = sheets.sheets(results.read(tmp_path, cells), "small", cells)
    entry = accuracy_entry(sheet.group(cells[0]))
    assert entry.text.endswith("(2 of 4; 1 diverged)")
    assert entry.raw == 60.5
    assert entry.hint == "seed 2: diverged (epoch 2 of 3); seed 3: not run"
    (lines,) = [list(data([sheet.group(cells[0])]))]
    assert [line["test_accuracy"] for line in lines] == [60.0, 61.0, "", ""]


def test_without_any_the_entry_is_the_state(tmp_path: Path) -> None:
    cells = [small.cell(method=methods.DSP, seed=seed) for seed in range(3)]
    fake_records.train(cells[0], tmp_path, 60.0, epochs=1)
    (sheet,) = sheets.sheets(results.read(tmp_path, cells), "small", cells)
    assert accuracy_entry(sheet.group(cells[0])).text == f"1 of 3 epochs; 2 {TIMES} not run"
    assert accuracy_entry(sheet.group(replace(cells[0], width=16))).text == "not run"


def test_verdicts_of_a_family_are_counted_and_marked() -> None:
    clear, chance = Estimate(-3.0, -3.01, -2.99, 3), Estimate(-1.0, -1.9, -0.1, 3)
    judged = judge({"clear": clear, "chance": chance, "none": None, "small": Estimate(0.1, -0.2, 0.4, 3)})
    shown = {key: [entry.text for entry in judged_entries(j)] for key, j in judged.items()}
    assert [words[1] for words in shown.values()] == ["differ", "differ †", "", "agree"]
    assert shown["none"] == ["no pair", ""]
    assert judged_entries(judged["chance"])[1].tone is Tone.ALERT
    assert "after Holm's correction" in judged_entries(judged["chance"])[1].hint
    assert counted(judged) == "3 comparisons: agree 1, differ 2 (1 after Holm's correction)"
    assert family_note(judged).startswith(counted(judged))
    assert family_note({}) == "No comparison can be made yet."
    assert counted(judge({"clear": clear})) == "1 comparison: differ 1"
    assert told(judged) == f"{counted(judged)}, means from {MINUS}3.0 to +0.1 points"
    assert told(judge({"clear": clear, "none": None})) == f"1 comparison: differ 1, mean {MINUS}3.0 points"
    assert told(judge({"none": None})) == ""


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (small.cell(accumulation=8), "CIFAR-10, width 8, micro-batches of 32, 3 epochs, learning rate 0.1·batch·k/256"),
        (small.cell(reference_rate=0.4), "learning rate 0.4·batch·k/256"),
        (paper.cell("cifar100", "revnet50"), "scale “paper”: CIFAR-100, width 64, micro-batches of 64, 300 epochs"),
    ],
)
def test_a_recipe_in_words(cell: fake_records.TrainingCell, words: str) -> None:
    assert words in sheets.described(cell)
    assert "RevNet-" in sheets.described(cell, network=True)
