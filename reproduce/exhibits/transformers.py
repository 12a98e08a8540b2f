"""Beyond the paper: PETRA on transformers, of images and of text, beside backpropagation.

A reversible transformer buffers nothing between embedding and head: the hardest case for reconstruction with newer
weights. Its text comes with Python, another one in every version, so runs on different texts never stand in one table;
nor do reconstruction errors in different arithmetics.
"""

from collections.abc import Iterator

from petra_core import methods
from reproduce.cells import catalogue, networks
from reproduce.cells.kinds import ReconstructionCell
from reproduce.exhibits._exhibit import Exhibit, Sentence, Shown
from reproduce.grids.plans.transformer_errors import MODELS
from reproduce.records.frames import Sheet, over_training
from reproduce.show import facets
from reproduce.show.compare import judge, means, measured, points, reported
from reproduce.show.content import Finding
from reproduce.show.facets import RECONSTRUCTION_LOOKS, facet
from reproduce.show.tables import RECONSTRUCTION, Field, error, judged, mean, method, number, table, words

EXACT = methods.BACKPROPAGATION.name
BOTTOM = 1  # the lowest stage that reconstructs its input
INTRODUCTION = (
    "Transformers of two streams, reversible between embedding and head, trained by AdamW under PETRA and under "
    "backpropagation with the same seeds, data and learning rates: RevViT on images, RevRoBERTa on text, of which it "
    "has to find masked bytes. No inner stage buffers its input, so a reconstruction error can grow over all of them."
)


def each(sheet: Sheet) -> Iterator[Shown]:
    """The accuracy of the methods by k, or of the runs that were followed the reconstruction errors by depth."""
    yield from _errors(sheet) if isinstance(sheet.example, ReconstructionCell) else _accuracy(sheet)


def _accuracy(sheet: Sheet) -> Iterator[Shown]:
    last, bits = (means(sheet.runs, value, ["k", "method"]) for value in ("test_accuracy", "test_bits_per_byte"))
    ks, title = sorted({k for k, _ in last}), networks.title_of(sheet.example).partition(",")[0]
    gaps = {(k, name): last[k, name] - last[k, EXACT] for k, name in last if name != EXACT}
    less, known = judge(gaps), catalogue.by_name(sheet.example.dataset)
    patches = f"{sheet.example.stem.removeprefix('patch')}-pixel patches"
    setting = f"{sheet.described(network=True)}, {known.sized(sheet.example.image_size) if known.text else patches}"
    setting += f", text {sheet.text[:12]}…" * bool(sheet.text)
    key = f"{'language' if known.text else 'transformers'}-{sheet.key}"
    said = [f"{points(gaps[k, methods.PETRA.name])} with k = {k}" for k in ks]
    yield Sentence(f"{title}: PETRA less backpropagation, points of accuracy: {', '.join(said)}.")
    yield facet(
        sheet.done,
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
            judged("to backpropagation", lambda place: less.get(place)),
            *([mean("bits per byte", lambda place: bits[place])] if known.text else []),
        ],
        notes=[_of_text(sheet) if known.text else ""],
        grouped=True,
    )
    if words_of := reported(less.values()):
        yield Finding(f"Transformers: {setting}. Against backpropagation, {words_of}.")


def _of_text(sheet: Sheet) -> str:
    """What bits are, and what is reached without looking at a byte's neighbours, as computed when a run was made."""
    words_of = "Masked alike for all runs, one in ten shown as it is; bits: the mean of log₂ of 1 over the probability."
    for run in (sheet.frames.by_name[cell] for cell in sheet.done["cell"]):
        if alone := run.result["data"].get("unigram"):
            found = f"{alone['accuracy']:.2f} % in {alone['bits_per_byte']:.2f} bits"
            python = run.environments[-1]["python"]
            return f"{words_of} The frequencies of bytes alone find {found}. The text is that of Python {python}."
    return words_of


def _errors(sheet: Sheet) -> Iterator[Shown]:
    lines = over_training(sheet.lines())
    bottom = lines[(lines["stage"] == BOTTOM) & lines["cell"].isin(sheet.done["cell"])]
    errors = measured(bottom, "value", ["model", "measure"])

    def inexact(measure: str) -> Field:
        return error(RECONSTRUCTION_LOOKS[measure].label, lambda model: errors[model, measure])

    yield table(
        key=f"transformers-errors-{sheet.key}",
        caption="RevViT-Micro: relative error of the input that the lowest block reconstructs, mean over the "
        f"micro-batches that were followed ({sheet.described()}, PETRA with k = {sheet.example.accumulation}).",
        rows=MODELS,
        fields=[
            number("blocks", lambda model: MODELS[model]),
            number("J", lambda model: MODELS[model] + 2),
            *map(inexact, RECONSTRUCTION_LOOKS),
        ],
        notes=[RECONSTRUCTION, "In bf16 the functions are in bfloat16 by autocast, the streams in float32."],
    )


EXHIBIT = Exhibit("transformers", "Transformers", INTRODUCTION, each)
