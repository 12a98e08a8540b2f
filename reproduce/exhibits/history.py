"""Show asv's counts by commit, to find changes of code that cost bytes, FLOPs, calls or digits."""

from collections.abc import Iterator

from reproduce.exhibits._exhibit import Sentence, Shown, declare
from reproduce.presentation import facets
from reproduce.presentation.content import Finding, code
from reproduce.presentation.tables import difference, entry, number, table, words
from reproduce.records.frames import Frames
from reproduce.text import count

CHANGED = 0.01  # relative change of a figure from which it is listed
LOOKS = {"": facets.Look("of no method", "#555555")} | facets.TITLE_LOOKS


def whole(frames: Frames) -> Iterator[Shown]:
    """Yield a small curve for each figure, and the commits at which a figure changed."""
    counts = frames.history
    if counts.empty:
        yield "Nothing has been counted yet: `nox -s benchmarks-history` does it."
        return
    for machine, rows in counts.groupby("machine"):
        commits, figures = rows["commit"].nunique(), rows["figure"].nunique()
        changes = rows[(rows["value"] / rows["before"] - 1).abs() > CHANGED]
        drifted = rows[(rows["ratio"] - 1).abs() > CHANGED]  # possibly in steps that are each too small to be a change
        moved = list(dict.fromkeys([*changes["figure"], *drifted["figure"]]))
        stayed = f"{figures - len(moved)} of {count(figures, 'figure')} stayed within {CHANGED:.0%}"
        latest = rows[rows["at"] == commits].groupby("figure")["ratio"].mean()
        now = "".join(
            f"; {figure} is at {latest[figure]:.2f} of its first value" for figure in moved if figure in latest
        )
        yield Sentence(f"Over {count(commits, 'commit')} {stayed}{now}.")
        yield facets.facet(
            rows.groupby(["figure", "method", "at"], sort=False)["ratio"].mean().reset_index(),
            [facets.line()],
            key=f"history-{machine}",
            title="Counts and errors over the commits",
            caption=f"Counts and numerical errors by commit, relative to the first ({machine}); mean over settings.",
            x=facets.Axis("at", label="commit"),
            y=facets.Axis("ratio", label="to the first"),
            looks=LOOKS,
            panels=facets.Panels(
                col="figure",
                wrap=3,
                titles=lambda _, figure: str(figure).replace(".track", "\n", 1).replace("\n_", "\n"),
                height=1.7,
            ),
        )
        yield table(
            key=f"history-{machine}",
            caption=f"Where a figure changed by more than {CHANGED:.0%} ({machine}).",
            rows=changes.itertuples(),
            fields=[
                words("figure", lambda row: row.figure),
                words("method", lambda row: row.method or row.setting),
                number("number", lambda row: row.at),
                entry("commit", lambda row: code(row.commit[:10]), numeric=False),
                number("before", lambda row: row.before, 2),
                number("after", lambda row: row.value, 2),
                difference("change, %", lambda row: 100 * (row.value / row.before - 1), 1),
            ],
        )
        yield Finding(f"History of the benchmarks: {stayed} over {count(commits, 'commit')} ({machine}){now}.")


EXHIBIT = declare("history", whole=whole)
