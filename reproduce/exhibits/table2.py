"""Table 2: top-1 accuracy of ResNets and RevNets under backpropagation and PETRA, as published and as run here.

A comparison of a published number with ours hides two choices. The k of a published PETRA value is not known, so ours
has the best k, as the paper chose. The paper also compares PETRA over k micro-batches of 64 with backpropagation over
one batch of 128 or 256. The tables by k therefore compare it with that batch and with the same number of images.
"""

from collections.abc import Callable, Iterator

from petra_core import methods
from reproduce import published as published_tables
from reproduce.cells import catalogue
from reproduce.cells.kinds import TrainingCell
from reproduce.cells.networks import title_of, title_of_convolutional
from reproduce.exhibits._exhibit import Sentence, Shown, declare, notes, run_sets, text_of
from reproduce.grids import recipes
from reproduce.grids.plans.sweeps import ACCUMULATIONS, BACKPROPAGATION, PAPER, PETRA, SWEEPS
from reproduce.presentation import facets
from reproduce.presentation.compare import CHOSEN, NOT_RUN, SeedSample, format_difference, means, summarize
from reproduce.presentation.content import Finding, none
from reproduce.presentation.statements import compare_with_published
from reproduce.presentation.tables import entry, judged_columns, mean, mean_entry, number, published_value, table, words
from reproduce.published import Row
from reproduce.records.frames import Frames, RunSet, settings_key
from reproduce.text import conjunction

#: The paper reports the best epoch after the last drop. Our methods are compared with each other by the last epoch,
#: which is not chosen by the test set.
BEST, LAST = "best_test_accuracy", "test_accuracy"
TORCHVISION = "_torchvision"  # suffix of models whose accuracy the paper quotes from torchvision
#: Heads of columns: PETRA minus backpropagation over as many images per update, and at the paper's batch.
SAME, FIXED = "to the same batch", "to the fixed batch"


def by_cell(run_set: RunSet, value: str) -> Callable[[TrainingCell], SeedSample]:
    """Return a function that returns the sample of a cell in a run set, independent of the cell's seed."""
    samples = means(run_set.runs, value, ["settings"])
    return lambda cell: samples[settings_key(cell)]


def describe_fixed_batch(cell: TrainingCell) -> str:
    """Describe the batch of the paper's baselines that corresponds to a cell of PETRA."""
    halved = "" if cell.scale == "paper" else ", halved as PETRA's micro-batch is"
    batch = SWEEPS[cell.scale].baseline(cell.dataset, cell.model).batch_size
    return f"one batch of {batch} images per update whatever PETRA's k, as in the paper{halved}"


def whole(frames: Frames) -> Iterator[Shown]:
    """Yield the published values next to ours, once for each arithmetic that has runs."""
    rows = published_tables.read("table2_accuracy")
    papers = [run_set for run_set in run_sets(frames, "table2") if run_set.scale == "paper"]
    covered: set[int] = set()
    begun = [run_set for run_set in papers if run_set.begun] or papers[:1]
    for arithmetic in dict.fromkeys(run_set.arithmetic for run_set in begun):
        best = {run_set.dataset: by_cell(run_set, BEST) for run_set in papers if run_set.arithmetic == arithmetic}
        lines = [
            (row, *_ours(row, best.get(name))) for name in recipes.DATASETS for row in rows if row["dataset"] == name
        ]
        covered |= {place for place, (*_, sample) in enumerate(lines) if sample and sample.estimate}
        yield table(
            key="table2" if arithmetic == "float32" else f"table2-paper-{arithmetic}",
            caption=text_of("table2", "published", arithmetic=arithmetic),
            rows=lines,
            fields=[
                words("data set", lambda line: catalogue.by_name(line[0]["dataset"]).title, heading=True),
                words("network", lambda line: _title(line[0]["model"])),
                words("method", lambda line: methods.by_name(line[0]["method"]).title),
                entry("parameters, M", lambda line: published_value(line[0], "params_million")),
                entry("published", lambda line: published_value(line[0], "top1_percent")),
                entry(
                    f"ours{CHOSEN}", lambda line: mean_entry(line[2]) if line[2] else none("torchvision's own weights")
                ),
                words(f"our k{CHOSEN}", lambda line: line[1]),
                judged_columns(
                    "difference", lambda line: compare_with_published(line[2], line[0].number("top1_percent"))
                ),
            ],
            notes=notes("table2", "published"),
        )
    published_values = sum(not row["model"].endswith(TORCHVISION) for row in rows)
    yield Finding(
        f"{len(covered)} of {published_values} published values "
        f"{'has a run' if len(covered) == 1 else 'have runs'} of the paper's size."
    )


def _ours(row: Row, best: Callable[[TrainingCell], SeedSample] | None) -> tuple[int | None, SeedSample | None]:
    """Return our k and sample for a published value: the paper's baseline, or PETRA at its best k."""
    dataset, model = row["dataset"], row["model"]
    if model.endswith(TORCHVISION):
        return None, None
    cells = [PAPER.baseline(dataset, model)]
    if methods.by_name(row["method"]) is PETRA:
        cells = [PAPER.cell(dataset, model, PETRA, k) for k in ACCUMULATIONS]
    samples = {cell.accumulation: best(cell) if best else SeedSample() for cell in cells}

    def find_best(k: int) -> tuple[float, bool]:
        estimate = samples[k].estimate
        return estimate.mean if estimate else 0.0, samples[k].summary != NOT_RUN

    k = max(samples, key=find_best)
    return (k, samples[k]) if find_best(k)[1] else (None, SeedSample())


def _title(model: str) -> str:
    name, _, source = model.partition("_")
    return title_of_convolutional(name) + f" ({source})" * bool(source)


def each(run_set: RunSet) -> Iterator[Shown]:
    """Yield every k of the networks of a data set, as a figure and a table."""
    sweep, last = SWEEPS[run_set.scale], by_cell(run_set, LAST)
    revnets, ks = [f"revnet{depth}" for depth in sweep.depths], sorted(sweep.accumulations)

    def at(model: str, k: int, method: methods.Method = BACKPROPAGATION) -> TrainingCell:
        """Return the cell of a method at k, or the paper's baseline for k = 0."""
        return sweep.cell(run_set.dataset, model, method, k) if k else sweep.baseline(run_set.dataset, model)

    gaps = {
        (model, k, to): last(at(model, k, PETRA)) - last(at(model, k if to == SAME else 0))
        for model in revnets
        for k in ks
        for to in (SAME, FIXED)
    }
    example = at(revnets[0], 1, PETRA)
    yield Sentence(
        f"{run_set.after.capitalize()} PETRA − backpropagation on {title_of(example)}, at the same effective batch is "
        + conjunction([f"{format_difference(gaps[revnets[0], k, SAME])} at k = {k}" for k in (ks[0], ks[-1])])
        + f", in points (scale “{run_set.scale}”).",
        known=any(gaps[revnets[0], k, SAME].estimate for k in (ks[0], ks[-1])),
    )
    yield facets.facet(
        run_set.done[run_set.done["batch_size"] == example.batch_size],
        [facets.line("interval"), facets.dots(apart=0.05)],
        key=f"table2-{run_set.key}-{run_set.dataset}",
        caption=text_of("table2", "figure", setting=run_set.describe()),
        x=facets.Axis("k", ticks=ks),
        y="test_accuracy",
        panels=facets.Panels(col="network"),
    )
    yield table(
        key=f"table2-{run_set.key}-{run_set.dataset}",
        caption=f"Top-1 accuracy in percent by k ({run_set.describe()}).",
        rows=[(f"{family}{depth}", k) for depth in sweep.depths for family in sweep.families for k in (0, *ks)],
        fields=[
            words("network", lambda row: title_of(at(*row)), heading=True),
            number("k", lambda row: at(*row).accumulation),
            number("images per update", lambda row: at(*row).accumulation * at(*row).batch_size),
            mean("backpropagation", lambda row: last(at(*row)), group="last epoch, %"),
            mean(
                "PETRA",
                lambda row: last(at(row[0], row[1], PETRA)) if (*row, SAME) in gaps else None,
                group="last epoch, %",
            ),
            judged_columns(SAME, lambda row: gaps.get((*row, SAME), ""), group="PETRA − backpropagation"),
            judged_columns(FIXED, lambda row: gaps.get((*row, FIXED), ""), group="PETRA − backpropagation"),
        ],
        notes=[text_of("table2", "batches", example=example, fixed=describe_fixed_batch(example))],
    )
    if summary := summarize(gap for (*_, to), gap in gaps.items() if to == SAME):
        yield Finding(text_of("table2", "summary", setting=run_set.describe(), summary=summary))


EXHIBIT = declare("table2", each, whole)
