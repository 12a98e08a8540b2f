"""The driver: how an exhibit stands by what its comparisons say, and which of its sentences is shown."""

from pathlib import Path

import pytest

from petra_core import methods
from reproduce.exhibits import length, table2
from reproduce.exhibits._exhibit import Exhibit
from reproduce.grids import recipes
from reproduce.show.content import Standing, Tone
from reproduce.show.statements import Outcome
from tests import fake_records, sections

PETRA, EXACT = methods.PETRA, methods.BACKPROPAGATION
AGREE, DISAGREE, CANNOT_TELL = Outcome.AGREE, Outcome.DISAGREE, Outcome.CANNOT_TELL


@pytest.mark.parametrize(
    ("outcomes", "standing"),
    [
        ((), Standing.SMALL_SCALE),
        ((CANNOT_TELL,), Standing.SMALL_SCALE),
        ((AGREE, CANNOT_TELL), Standing.SMALL_SCALE),
        ((AGREE, AGREE), Standing.REPRODUCED),
        ((AGREE, CANNOT_TELL, DISAGREE), Standing.DIFFERS),
    ],
)
def test_an_exhibit_stands_as_its_comparisons_at_the_papers_scale_say(
    tmp_path: Path, outcomes: tuple[Outcome, ...], standing: Standing
) -> None:
    shown = Exhibit("table2", "A table", each=lambda _: outcomes)
    assert sections.made(shown, tmp_path).standing is Standing.NOT_RUN
    fake_records.train(recipes.cell("small", "revnet18", PETRA, 1), tmp_path, 60.0)
    assert sections.made(shown, tmp_path).standing is Standing.SMALL_SCALE
    fake_records.train(recipes.cell("paper", "revnet18", PETRA, 1), tmp_path, 60.0)
    assert sections.made(shown, tmp_path).standing is standing


def test_runs_of_the_paper_that_miss_its_values_reproduce_nothing(tmp_path: Path) -> None:
    for seed in range(3):
        fake_records.train(recipes.cell("paper", "revnet18", PETRA, 1, seed), tmp_path, 60.0 + 0.1 * seed)
    shown = sections.made(table2.EXHIBIT, tmp_path)
    assert shown.standing is Standing.DIFFERS
    assert "1 disagree" in next(finding.text for finding in shown.findings if finding.tone is Tone.ALERT)
    assert sections.made(length.EXHIBIT, tmp_path).standing is Standing.SMALL_SCALE


def test_a_run_that_has_begun_does_not_take_the_place_of_an_answer(tmp_path: Path) -> None:
    for method in (PETRA, EXACT):
        fake_records.train(recipes.cell("small", "revnet18", method, 1), tmp_path, 60.0)
    fake_records.train(recipes.cell("paper", "revnet18", PETRA, 1), tmp_path, 60.0, epochs=1)
    known = "PETRA − backpropagation at k = 1, points: 0.0 (one run each) after 3 epochs (scale “small”)."
    assert sections.made(length.EXHIBIT, tmp_path).sentence == known
    assert "(scale “small”)" in sections.made(table2.EXHIBIT, tmp_path).sentence
