"""The end of a run: means of what may be compared, and of nothing else."""

import dataclasses

from petra_core import methods
from petra_core.methods import BACKPROPAGATION, DSP, PETRA
from reproduce.cells.kinds import GradientsCell
from reproduce.commands import summary
from reproduce.grids import scales, small
from reproduce.grids.grid import grid_of
from reproduce.grids.plans.transformers import IMAGES
from reproduce.grids.smoke import digits_cell
from reproduce.records.record import Record
from reproduce.running.runner import Outcome
from tests.fake_records import complexity_cell, train

SHORT = {"epochs": 1, "drops": (), "warmup_epochs": 0.5}


def states(cells, root):
    return {cell: Record.of(cell, root).state() for cell in cells}


def lines(cells, root):
    return summary.table(Outcome(states(cells, root))).splitlines()


def test_means_and_what_is_missing(tmp_path):
    cells = [digits_cell(seed=seed) for seed in range(3)]
    for cell, accuracy in zip(cells, [95.0, 96.0], strict=False):
        train(cell, tmp_path, accuracy)
    cells.append(digits_cell(method=DSP, accumulation=4))
    text = lines(cells, tmp_path)
    assert text[0].split() == ["network", "method", "k", "=", "1", "k", "=", "4"]
    assert text[1].startswith("revnet18 w8  ")
    assert text[1].endswith("not run")
    assert text[2].split() == ["revnet18", "w8", "PETRA", "95.5", "(2", "of", "3)"]


def test_what_falls_short(tmp_path):
    cells = [digits_cell(seed=seed) for seed in range(2)]
    for cell, accuracy in zip(cells, [95.0, 96.0], strict=True):
        train(cell, tmp_path, accuracy)
    scale = dataclasses.replace(scales.by_name("smoke"), target_accuracy=95.5)
    low = summary.shortfalls(scale, Outcome(states(cells, tmp_path)))
    assert low == ["digits-revnet18-w8-petra-k1-s0: 95.00 %"]


def test_runs_of_different_lengths_batches_warm_ups_and_rates_are_not_averaged(tmp_path):
    cells = [
        digits_cell(method=PETRA),
        digits_cell(method=PETRA, **SHORT),
        digits_cell(method=PETRA, batch_size=48),
        digits_cell(method=PETRA, warmup_epochs=1),
        digits_cell(method=PETRA, learning_rate=0.5),
    ]
    for accuracy, cell in enumerate(cells, start=91):
        train(cell, tmp_path, accuracy)
    text = lines(cells, tmp_path)
    assert sorted(line.split()[-1] for line in text if line.startswith("revnet18")) == [
        "91.0",
        "92.0",
        "93.0",
        "94.0",
        "95.0",
    ]
    headings = [line for line in text if line.endswith(":")]
    assert len(set(headings)) == 5
    assert any("batch 48" in line for line in headings)
    assert any("warm-up epochs 1" in line for line in headings)
    assert any("epochs 1, warm-up epochs 0.5" in line for line in headings)
    assert not any("digits" in line for line in headings), "what all share is not told"


def test_a_probed_run_stands_with_the_others_once(tmp_path):
    both = digits_cell(method=PETRA)
    probed = GradientsCell(**{**_settings(both), "probe_every": 8})
    other = GradientsCell(**{**_settings(digits_cell(method=PETRA, seed=1)), "probe_every": 8})
    for cell, accuracy in ((both, 95.0), (probed, 95.0), (other, 97.0)):
        train(cell, tmp_path, accuracy)
    text = lines([both, probed, other], tmp_path)
    assert [line.split()[-1] for line in text if line.startswith("revnet18")] == ["96.0"]


def test_measured_cells_are_counted(tmp_path):
    cells = [complexity_cell(method) for method in (PETRA, BACKPROPAGATION)]
    record = Record.of(cells[0], tmp_path)
    record.begin({}, {})
    record.finish({"bytes": 1})
    assert lines(cells, tmp_path) == ["complexity: 1 of 2 measured"]


def test_the_small_scale_has_a_table_for_each_experiment_and_every_cell_in_one(tmp_path):
    grid = grid_of("small")
    text = lines(grid.cells, tmp_path)
    headings = [line for line in text if line.endswith(":")]
    assert len(headings) == len(set(headings)) > 5
    assert max(map(len, text)) <= 200
    assert any(line.startswith("chain48 w16") for line in text)
    assert small.cell() in grid.cells


def _settings(cell):
    values = cell.to_dict()
    del values["kind"]
    return values


def test_methods_have_their_titles(tmp_path):
    text = lines([digits_cell(method=method) for method in methods.ALL], tmp_path)
    shown = {line.removeprefix("revnet18 w8").strip().split("  ")[0] for line in text}
    assert {method.title for method in methods.ALL} <= shown


def test_all_k_of_adamw_are_in_one_table(tmp_path):
    cells = [IMAGES.cell(PETRA, k) for k in (1, 4, 16)]
    for cell, accuracy in zip(cells, (51.0, 52.0, 53.0), strict=True):
        train(cell, tmp_path, accuracy)
    sgd = small.cell(drops=())
    train(sgd, tmp_path, 60.0)
    text = lines([*cells, sgd], tmp_path)
    assert [line.split()[-3:] for line in text if line.startswith("revvit")] == [["51.0", "52.0", "53.0"]]
    headings = [line for line in text if line.endswith(":")]
    assert sum("adamw, learning rate 0.001414·√(batch·k/256)" in heading for heading in headings) == 1
    assert sum("sgd, learning rate 0.1·batch·k/256" in heading for heading in headings) == 1
    assert sum("drops after no epoch" in heading for heading in headings) == 1
