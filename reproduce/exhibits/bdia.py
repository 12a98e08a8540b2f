"""Beyond the paper: BDIA inverts a plain transformer bit for bit, without a change of architecture (arXiv 2407.09093).

Its authors compare ViT, RevViT and BDIA-ViT. Their numbers are known second-hand, without the settings of their runs.
Two properties may explain BDIA's accuracy: its random steps, which regularise, and its quantiser. Therefore one run
has no quantiser.
"""

from collections.abc import Iterable, Iterator, Mapping

from pandas import DataFrame, concat

from reproduce import published as published_tables
from reproduce.cells import catalogue
from reproduce.exhibits._exhibit import Sentence, Shown, declare, notes, run_sets, text_of
from reproduce.grids.plans.bdia import BDIA, BY_SETTINGS, CONTESTANTS, REVVIT, VIT, TransformerContestant
from reproduce.presentation import facets
from reproduce.presentation.compare import format_difference, means
from reproduce.presentation.content import MEGABYTE, Entry, Table, missing, published_entry, with_sign
from reproduce.presentation.statements import compare_with_published
from reproduce.presentation.tables import amount, entry, judged_columns, mean, published_value, table, words
from reproduce.records.benchmarks import ALLOCATED, SIDE_BITS
from reproduce.records.frames import Frames, RunSet
from reproduce.text import conjunction


def whole(frames: Frames) -> Iterator[Shown]:
    """Yield published values next to ours: accuracy at the published size, and memory as measured by the benchmark."""
    planned = run_sets(frames, "bdia")
    yield Sentence(_gains(planned))
    papers = [run_set for run_set in planned if run_set.scale == "paper"]
    for arithmetic in dict.fromkeys(run_set.arithmetic for run_set in papers):
        yield _compare_published([run_set for run_set in papers if run_set.arithmetic == arithmetic], arithmetic)
    yield _held(frames)


def _compare_published(papers: Iterable[RunSet], arithmetic: str) -> Table:
    """Return a table of the published accuracies next to ours in one arithmetic."""
    ours = means(concat([_runs(run_set) for run_set in papers]), "test_accuracy", ["dataset", "contestant"])
    rows = published_tables.read("bdia")
    stated = {(row["dataset"], row["network"]): row for row in rows if row["quantity"] == "accuracy"}
    return table(
        key="bdia" if arithmetic == "float32" else f"bdia-paper-{arithmetic}",
        caption=text_of("bdia", "accuracy", arithmetic=arithmetic),
        rows=stated,
        fields=[
            words("data set", lambda key: catalogue.by_name(key[0]).title, heading=True),
            words("network", lambda key: key[1]),
            entry("published", lambda key: published_value(stated[key], "value")),
            mean("ours", lambda key: ours[key]),
            judged_columns("difference", lambda key: compare_with_published(ours[key], stated[key].number("value"))),
        ],
        notes=notes("bdia", "accuracy"),
    )


def _held(frames: Frames) -> Table:
    """Return a table of the published bytes next to those of the benchmark."""
    series = frames.series[frames.series["benchmark"] == "bdia"]
    medians = series.pivot_table("value", "contestant", "quantity", aggfunc="median").reindex(
        columns=[ALLOCATED, SIDE_BITS]
    )
    peaks, side_bits = medians[ALLOCATED] / MEGABYTE, medians[SIDE_BITS] / MEGABYTE
    shares = 100 * side_bits / peaks
    return table(
        key="bdia-memory",
        caption=text_of("bdia", "memory"),
        rows=[row for row in published_tables.read("bdia") if row["quantity"] == "memory"],
        fields=[
            words("network", lambda row: row["network"]),
            entry("published", lambda row: published_value(row, "value")),
            amount("ours", lambda row: peaks.get(row["network"]), 1, without="not run"),
            amount("side bits", lambda row: side_bits.get(row["network"]), 2, without="not run"),
            amount("their share, %", lambda row: shares.get(row["network"]), 2, without="not run"),
        ],
        notes=notes("bdia", "memory"),
    )


def each(run_set: RunSet) -> Iterator[Shown]:
    """Yield the results of all networks and methods on one data set."""
    runs = _runs(run_set)
    accuracy, done = means(runs, "test_accuracy", ["contestant"]), runs.dropna(subset=["test_accuracy"])
    yield facets.facet(
        done,
        [facets.rows([c.title for c in CONTESTANTS if c.title in set(done["contestant"])], bounded=True)],
        key=f"bdia-{run_set.key}-{run_set.dataset}",
        caption=text_of("bdia", "figure", setting=run_set.describe()),
        x="test_accuracy",
        y="contestant",
        legend="mark",
    )
    gaps = {c: accuracy[c.title] - accuracy[c.against.title] for c in CONTESTANTS if c.against}
    rows = published_tables.read("bdia")
    stated = {row["network"]: row for row in rows if (row["quantity"], row["dataset"]) == ("accuracy", run_set.dataset)}
    yield table(
        key=f"bdia-{run_set.key}-{run_set.dataset}",
        caption=f"Accuracy after the last epoch ({run_set.describe()}).",
        rows=[c for c in CONTESTANTS if c.title in accuracy],
        fields=[
            words("network", lambda c: c.title),
            words("trained by", lambda c: c.method.title),
            mean("accuracy, %", lambda c: accuracy[c.title]),
            words("compared with", lambda c: c.against and c.against.title),
            judged_columns("points", lambda c: gaps.get(c, "")),
            entry("published points", lambda c: _points_published(c, stated)),
        ],
        notes=["What random steps do by themselves, as regularisation: BDIA-ViT without quantiser next to ViT."],
    )


def _points_published(contestant: TransformerContestant, stated: Mapping[str, published_tables.Row]) -> Entry:
    """Return the difference of the published accuracies of a contestant and its reference, on the same data set."""
    if not contestant.against or contestant.title not in stated:
        return missing("")
    row, other = stated[contestant.title], stated[contestant.against.title]
    won = row.number("value") - other.number("value")
    return published_entry(with_sign(won, 2), row.mark, value=won)


def _gains(planned: Iterable[RunSet]) -> str:
    """State the gains of RevViT and BDIA-ViT over ViT, at the largest scale at which all three are finished."""
    for run_set in planned:
        accuracy = means(_runs(run_set), "test_accuracy", ["contestant"])
        gains = {c.title: accuracy[c.title] - accuracy[VIT.title] for c in (REVVIT, BDIA)}
        if all(gain.estimate for gain in gains.values()):
            listed = conjunction([f"{title} − ViT is {format_difference(gain)}" for title, gain in gains.items()])
            return f"{run_set.after.capitalize()} {listed} points of accuracy (scale “{run_set.scale}”)."
    return "Nothing can be compared with a plain ViT yet; what was published stands below."


def _runs(run_set: RunSet) -> DataFrame:
    """Return the runs of a run set with the title of their contestant."""
    families = run_set.runs["model"].str.partition("_")[0]
    settings = zip(families, run_set.runs["coupling"], run_set.runs["method"], strict=True)
    return run_set.runs.assign(contestant=[BY_SETTINGS[key].title for key in settings])


EXHIBIT = declare("bdia", each, whole)
