"""Beyond the paper: PETRA compared with backpropagation on transformers, for images and for text.

The text is part of Python and differs between versions, so each text and each arithmetic has a separate table.
"""

from collections.abc import Mapping, Sequence

from petra_core import methods
from reproduce.cells import catalogue, networks
from reproduce.exhibits._exhibit import Exhibit
from reproduce.exhibits.comparison import Chart, Column, Comparison, Headline, change, label, mean_column, method_name
from reproduce.presentation import facets
from reproduce.records.frames import RunSet

EXACT = methods.BACKPROPAGATION.name
INTRODUCTION = (
    "Transformers of two streams, reversible between embedding and head, trained by AdamW under PETRA and under "
    "backpropagation with the same seeds, data and learning rates: RevViT on images, RevRoBERTa on text, of which it "
    "has to find masked bytes."
)


def _reads_text(run_set: RunSet) -> bool:
    return catalogue.by_name(run_set.example.dataset).text


def _setting(run_set: RunSet) -> str:
    cell = run_set.example
    dataset = catalogue.by_name(cell.dataset)
    size = (
        dataset.describe_size(cell.image_size) if dataset.text else f"{cell.stem.removeprefix('patch')}-pixel patches"
    )
    return f"{run_set.describe(network=True)}, {size}" + f", text {run_set.text[:12]}…" * bool(run_set.text)


def _names(run_set: RunSet) -> Mapping[str, str]:
    text = _reads_text(run_set)
    return {
        "network": networks.title_of(run_set.example).partition(",")[0],
        "kind": "language" if text else "transformers",
        "accuracy": "masked bytes found, %" if text else facets.LABELS["test_accuracy"],
        "measure": "Masked bytes that are found" if text else "Test accuracy of a transformer",
    }


def _of_text_only(column: Column) -> Column:
    return lambda compared: column(compared) if _reads_text(compared.run_set) else None


def _notes(run_set: RunSet) -> Sequence[str]:
    return [_of_text(run_set)] if _reads_text(run_set) else []


COMPARISON = Comparison(
    by=("k", "method"),
    reference={"method": EXACT},
    key="{kind}-{run_set}",
    setting=_setting,
    names=_names,
    headline=Headline(
        known="{after} PETRA trails backpropagation on {network} by {differences}.",
        unknown="PETRA and backpropagation have not both been trained on {network} yet.",
        each="{difference} at k = {k}",
        where={"method": methods.PETRA.name},
        trailing=True,
        unit="points",
    ),
    chart=Chart(
        caption="Accuracy of {network} against k ({setting}). Line: mean over the seeds; dot: a run.",
        x="k",
        layers=[facets.line(), facets.dots(apart=0.02)],
        label="{accuracy}",
    ),
    caption="{measure} ({setting}).",
    rows=lambda compared: sorted(compared.samples, key=lambda place: place[0]),
    columns=[
        label("k", "k = {k}"),
        method_name(),
        mean_column("last epoch, %"),
        change("to backpropagation"),
        _of_text_only(mean_column("bits per byte", "test_bits_per_byte")),
    ],
    notes=_notes,
    finding="Transformers: {setting}. Against backpropagation, {summary}.",
)


def _of_text(run_set: RunSet) -> str:
    """Explain the unit bits, and the result without a byte's context, as computed when a run was made."""
    explanation = (
        "Masked alike for all runs, one in ten shown as it is; bits: the mean of log₂ of 1 over the probability."
    )
    for run in (run_set.frames.by_name[cell] for cell in run_set.done["cell"]):
        if unigram := run.result["data"].get("unigram"):
            reached = f"{unigram['accuracy']:.2f} % in {unigram['bits_per_byte']:.2f} bits"
            python = run.environments[-1]["python"]
            return f"{explanation} The frequencies of single bytes find {reached}. The text is that of Python {python}."
    return explanation


EXHIBIT = Exhibit("transformers", "Transformers", INTRODUCTION, COMPARISON)
