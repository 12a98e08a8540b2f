"""Beyond the paper: PETRA compared with backpropagation on transformers, for images and for text.

The text is part of Python and differs between versions, so each text and each arithmetic has a separate table.
"""

from collections.abc import Iterator

from petra_core import methods
from reproduce.cells import catalogue, networks
from reproduce.exhibits._exhibit import Shown, declare, result
from reproduce.presentation import facets
from reproduce.presentation.compare import differences, list_differences, means, summarize
from reproduce.presentation.content import Finding
from reproduce.presentation.tables import judged_columns, mean, method, table, words
from reproduce.records.frames import RunSet
from reproduce.text import conjunction

EXACT, PETRA = methods.BACKPROPAGATION.name, methods.PETRA.name


def each(run_set: RunSet) -> Iterator[Shown]:
    """Yield the differences to backpropagation by k, as a sentence, a figure and a table."""
    by = ["k", "method"]
    accuracy, bits = (means(run_set.runs, value, by) for value in ("test_accuracy", "test_bits_per_byte"))
    gaps = differences(accuracy, by, method=EXACT)
    cell, dataset = run_set.example, catalogue.by_name(run_set.example.dataset)
    patches = f"{cell.stem.removeprefix('patch')}-pixel patches"
    size = dataset.describe_size(cell.image_size) if dataset.text else patches
    setting = f"{run_set.describe(network=True)}, {size}" + f", text {run_set.text[:12]}…" * bool(run_set.text)
    network = networks.title_of(cell).partition(",")[0]
    key = f"{'language' if dataset.text else 'transformers'}-{run_set.key}"
    listed = list_differences(
        {f"at k = {k}": gaps[k, name] for k, name in sorted(gaps) if name == PETRA}, trailing=True, unit="points"
    )
    yield result(
        listed,
        f"{run_set.after.capitalize()} PETRA trails backpropagation on {network} by {conjunction(listed)}.",
        f"PETRA and backpropagation have not both been trained on {network} yet.",
    )
    yield facets.facet(
        run_set.done,
        [facets.line(), facets.dots(apart=0.02)],
        key=key,
        caption=f"Accuracy of {network} against k ({setting}). Line: mean over the seeds; dot: a run.",
        x="k",
        y=facets.Axis("test_accuracy", "masked bytes found, %" if dataset.text else None),
    )
    measure = "Masked bytes that are found" if dataset.text else "Test accuracy of a transformer"
    yield table(
        key=key,
        caption=f"{measure} ({setting}).",
        rows=sorted(accuracy, key=lambda place: place[0]),
        fields=[
            words("k", lambda place: f"k = {place[0]}", heading=True),
            method(lambda place: methods.by_name(place[1])),
            mean("last epoch, %", accuracy.get),
            judged_columns("to backpropagation", gaps.get),
            *([mean("bits per byte", bits.get)] if dataset.text else []),
        ],
        notes=[_explain_text(run_set)] if dataset.text else [],
    )
    if summary := summarize(gaps.values()):
        yield Finding(f"PETRA − backpropagation: {summary} ({setting}).")


def _explain_text(run_set: RunSet) -> str:
    """Explain the unit bits, and the result without a byte's context, as computed when a run was made."""
    explanation = (
        "Masked alike for all runs, one in ten shown as it is; bits: the mean of log₂ of 1 over the probability."
    )
    for run in run_set.finished:
        if unigram := run.result["data"].get("unigram"):
            reached = f"{unigram['accuracy']:.2f} % in {unigram['bits_per_byte']:.2f} bits"
            python = run.environments[-1]["python"]
            return f"{explanation} The frequencies of single bytes find {reached}. The text is that of Python {python}."
    return explanation


EXHIBIT = declare("transformers", each)
