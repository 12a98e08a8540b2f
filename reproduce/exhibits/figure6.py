"""Figure 6: gradient quality over training.

The learning rate determines how far the weights move during a delay, and it changes over training. One stage therefore
has gradients of very different quality in one run, and Figure 5's means over the run do not show when.
"""

from collections.abc import Iterator

from reproduce.exhibits._exhibit import Sentence, Shown, declare, text_of
from reproduce.exhibits.figure5 import CLOSER, KINDS, LOOKS, extents, quality
from reproduce.presentation import facets
from reproduce.presentation.compare import measured_samples
from reproduce.presentation.content import Entry
from reproduce.presentation.tables import entry, table, words
from reproduce.records import gradients
from reproduce.records.frames import RunSet
from reproduce.records.gradients import METHOD

POINTS, ROWS = 24, 6  # largest number of parts of the training, in a curve and in the table
PLACE = ["study", "begin", "end"]


def each(run_set: RunSet) -> Iterator[Shown]:
    """Yield a line of panels for each study, and the paper's statement over training."""
    lines = gradients.comparisons(run_set, single=True)
    if lines["value"].isna().all():
        return
    epochs = run_set.example.epochs
    fine, parts = (gradients.in_parts(lines, epochs, most) for most in (POINTS, ROWS))
    seeds_of, values = extents(run_set, parts), gradients.over_stages(parts)
    closer = measured_samples(gradients.over_stages(gradients.gains(parts)), [*PLACE, "measure"])
    cosines = fine[fine["measure"] == "cosine"].assign(epoch=(fine["begin"] + fine["end"]) / 2)
    first = next(iter(seeds_of))
    stem = parts[(parts["study"] == first) & (parts["stage"] == 0) & (parts["measure"] == "cosine")]
    course = stem[stem["pair"] == METHOD].groupby("end")["value"].mean().dropna()
    if not course.empty:
        yield Sentence(
            f"At the stem of {first} the cosine between PETRA's and the end-to-end gradient is "
            f"{course.iloc[:-1].min():.2f} to {course.iloc[:-1].max():.2f} before the last part of the training and "
            f"{course.iloc[-1]:.2f} in it, after the learning rate has dropped."
            if len(course) > 1
            else f"At the stem of {first} the cosine of PETRA's and the end-to-end gradient is {course.iloc[0]:.2f}."
        )
    yield facets.facet(
        cosines[cosines["stage"] == cosines.groupby(["study", "kind"])["stage"].transform("min")],
        [facets.line("range", width=1.2, marked=True), lambda panel: panel.axes.set_xlim(0, epochs)],
        key=f"figure6-{run_set.key}",
        caption=text_of("figure6", "figure", run_set=run_set),
        x=facets.Axis("epoch", ticks=sorted({0, epochs // 3, 2 * epochs // 3, epochs})),
        y="value",
        hue="pair",
        looks=LOOKS,
        panels=facets.Panels(
            row="study",
            col="kind",
            titles=lambda _, kind: f"{kind}: {KINDS[kind]}",
            margins=lambda study: str(study).replace(", ", "\n", 1),
            share=(True, "row"),
            height=1.8,
        ),
    )
    yield table(
        key=f"figure6-{run_set.key}",
        caption=f"Gradient quality over training (scale “{run_set.scale}”), means over the stages below the head.",
        rows=values[PLACE].drop_duplicates().itertuples(index=False, name=None),
        fields=[
            words("study", lambda part: f"{part[0]}: {seeds_of[part[0]]}", heading=True),
            entry("epochs", lambda part: Entry(f"{part[1]:.3g} to {part[2]:.3g}", part[1])),
            *quality(values, PLACE, closer),
        ],
        notes=[CLOSER],
    )


EXHIBIT = declare("figure6", each)
