"""The invertible RevNet beside the paper's: what vanishes, what grows, and the accuracy of both."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from petra_core import methods
from petra_core.ledger import KINDS
from reproduce.exhibits import invertible
from reproduce.exhibits._exhibit import section
from reproduce.grids import small
from reproduce.grids.plans.invertible import OURS, PAPERS
from reproduce.modelling.invertible import DEPTHS, predicted
from reproduce.records import results
from reproduce.records.frames import Frames
from reproduce.show.content import Figure, Section, Table, Tone
from tests import fake_records

pytestmark = pytest.mark.convolutions


def made(root: Path) -> Section:
    return section(invertible.EXHIBIT, Frames(results.read(root)))


def tables(found: Section) -> dict[str, Table]:
    return {block.key: block for block in found.blocks if isinstance(block, Table)}


@pytest.mark.parametrize("depth", DEPTHS)
def test_the_buffers_of_the_inner_stages_vanish(depth: int) -> None:
    theirs, ours = (predicted(family, depth)["held"]["inputs"] for family in (PAPERS, OURS))
    stem = 4 * 64 * 3 * 224 * 224 * 2 * ({18: 10, 50: 18}[depth] - 1)  # float32 images, one for each tick of delay
    assert ours == stem
    assert theirs > 3 * stem


def test_less_memory_at_depth_50_and_not_at_depth_18_where_messages_double(tmp_path: Path) -> None:
    """The claim to be careful with: buffers vanish at every depth, memory does not."""
    sums = {(f, d): predicted(f, d)["peak"]["sum"] for f in (PAPERS, OURS) for d in (18, 50)}
    assert sums[OURS, 50] < 0.4 * sums[PAPERS, 50]
    assert sums[OURS, 18] > sums[PAPERS, 18]
    messages = [predicted(f, 18)["held"]["messages"] for f in (OURS, PAPERS)]
    assert messages[0] / messages[1] == pytest.approx(2.1, abs=0.1)
    more, less = made(tmp_path).findings[:2]
    assert "RevNet-18" in more.text
    assert "messages +" in more.text
    assert more.tone is Tone.PLAIN
    assert less.tone is Tone.GOOD


def test_the_table_adds_up(tmp_path: Path) -> None:
    table = tables(made(tmp_path))["invertible"]
    for depth in DEPTHS:
        rows = [row for row in table.rows if row[0].text.startswith(f"RevNet-{depth}")]
        assert [row[1].text for row in rows] == [*(kind.replace("_", " ") for kind in KINDS), "sum"]
        for column in range(2, len(table.columns)):
            values = [float(row[column].raw) for row in rows]
            assert values[-1] == pytest.approx(sum(values[:-1]))
    assert "modelled" in table.caption


def test_bars_are_drawn_to_the_sum(tmp_path: Path) -> None:
    (figure,) = (block for block in made(tmp_path).blocks if isinstance(block, Figure))
    sums = [f"{predicted(family, depth)['peak']['sum'] / 1e9:.1f}" for depth in (18, 50) for family in (PAPERS, OURS)]
    texts = [element.text for element in ElementTree.fromstring(figure.svg).iter() if element.text]
    assert [text.strip() for text in texts if text.strip() in sums] == sums
    assert "stashed weights" not in texts  # of no amount


def test_runs_are_compared_by_method_k_and_seed_and_memory_is_as_measured(tmp_path: Path) -> None:
    for seed in range(3):
        for network, reached in (("revnet18", 60.0), ("invertible_revnet18", 58.0 + 0.01 * seed)):
            fake_records.train(small.cell(network, methods.PETRA, 4, seed), tmp_path, reached + seed)
    found = made(tmp_path)
    table = tables(found)["invertible-small"]
    row = {f"{c.group} {c.name}": e for c, e in zip(table.columns, table.rows[1], strict=True)}
    assert [table.rows[1][0].text, table.rows[1][1].text] == ["PETRA", "Invertible RevNet-18, width 8"]
    assert row["k = 4 difference"].raw == pytest.approx(-1.99)
    assert row["k = 4 verdict"].text == "differ"
    assert row["k = 4 peak, MB"].text == "1.2"  # the 1,234,567 bytes of the fake
    assert [row[f"k = 1 {name}"].text for name in ("last epoch, %", "difference", "peak, MB")] == [
        "not run",
        "no pair",
        "",
    ]
    assert "1 comparison: differ 1" in found.findings[-1].text
