"""Beyond the paper: PETRA compared with backpropagation on transformers, for images and for text.

The text is part of Python and differs between versions, so each text and each arithmetic has a separate table.
"""

from collections.abc import Iterator

from petra_core import methods
from reproduce.cells import catalogue, networks
from reproduce.exhibits._exhibit import Exhibit, Sentence, Shown
from reproduce.presentation import facets
from reproduce.presentation.compare import bounded, means, summarize
from reproduce.presentation.content import Finding
from reproduce.presentation.tables import judged, mean, method, table, words
from reproduce.records.frames import RunSet
from reproduce.text import conjunction

EXACT = methods.BACKPROPAGATION.name
INTRODUCTION = (
    "Transformers of two streams, reversible between embedding and head, trained by AdamW under PETRA and under "
    "backpropagation with the same seeds, data and learning rates: RevViT on images, RevRoBERTa on text, of which it "
    "has to find masked bytes."
)


def each(run_set: RunSet) -> Iterator[Shown]:
    """Yield the accuracy of the methods by k."""
    last, bits = (means(run_set.runs, value, ["k", "method"]) for value in ("test_accuracy", "test_bits_per_byte"))
    ks, title = sorted({k for k, _ in last}), networks.title_of(run_set.example).partition(",")[0]
    gaps = {(k, name): last[k, name] - last[k, EXACT] for k, name in last if name != EXACT}
    known = catalogue.by_name(run_set.example.dataset)
    patches = f"{run_set.example.stem.removeprefix('patch')}-pixel patches"
    size = known.describe_size(run_set.example.image_size) if known.text else patches
    setting = f"{run_set.described(network=True)}, {size}"
    setting += f", text {run_set.text[:12]}…" * bool(run_set.text)
    key = f"{'language' if known.text else 'transformers'}-{run_set.key}"
    of_petra = {k: gaps[k, methods.PETRA.name] for k in ks}
    said = [f"{bounded(gap, trailing=True, unit='points')} at k = {k}" for k, gap in of_petra.items() if gap.estimate]
    yield Sentence(
        f"{run_set.after.capitalize()} PETRA trails backpropagation on {title} by {conjunction(said)}."
        if said
        else f"PETRA and backpropagation have not both been trained on {title} yet.",
        known=bool(said),
    )
    yield facets.facet(
        run_set.done,
        [facets.line(), facets.dots(apart=0.02)],
        key=key,
        caption=f"Accuracy of {title} against k ({setting}). Line: mean over the seeds; dot: a run.",
        x="k",
        y="test_accuracy",
        ylabel="masked bytes found, %" if known.text else None,
    )
    yield table(
        key=key,
        caption=f"{'Masked bytes that are found' if known.text else 'Test accuracy of a transformer'} ({setting}).",
        rows=sorted(last, key=lambda place: place[0]),
        fields=[
            words("k", lambda place: f"k = {place[0]}"),
            method("method", lambda place: methods.by_name(place[1])),
            mean("last epoch, %", lambda place: last[place]),
            judged("to backpropagation", lambda place: gaps.get(place)),
            *([mean("bits per byte", lambda place: bits[place])] if known.text else []),
        ],
        notes=[_of_text(run_set) if known.text else ""],
        grouped=True,
    )
    if words_of := summarize(gaps.values()):
        yield Finding(f"Transformers: {setting}. Against backpropagation, {words_of}.")


def _of_text(run_set: RunSet) -> str:
    """Explain the unit bits, and the result without a byte's context, as computed when a run was made."""
    words_of = "Masked alike for all runs, one in ten shown as it is; bits: the mean of log₂ of 1 over the probability."
    for run in (run_set.frames.by_name[cell] for cell in run_set.done["cell"]):
        if unigram := run.result["data"].get("unigram"):
            reached = f"{unigram['accuracy']:.2f} % in {unigram['bits_per_byte']:.2f} bits"
            python = run.environments[-1]["python"]
            return f"{words_of} The frequencies of single bytes find {reached}. The text is that of Python {python}."
    return words_of


EXHIBIT = Exhibit("transformers", "Transformers", INTRODUCTION, each)
