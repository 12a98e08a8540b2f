"""Share code between the exhibits that show how exactly the lowest stage reconstructs its input."""

from collections import Counter
from collections.abc import Sequence

from pandas import DataFrame

from petra_core import methods
from reproduce.exhibits._exhibit import text_of
from reproduce.presentation import facets, plots
from reproduce.presentation.compare import SeedSample, SeedSamples
from reproduce.presentation.content import Figure
from reproduce.presentation.tables import Field, error
from reproduce.records.frames import RunSet, over_training

BOTTOM = 1  # the lowest stage that reconstructs its input
#: By measure of reconstructed inputs (`reproduce.measures.reconstruction`).
CAUSES = {
    "training/input": facets.Look("training (newer weights)", plots.COLOURS[methods.PETRA]),
    "rounding_bfloat16/input": facets.Look("rounding, bfloat16 streams", plots.COLOURS[methods.DSP], (4, 1.5)),
    "rounding/input": facets.Look("rounding", plots.COLOURS[methods.BACKPROPAGATION], (1, 1)),
}
TRAINING = next(iter(CAUSES))
NOTE = text_of("reconstruction", "note")


def errors_at_bottom(run_set: RunSet, places: DataFrame) -> DataFrame:
    """Return the mean error of each run and cause, with the columns of `places`, which has a row for each cell."""
    lines = over_training(run_set.lines())
    lines = lines[(lines["stage"] == BOTTOM) & lines["measure"].isin(list(CAUSES))]
    return lines.merge(places, on="cell")


def error_columns(errors: SeedSamples) -> list[Field]:
    """Return a column for each cause, from samples by place and cause."""

    def column(cause: str) -> Field:
        group = "error of the input reconstructed at the bottom"
        return error(CAUSES[cause].label, lambda place: errors[*place, cause], group=group)

    return [column(cause) for cause in CAUSES]


def draw_errors(errors: DataFrame, key: str, caption: str, x: str | facets.Axis, panels: facets.Panels) -> Figure:
    """Draw the errors with a line for each cause."""
    return facets.facet(
        errors,
        [facets.line(), facets.dots()],
        key=key,
        caption=caption,
        x=x,
        y=facets.Axis("value", label="error at the bottom", log=True),
        hue="measure",
        looks=CAUSES,
        panels=panels,
    )


def list_broken(sample: SeedSample) -> Sequence[str]:
    """Return the number of broken runs by reason: "2 diverged"."""
    return [f"{number} {reason}" for reason, number in Counter(sample.broken.values()).items()]
