"""Beyond the paper: measure how deep inputs can be reconstructed, by the coupling of the invertible blocks.

No block of these transformers between embedding and head keeps its input, so errors accumulate over all of them. A run
that diverges has no accuracy, but its errors before that are still shown.
"""

from collections.abc import Iterator

from reproduce.exhibits._exhibit import Shown, declare, result, text_of
from reproduce.exhibits.reconstruction import NOTE, TRAINING, draw_errors, error_columns, errors_at_bottom, list_broken
from reproduce.grids.plans.couplings import BLOCKS, COUPLINGS, plan_cell
from reproduce.presentation import facets
from reproduce.presentation.compare import means, measured_samples
from reproduce.presentation.content import Finding
from reproduce.presentation.tables import mean, number, table, words
from reproduce.records.broken import RULE
from reproduce.records.frames import RunSet, settings_key
from reproduce.records.run import Status
from reproduce.text import conjunction, count


def each(run_set: RunSet) -> Iterator[Shown]:
    """Yield the errors at the bottom by depth, as a figure and a table."""
    by_settings = {settings_key(plan_cell(c, blocks)): (c.title, blocks) for c in COUPLINGS for blocks in BLOCKS}
    titles, depths = zip(*(by_settings[key] for key in run_set.runs["settings"]), strict=True)
    runs = run_set.runs.assign(title=titles, blocks=depths)
    ended = runs[runs["status"].isin([Status.DONE, Status.FAILED])]
    bottom = errors_at_bottom(run_set, ended[["cell", "title", "blocks"]])
    errors = measured_samples(bottom, ["title", "blocks", "measure"])
    accuracy = means(runs, "test_accuracy", ["title", "blocks"])
    setting = run_set.describe()
    listed = [
        f"{estimate.mean:.2g} with {title}"
        for title in dict.fromkeys(titles)
        if (estimate := errors[title, BLOCKS[-1], TRAINING].estimate)
    ]
    wrecks = int((ended["broken"] != "").sum())
    of_all = f"{wrecks} of {count(len(ended), 'run')} {'is' if wrecks == 1 else 'are'} broken"
    broken = of_all if wrecks else "no run is broken"
    yield result(
        listed,
        f"{run_set.after.capitalize()} under PETRA the relative error at the bottom of {BLOCKS[-1]} blocks is "
        f"{conjunction(listed)}; {broken}.",
        f"No error at {BLOCKS[-1]} blocks has been measured yet; {broken}.",
    )
    if wrecks:
        yield Finding(
            f"{broken.capitalize()}: {'their' if wrecks > 1 else 'its'} errors are of a network that learns little or "
            f"nothing ({setting})."
        )
    yield draw_errors(
        bottom,
        f"couplings-{run_set.key}",
        text_of("couplings", "figure", setting=setting),
        facets.Axis("blocks", label="blocks", log=True, ticks=BLOCKS),
        facets.Panels(col="title", height=2.9),
    )
    yield table(
        key=f"couplings-{run_set.key}",
        caption=text_of("couplings", "table", setting=setting, run_set=run_set),
        rows=[(title, blocks) for title in dict.fromkeys(titles) for blocks in BLOCKS],
        fields=[
            words("coupling", lambda place: place[0], heading=True),
            number("blocks", lambda place: place[1]),
            *error_columns(errors),
            mean("accuracy, %", accuracy.get),
            words("broken runs", lambda place: "; ".join(list_broken(accuracy[place]))),
        ],
        notes=[RULE, NOTE, "In bf16 the functions are in bfloat16 by autocast, the streams in float32."],
    )


EXHIBIT = declare("couplings", each)
