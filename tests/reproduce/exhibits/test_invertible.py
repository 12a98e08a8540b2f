"""The invertible RevNet beside the paper's: what vanishes, what grows, and the accuracy of both."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from petra_core import methods
from petra_core.ledger import KINDS
from reproduce.exhibits import invertible
from reproduce.exhibits.invertible import predicted
from reproduce.grids import small
from reproduce.grids.plans.invertible import OURS, PAPERS
from reproduce.records import results
from reproduce.show import memory_bars
from reproduce.show.content import Figure, Section, Table
from tests import fake_records

pytestmark = pytest.mark.convolutions


def section(root: Path) -> Section:
    return invertible.section(results.read(root))


def tables(found: Section) -> dict[str, Table]:
    return {block.key: block for block in found.blocks if isinstance(block, Table)}


@pytest.mark.parametrize("depth", invertible.DEPTHS)
def test_the_buffers_of_the_inner_stages_vanish(depth: int) -> None:
    theirs, ours = predicted(PAPERS, depth), predicted(OURS, depth)
    stem = 4 * 64 * 3 * 224 * 224 * 2 * ({18: 10, 50: 18}[depth] - 1)  # float32 images, one for each tick of delay
    assert ours.held["inputs"] == stem
    assert theirs.held["inputs"] > 3 * stem


def test_less_memory_at_depth_50_and_not_at_depth_18_where_messages_double() -> None:
    """The claim to be careful with: buffers vanish at every depth, memory does not."""
    sums = {(f, d): sum(predicted(f, d).peak.values()) for f in (PAPERS, OURS) for d in (18, 50)}
    assert sums[OURS, 50] < 0.4 * sums[PAPERS, 50]
    assert sums[OURS, 18] > sums[PAPERS, 18]
    messages = [predicted(f, 18).held["messages"] for f in (OURS, PAPERS)]
    assert messages[0] / messages[1] == pytest.approx(2.1, abs=0.1)


def test_the_table_adds_up_and_the_summary_says_what_grows(tmp_path: Path) -> None:
    found = section(tmp_path)
    table = tables(found)["invertible"]
    heads = [f"{column.group} {column.name}" for column in table.columns]
    for depth in invertible.DEPTHS:
        rows = [row for row in table.rows if row[0].text.startswith(f"RevNet-{depth}")]
        assert [row[1].text for row in rows] == [*(kind.replace("_", " ") for kind in KINDS), "sum"]
        for column in range(2, len(heads)):
            values = [float(row[column].raw) for row in rows]
            assert values[-1] == pytest.approx(sum(values[:-1]))
    assert "(modelled): inputs" in found.findings[0].text
    assert "messages +" in found.findings[0].text
    assert "modelled" in table.caption


def test_runs_are_compared_by_method_k_and_seed_and_memory_is_as_measured(tmp_path: Path) -> None:
    for seed in range(3):
        for network, reached in (("revnet18", 60.0), ("invertible_revnet18", 58.0 + 0.01 * seed)):
            fake_records.train(small.cell(network, methods.PETRA, 4, seed), tmp_path, reached + seed)
    found = section(tmp_path)
    table = tables(found)["invertible-small"]
    row = {f"{c.group} {c.name}": e for c, e in zip(table.columns, table.rows[1], strict=True)}
    assert [table.rows[1][0].text, table.rows[1][1].text] == ["PETRA", "Invertible RevNet-18, width 8"]
    assert row["k = 4 difference"].raw == pytest.approx(-1.99)
    assert row["k = 4 verdict"].text == "differ"
    assert row["k = 4 peak, MB"].text == "1.2"  # the 1,234,567 bytes of the fake
    assert row["k = 1 last epoch, %"].text == "not run"
    assert "1 comparison: differ 1" in found.findings[-1].text
    assert any("at the scale “paper” yet" in block for block in found.blocks if isinstance(block, str))


def test_bars_are_drawn_to_the_sum(tmp_path: Path) -> None:
    (figure,) = (block for block in section(tmp_path).blocks if isinstance(block, Figure))
    sums = [
        f"{sum(predicted(family, depth).peak.values()) / 1e9:.1f}" for depth in (18, 50) for family in (PAPERS, OURS)
    ]
    texts = [element.text for element in ElementTree.fromstring(figure.svg).iter() if element.text]
    assert [text.strip() for text in texts if text.strip() in sums] == sums
    assert all(f"{amount} GB" in figure.description for amount in sums)
    assert "stashed weights" not in texts  # of no amount


def test_a_drawing_leaves_out_what_no_bar_has() -> None:
    svg = memory_bars.draw(
        key="k", title="Title", description="Words.", bars={"a": {"graph": 2.0}, "b": {"inputs": 0.5}}, unit="kB"
    )
    texts = [(element.text or "").strip() for element in ElementTree.fromstring(svg).iter()]
    assert {"a", "b", "2.0", "0.5", "kB", "graph", "inputs"} <= set(texts)
    assert "messages" not in texts
