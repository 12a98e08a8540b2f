"""Runs are compared only where they may be: same scale and recipe, paired by seed."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from petra_core import methods
from petra_core.methods import Method
from reproduce.cells.kinds import TrainingCell
from reproduce.exhibits import accuracy
from reproduce.exhibits.experiments import Experiment, Network, experiments
from reproduce.grids import small
from reproduce.grids.smoke import DIGITS_NETWORKS, digits_cell
from reproduce.records import results
from reproduce.show.content import MINUS, Table, Tone
from reproduce.show.statistics import Verdict
from tests import fake_records

REVNET = Network("revnet18", "cifar", int(DIGITS_NETWORKS["revnet18"]["width"]))


def found(root: Path) -> list[Experiment]:
    return experiments(results.read(root).training)


def write(root: Path, runs: Iterable[tuple[TrainingCell, float]]) -> None:
    for cell, reached in runs:
        fake_records.train(cell, root, reached)


def test_seeds_make_a_group_and_k_with_its_learning_rate_does_not_split(tmp_path: Path) -> None:
    write(tmp_path, ((digits_cell(accumulation=k, seed=seed), 90.0 + seed) for k in (1, 4, 32) for seed in (0, 1, 2)))
    (experiment,) = found(tmp_path)
    assert list(experiment.groups) == [(REVNET, methods.PETRA, k) for k in (1, 4, 32)]
    group = experiment.groups[REVNET, methods.PETRA, 4]
    assert group.values("test_accuracy") == {0: 90.0, 1: 91.0, 2: 92.0}
    mean = group.estimate("test_accuracy")
    assert mean is not None
    assert (mean.mean, mean.n) == (91.0, 3)


@pytest.mark.parametrize(
    "change",
    [
        {"scale": "custom"},
        {"epochs": 5},
        {"batch_size": 7},
        {"precision": "bf16"},
        {"weight_decay": 0.0},
        {"learning_rate": 1.0},
    ],
    ids=str,
)
def test_another_recipe_is_another_experiment(tmp_path: Path, change: dict[str, object]) -> None:
    cell = digits_cell()
    write(tmp_path, [(cell, 90.0), (replace(cell, **change), 95.0)])  # type: ignore[arg-type]  # settings of a cell
    pair = found(tmp_path)
    assert len(pair) == 2
    assert len({experiment.key for experiment in pair}) == 2
    assert [len(experiment.groups) for experiment in pair] == [1, 1]


def test_networks_methods_and_k_are_in_the_order_of_the_report(tmp_path: Path) -> None:
    networks = ["chain8", "revnet18", "resnet18"]
    for network in networks:
        for method in reversed(methods.ALL):
            fake_records.train(digits_cell(network, method), tmp_path, 90.0)
    (experiment,) = found(tmp_path)
    assert [network.model for network in experiment.networks] == ["resnet18", "revnet18", "chain8"]
    assert [method for network, method, _ in experiment.groups if network == REVNET] == list(methods.ALL)
    assert experiment.networks[-1].title == f"Reversible chain of 8, width {DIGITS_NETWORKS['chain8']['width']}"


def test_differences_are_paired_over_shared_seeds_of_the_same_network_and_k(tmp_path: Path) -> None:
    cells: list[tuple[Method, int, int, float]] = [
        (methods.BACKPROPAGATION, 1, 0, 90.0),
        (methods.BACKPROPAGATION, 1, 1, 95.0),
        (methods.BACKPROPAGATION, 1, 2, 92.0),
        (methods.BACKPROPAGATION, 4, 0, 10.0),
        (methods.PETRA, 1, 0, 90.5),
        (methods.PETRA, 1, 1, 95.6),
        (methods.PETRA, 1, 3, 20.0),  # without a partner
    ]
    write(tmp_path, ((digits_cell("revnet18", m, k, seed), reached) for m, k, seed, reached in cells))
    (experiment,) = found(tmp_path)
    difference = experiment.difference((REVNET, methods.PETRA, 1))
    assert difference is not None
    assert (difference.mean, difference.n) == (pytest.approx(0.55), 2)
    fake_records.train(digits_cell("revnet18", methods.PETRA, 32), tmp_path, 50.0)
    (experiment,) = found(tmp_path)
    assert experiment.difference((REVNET, methods.PETRA, 32)) is None


def test_unfinished_and_failed_runs_are_told_and_enter_no_mean(tmp_path: Path) -> None:
    fake_records.train(digits_cell(seed=0), tmp_path, 91.0)
    fake_records.train(digits_cell(seed=1), tmp_path, 95.0, epochs=2)
    fake_records.train(digits_cell(seed=2), tmp_path, 95.0, epochs=1).fail("diverged", "the loss is nan")
    (experiment,) = found(tmp_path)
    (group,) = experiment.groups.values()
    mean = group.estimate("test_accuracy")
    assert mean is not None
    assert (mean.mean, mean.low, mean.n) == (91.0, None, 1)
    epochs = digits_cell().epochs
    assert group.unfinished == f"seed 1: 2 of {epochs} epochs; seed 2: diverged (epoch 2 of {epochs})"
    assert group.summary == f"done; 2 of {epochs} epochs; diverged (epoch 2 of {epochs})"


# --- the section made of them


def test_cells_that_should_be_there_are_shown_as_not_run(tmp_path: Path) -> None:
    fake_records.train(digits_cell(seed=0), tmp_path, 91.0)
    expected = [digits_cell(seed=0), digits_cell(seed=1), digits_cell(accumulation=4)]
    section = accuracy.section(results.read(tmp_path, expected))
    assert "1 of 3 runs finished, 2 seeds" in section.findings[0].text
    assert section.findings[0].tone is Tone.MISSING
    table = next(block for block in section.blocks if isinstance(block, Table))
    assert [entry.text for entry in table.rows[0]][2:6] == ["91.0 (1)", "no pair", "", "not run"]
    assert table.rows[0][2].hint == "seed 1: not run"


@pytest.mark.parametrize(
    ("k", "reached", "loud"), [(1, 89.9, True), (4, 90.0, True), (4, 90.1, False), (32, 11.0, False)]
)
def test_a_smoke_run_that_falls_short_is_loud(tmp_path: Path, k: int, reached: float, loud: bool) -> None:
    fake_records.train(digits_cell(accumulation=k), tmp_path, reached)
    section = accuracy.section(results.read(tmp_path))
    alerts = [finding.text for finding in section.findings if finding.tone is Tone.ALERT]
    table = next(block for block in section.blocks if isinstance(block, Table))
    assert (table.rows[0][2].tone is Tone.ALERT) == loud
    assert bool(alerts) == loud
    if loud:
        assert f"{digits_cell(accumulation=k).slug}: {reached:.1f} %" in alerts[0]


def test_the_same_accuracy_at_another_scale_is_not(tmp_path: Path) -> None:
    fake_records.train(digits_cell(scale="custom"), tmp_path, 20.0)
    section = accuracy.section(results.read(tmp_path))
    assert all(finding.tone is not Tone.ALERT for finding in section.findings)


def test_runs_of_other_exhibits_are_left_to_them_and_those_by_hand_are_shown(tmp_path: Path) -> None:
    mine = small.cell("chain8", methods.DSP, 4)
    others = [small.cell("chain8", methods.DSP, 4, epochs=2, drops=(1,)), small.cell("resnet18", accumulation=4)]
    by_hand = small.cell(learning_rate=0.3, scale="custom")
    write(tmp_path, [(cell, 60.0) for cell in (mine, replace(mine, seed=9), *others, by_hand)])
    assert {run.cell for run in accuracy.shown(results.read(tmp_path))} == {mine, replace(mine, seed=9), by_hand}


def test_petra_is_compared_with_every_rival_in_the_same_setting(tmp_path: Path) -> None:
    reached = {methods.PETRA: 60.0, methods.DSP: 61.0, methods.APPROXIMATE_INPUTS: 59.0}
    for seed in range(3):
        for method, accuracy_of_it in reached.items():
            own = 0.01 * seed * len(method.title)
            fake_records.train(small.cell("chain8", method, 4, seed), tmp_path, accuracy_of_it + seed + own)
    section = accuracy.section(results.read(tmp_path))
    rivals = next(block for block in section.blocks if isinstance(block, Table) and block.key.startswith("rivals-"))
    shown = {row[1].text: (row[2].raw, row[3].text) for row in rivals.rows}
    assert shown["DSP"] == (pytest.approx(-1.0, abs=0.5), "differ")
    assert shown[methods.APPROXIMATE_INPUTS.title] == (pytest.approx(1.0, abs=0.5), "differ")
    assert shown[methods.DELAYED_GRADIENTS.title] == ("no pair", "")
    assert [column.group for column in rivals.columns] == ["", "", "k = 4", "k = 4"]


def test_verdicts_stand_beside_the_differences(tmp_path: Path) -> None:
    for seed, (reference, ours) in enumerate([(95.0, 90.0), (95.2, 90.1), (95.1, 90.2)]):
        fake_records.train(digits_cell(method=methods.BACKPROPAGATION, seed=seed), tmp_path, reference)
        fake_records.train(digits_cell(method=methods.PETRA, seed=seed), tmp_path, ours)
        fake_records.train(digits_cell(method=methods.DSP, seed=seed), tmp_path, reference + 0.001 * seed)
    section = accuracy.section(results.read(tmp_path))
    table = next(block for block in section.blocks if isinstance(block, Table))
    verdicts = {row[1].text: row[4].text for row in table.rows}
    assert verdicts == {"Backpropagation": "", "DSP": Verdict.AGREE.value, "PETRA": Verdict.DIFFER.value}
    assert section.findings[-1].text.endswith(f"1 comparison: differ 1, mean {MINUS}5.0 points.")
