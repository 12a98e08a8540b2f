"""Table 1: what is measured on a chain of equal stages follows the published formulas, for every method, J and k."""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from petra_core import methods
from petra_core.methods import Method
from reproduce import published
from reproduce.exhibits import table1
from reproduce.exhibits.measured import PUBLISHED_NAMES, measured
from reproduce.grids.plans.table1 import chains
from reproduce.measures.complexity import measure_complexity
from reproduce.measures.context import Context
from reproduce.modelling import formula
from reproduce.published import Mark
from reproduce.records import results
from reproduce.records.record import Record
from reproduce.running.execution import execute
from reproduce.show.content import Table, Tone
from tests import fake_records

GRIDS = [(2, 1), (3, 1), (3, 4)]  # inner stages, k
FORMULAS = {row["method"]: row for row in published.read("table1_complexity")}


@cache
def result(method: Method, depth: int, k: int) -> dict[str, Any]:
    cell = replace(fake_records.complexity_cell(method, k), model=f"chain{depth}")
    return measure_complexity(cell)


@pytest.mark.parametrize(("depth", "k"), GRIDS)
@pytest.mark.parametrize("method", PUBLISHED_NAMES, ids=str)
def test_measured_activations_weights_and_flops_are_those_of_the_formulas(method: Method, depth: int, k: int) -> None:
    found, units = result(method, depth, k), result(methods.BACKPROPAGATION, depth, k)
    published_row = FORMULAS[PUBLISHED_NAMES[method]]
    stages = depth + 2
    graph = units["rows"][1]["inputs"] + units["rows"][1]["graph"]  # FG
    stream = 2 * 4 * 4 * 4 * 4  # batch 2, 4 channels, 4x4 pixels after the stem's stride, float32
    assert units["rows"][1]["inputs"] == stream
    for stage in range(1, depth + 1):
        values = {"J": stages, "j": stage + 1, "k": k, "FG": graph}
        unit = 1 if method.keeps_graph else stream
        row = found["rows"][stage]
        assert row["inputs"] + row["graph"] == unit * formula.evaluate(published_row["activation_storage"], values)
        copies = math.ceil(formula.evaluate(published_row["parameter_storage"], values))
        assert row["stashed_weights"] == (copies * row["parameters"] if method.stashes_weights else 0)
    ratio = found["stage_flops"] / found["stage_forward_flops"]
    assert ratio * stages == formula.evaluate(published_row["flops"], {"J": stages})


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_messages_are_two_streams_up_and_with_handed_down_inputs_four_down(method: Method) -> None:
    stream = 2 * 4 * 4 * 4 * 4
    rows = result(method, 3, 1)["rows"]
    assert {row["message_up"] for row in rows[1:-1]} == {2 * stream}
    assert {row["message_down"] for row in rows[1:-1]} == {(4 if method.reconstructs else 2) * stream}
    assert rows[0]["message_up"] is None
    assert rows[-1]["message_down"] is None


@pytest.mark.parametrize("method", PUBLISHED_NAMES, ids=str)
@pytest.mark.parametrize(("depth", "k"), GRIDS)
def test_time_is_that_of_the_formulas_but_for_the_head_that_reconstructs_nothing(
    method: Method, depth: int, k: int
) -> None:
    found, stages = result(method, depth, k), depth + 2
    expected = formula.evaluate(FORMULAS[PUBLISHED_NAMES[method]]["mean_time_per_batch"], {"J": stages})
    assert found["units_overlapped"] == expected - (method is methods.REVERSIBLE_BACKPROPAGATION)
    if not method.pipelined:
        assert found["ticks_per_micro_batch"] == 2 * stages - 1
    else:
        assert found["ticks_per_micro_batch"] == 1


@pytest.mark.parametrize(("depth", "k"), GRIDS)
@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_every_stage_and_kind_is_foretold(method: Method, depth: int, k: int) -> None:
    for entry in result(method, depth, k)["memory"]:
        assert entry["measured"] == entry["predicted"], entry


def test_measuring_leaves_the_global_random_state_alone() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    measure_complexity(fake_records.complexity_cell(methods.PETRA))
    assert torch.equal(torch.get_rng_state(), before)


def test_only_a_chain_can_be_measured() -> None:
    cell = replace(fake_records.complexity_cell(methods.PETRA), model="revnet18", stem="cifar")
    with pytest.raises(ValueError, match="chain of equal stages, such as 'chain4'; got 'revnet18'"):
        measure_complexity(cell)


# --- the table


def write(root: Path, *, only: tuple[Method, ...] = methods.ALL, **changes: Any) -> None:
    for method in only:
        cell = fake_records.complexity_cell(method)
        fake_records.begin(cell, root).finish(result(method, 3, 1) | changes)


def test_section_says_that_the_formulas_hold(tmp_path: Path) -> None:
    write(tmp_path)
    section = table1.section(results.read(tmp_path))
    assert section.findings[0].tone is Tone.GOOD
    assert "5 of 5 measurements" in section.findings[0].text
    table = section.blocks[1]
    assert isinstance(table, Table)
    rows = {row[1].text: row for row in table.rows}
    assert rows["Delayed gradients"][3].text == "6 FG"
    assert rows["Delayed gradients"][5].text == "6"
    assert rows["DSP"][3].text == "6 inputs"
    assert rows["PETRA"][3].text == "0"
    assert rows["PETRA"][2].mark is Mark.PAPER
    assert rows["Approximate inputs"][2].mark is None


def test_section_is_loud_when_a_measurement_departs_from_a_formula(tmp_path: Path) -> None:
    write(tmp_path, only=(methods.BACKPROPAGATION,))
    wrong = result(methods.PETRA, 3, 1) | {"stage_flops": 5 * result(methods.PETRA, 3, 1)["stage_forward_flops"]}
    fake_records.begin(fake_records.complexity_cell(methods.PETRA), tmp_path).finish(wrong)
    finding = table1.section(results.read(tmp_path)).findings[0]
    assert finding.tone is Tone.ALERT
    assert "1 of 2 measurements" in finding.text


def test_without_backpropagation_there_are_no_units_and_nothing_is_claimed(tmp_path: Path) -> None:
    write(tmp_path, only=(methods.PETRA, methods.DSP))
    found = results.read(tmp_path)
    assert measured(found) == []
    section = table1.section(found)
    assert section.findings[0].text == "Table 1: nothing measured yet."
    table = section.blocks[1]
    assert isinstance(table, Table)
    assert [row[3].text for row in table.rows] == ["not run"] * 6


def test_cells_are_all_methods_at_every_k_and_the_runner_finds_the_measurement(tmp_path: Path) -> None:
    cells = chains(depth=2, accumulations=(1, 3))
    assert len({cell.identity for cell in cells}) == 12
    cell = fake_records.complexity_cell(methods.PETRA)
    state = execute(Record.of(cell, tmp_path), Context())
    assert str(state) == "done"
    assert Record.of(cell, tmp_path).result()["stages"] == 5  # type: ignore[index]  # done, so there is a result
