"""Test the renderer of comparisons on a declaration with two places."""

from pathlib import Path

from petra_core import methods
from reproduce.exhibits._exhibit import Exhibit
from reproduce.exhibits.comparison import Comparison, Headline, change, label, mean_column, method_name, plain_change
from reproduce.grids import recipes
from reproduce.presentation.content import MINUS, Section
from tests import fake_records
from tests.sections import entries, made, table

COMPARISON = Comparison(
    key="study-{run_set}",
    by=("network", "k", "method"),
    reference={"method": methods.BACKPROPAGATION.name},
    headline=Headline(
        known="{after} PETRA differs by {differences} (scale “{scale}”).",
        unknown="Nothing is known at the scale “{scale}”.",
        each="{difference} at k = {k}",
        where={"method": methods.PETRA.name},
    ),
    caption="Accuracy ({setting}).",
    columns=[
        label("k", "{network}, k = {k}"),
        method_name(),
        mean_column("accuracy"),
        mean_column("reference", method=methods.BACKPROPAGATION.name),
        change("points"),
        plain_change("loss", "train_loss", 2),
        lambda _: None,
    ],
    finding="Study: {summary}.",
)
EXHIBIT = Exhibit("accuracy", "Study", each=COMPARISON)  # of the plan "accuracy", which has all methods


def train(root: Path, method: methods.Method, *reached: float) -> None:
    for seed, accuracy in enumerate(reached):
        fake_records.train(recipes.cell("small", "revnet18", method, 1, seed), root, accuracy)


def section(root: Path) -> Section:
    return made(EXHIBIT, root)


def test_comparison_without_pair_is_unknown(tmp_path: Path) -> None:
    train(tmp_path, methods.PETRA, 50.0)
    rendered = section(tmp_path)
    assert rendered.sentence == "Nothing is known at the scale “small”."
    assert rendered.findings == []
    row = entries(table(rendered, "study-small"), "RevNet-18, width 8, k = 1", "PETRA")
    assert [row["", name].text for name in ("accuracy", "reference", "points", "loss")] == [
        *("50.00 (1 of 3)", "not run", "not comparable yet", "not comparable yet")
    ]


def test_comparison_lists_pairs_without_the_reference(tmp_path: Path) -> None:
    train(tmp_path, methods.PETRA, 50.0, 51.0)
    train(tmp_path, methods.BACKPROPAGATION, 60.0, 61.0)
    train(tmp_path, methods.DSP, 55.0)
    rendered = section(tmp_path)
    assert rendered.sentence.startswith(f"After 3 epochs PETRA differs by {MINUS}10.0")
    assert rendered.sentence.endswith("at k = 1 (scale “small”).")
    assert "2 differences from" in rendered.findings[0].text, (
        "PETRA and DSP differ from the reference, which has no difference to itself"
    )
    exact = entries(table(rendered, "study-small"), "RevNet-18, width 8, k = 1", "Backpropagation")
    assert exact["", "accuracy"].raw == 60.5
    assert [exact["", name].text for name in ("points", "verdict")] == ["reference", ""]
    petra = entries(table(rendered, "study-small"), "RevNet-18, width 8, k = 1", "PETRA")
    assert petra["", "reference"].raw == exact["", "accuracy"].raw
