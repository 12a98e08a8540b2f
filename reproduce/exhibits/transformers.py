"""Beyond the paper: PETRA on transformers, of images and of text, beside backpropagation.

The paper trains residual networks alone. A reversible transformer (`petra_core.models`) is reversible between embedding
and head without any further change, so nothing is buffered inside, and the whole network is one unbroken run of
reversible stages: the hardest case for reconstruction with newer weights. At the small scale RevViT has the depth of
the published Tiny, and so its delays, at a quarter of the width; RevRoBERTa learns to find masked bytes of a text
(`reproduce.data.text`), another one in every version of Python, so runs on different texts never stand in one table.

Transformers are trained by AdamW. Its learning rate grows with the square root of the samples of an update (Malladi et
al. 2022), not in proportion to them as SGD's does.

A transformer has two residual functions a block and LayerNorm in front of both, where a RevNet has one and BatchNorm
inside, so what holds for the reconstruction errors of chains (`reproduce.exhibits.depth`) need not hold here. So RevViT
is also trained by PETRA with 4 to 48 blocks while some micro-batches are followed, in two arithmetics that stand side
by side: float32, and bfloat16 by autocast, where the functions are computed in bfloat16 and the streams between them
stay float32. What it would mean to hold the streams, too, in bfloat16 is evaluated aside.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from reproduce.cells import catalogue, networks
from reproduce.cells.kinds import ReconstructionCell
from reproduce.exhibits._exhibit import Exhibit, Sentence, Shown
from reproduce.grids.plans import transformer_errors
from reproduce.grids.plans.transformer_errors import MODELS, SCALE, K
from reproduce.grids.plans.transformers import STUDIES, Study
from reproduce.records.frames import Frames, Sheet, weighted
from reproduce.show.compare import DONE, Sample, family_note, judge, means, measured, points, reported
from reproduce.show.content import Entry, Finding, Tone, missing, relative_error, text
from reproduce.show.content import number as number_entry
from reproduce.show.tables import DIFFERENCES, Field, entry, judged, mean, number, table, words
from reproduce.words import count

INTRODUCTION = (
    "Transformers of two streams, reversible between embedding and head, trained by PETRA and by backpropagation with "
    "the same seeds, data and learning rates: RevViT on images, RevRoBERTa on text, of which it has to find masked "
    "bytes. No inner stage buffers its input, so a reconstruction error can grow over the whole depth."
)
TEXT_NOTE = (
    "Percent of the masked bytes of the validation text, masked alike for all runs, and the bits that they would take: "
    "the mean of log₂ of 1 over the probability given to each. One masked byte in ten is shown as it is, which a "
    "network can learn to copy. Frequencies of bytes: the most frequent one of the training text always, and the bits "
    "of all of them, on the same masked bytes. The text comes with Python, and differs between its versions."
)


# --- accuracy


def each(sheet: Sheet) -> Iterator[Shown]:
    """The accuracy of the methods by k; of reconstruction errors, both arithmetics with the first of their sheets."""
    if isinstance(sheet.example, ReconstructionCell):
        first = next(sheet.frames.sheets(sheet.scale, sheet.planned))
        yield from errors(sheet.frames) if first.arithmetic == sheet.arithmetic else ()
        return
    for study in STUDIES:
        if (study.scale, study.example.dataset) == (sheet.scale, sheet.dataset):
            yield from _accuracy(study, sheet)


def _accuracy(study: Study, sheet: Sheet) -> Iterator[Shown]:
    last, bits = (means(sheet.runs, value, ["method", "k"]) for value in ("test_accuracy", "test_bits_per_byte"))
    exact, *others = (method.name for method in study.compared)
    less = judge({(name, k): last[name, k] - last[exact, k] for k in study.accumulations for name in others})
    recipe = f"{_described(study)}, {sheet.arithmetic}{_text_of(sheet)}"

    def fields(k: int) -> Iterator[Field]:
        yield mean("last epoch, %", lambda method: last[method.name, k], group=f"k = {k}")
        yield judged("difference", lambda method: less.get((method.name, k)), group=f"k = {k}")
        if study.of_text:
            yield mean("bits per byte", lambda method: bits[method.name, k], group=f"k = {k}")

    gaps = [f"{points(last[others[0], k] - last[exact, k])} with k = {k}" for k in study.accumulations]
    title = networks.title_of(study.example).partition(",")[0]
    yield Sentence(f"{title}: PETRA less backpropagation, points of accuracy: {', '.join(gaps)}.")
    what = "Masked bytes that are found" if study.of_text else "Test accuracy of a transformer"
    trained = table(
        key=f"{study.key}{sheet.key.removeprefix(study.scale)}",
        caption=f"{what} ({recipe}).",
        rows=study.compared,
        fields=[words("method", lambda method: method.title), *(f for k in study.accumulations for f in fields(k))],
        notes=(
            f"Mean ± half the 95 % interval (number of seeds). {DIFFERENCES} Difference: the method less "
            "backpropagation, same k.",
            TEXT_NOTE * study.of_text,
            family_note(less.values()),
        ),
        grouped=True,
    )
    yield replace(trained, rows=[*_known_predictors(study, sheet), *trained.rows])
    if said := reported(less.values()):
        yield Finding(f"Transformers: {recipe}. Against backpropagation, {said}.")


def _described(study: Study) -> str:
    """The settings that matter to a reader, in words."""
    cell = study.example
    known = catalogue.by_name(cell.dataset)
    sized = known.sized(cell.image_size) if known.text else f"{cell.stem.removeprefix('patch')}-pixel patches"
    return (
        f"scale “{cell.scale}”: {known.title}, {networks.title_of(cell)}, {sized}, micro-batches of {cell.batch_size}, "
        f"{count(cell.epochs, 'epoch')}, AdamW, learning rate {study.rate:g}·√(batch·k/{study.samples})"
    )


def _text_of(sheet: Sheet) -> str:
    """Which text it is, in words; empty for images, and while no run is finished."""
    if not sheet.text:
        return ""
    runs = [sheet.frames.by_name[cell] for cell in sheet.done["cell"]]
    pythons = sorted({str(environment["python"]) for run in runs for environment in run.environments})
    return f", the text of Python {', '.join(pythons)} (SHA-256 {sheet.text[:12]}…)"


def _known_predictors(study: Study, sheet: Sheet) -> Iterator[list[Entry]]:
    """What is reached without looking at a byte's neighbours, computed when a run was made."""
    data = [sheet.frames.by_name[cell].result["data"] for cell in sheet.done["cell"]]
    unigram = next((own["unigram"] for own in data if "unigram" in own), None)
    if unigram is None:
        return
    values = catalogue.PYDOC.num_classes
    for title, accuracy, bits in (
        ("A guess", 100 / values, math.log2(values)),
        ("Frequencies of bytes", unigram["accuracy"], unigram["bits_per_byte"]),
    ):
        own = [number_entry(accuracy, 2, tone=Tone.PLAIN), missing(""), missing("")]
        yield [text(title), *[*own, number_entry(bits, 2, tone=Tone.PLAIN)] * len(study.accumulations)]


# --- errors of reconstructed inputs

BOTTOM = 1  # the lowest stage that reconstructs its input
#: A column: its title, its group, the precision of the run, the measure.
COLUMNS = (
    ("rounding", "float32", "float32", "rounding/input"),
    ("training", "float32", "float32", "training/input"),
    ("rounding", "bfloat16 by autocast", "bf16", "rounding/input"),
    ("training", "bfloat16 by autocast", "bf16", "training/input"),
    ("rounding", "bfloat16 streams", "float32", "rounding_bfloat16/input"),
)


def errors(frames: Frames) -> Iterator[Shown]:
    """The errors by depth, those of both arithmetics in one table, with their finding; nothing without runs."""
    cells = transformer_errors.cells(SCALE)
    runs = frames.runs[frames.runs["cell"].isin([cell.name for cell in cells]) & (frames.runs["status"] == DONE)]
    lines = frames.lines(runs["cell"]).merge(runs[["cell", "model", "precision"]], on="cell")
    place = ["model", "precision", "measure"]
    of = measured(weighted(lines[lines["stage"] == BOTTOM], [*place, "seed"]), "value", place)
    if not of:
        return

    def column(head: tuple[str, str, str, str]) -> Field:
        title, group, *which = head
        return entry(title, lambda model: _error(of[model, *which]), group=group)

    example = cells[0].to_dict()
    yield table(
        key="transformers-errors",
        caption="Relative error of the input that the lowest block reconstructs, by depth "
        f"(scale “{SCALE}”: RevViT-Micro, width {example['width']}, digits, micro-batches of {example['batch_size']}, "
        f"{count(example['epochs'], 'epoch')}, PETRA with k = {K}, AdamW): mean over the micro-batches that were "
        "followed, then over the seeds ± half the 95 % interval (number of seeds).",
        rows=MODELS,
        fields=[
            number("blocks", lambda model: MODELS[model]),
            number("J", lambda model: MODELS[model] + 2),
            *map(column, COLUMNS),
        ],
        notes=(
            "Norm of reconstructed less true over that of the true, of a whole micro-batch. Rounding: the forward "
            "inverted with its own weights. Training: the engine's own inversion, with the weights of 2(J-2) ticks "
            "later. Autocast: the functions in bfloat16, the streams between them in float32. Bfloat16 streams: "
            "functions in float32, and streams rounded to bfloat16 between blocks, which the engine does not have.",
        ),
    )
    said = [
        f"{title}, {group}: " + ", ".join(f"{relative_error(e).text} at {MODELS[m]}" for m, e in known)
        for title, group, *which in COLUMNS
        if (known := [(model, e) for model in MODELS if (e := of[model, *which].estimate) is not None])
    ]
    what = "relative error of the input that the lowest block reconstructs, by blocks"
    yield Finding(f"Transformers: {what}. {'; '.join(said)}.")


def _error(sample: Sample) -> Entry:
    if sample.estimate is None:
        return missing("not run")
    shown = relative_error(sample.estimate)
    return replace(shown, text=f"{shown.text} ({sample.estimate.n})")


EXHIBIT = Exhibit("transformers", "Transformers", INTRODUCTION, each)
