"""Beyond the paper: where does training break? A map over k, learning rate and warm-up.

PETRA and backpropagation train at the same points, on a chain of blocks that all reconstruct their inputs. If training
breaks under both, the learning rate is the cause and not the delay.
"""

from collections.abc import Iterator, Mapping

from reproduce.exhibits._exhibit import Sentence, Shown, declare, text_of
from reproduce.grids.plans.stability import COMPARED
from reproduce.presentation import facets
from reproduce.presentation.compare import CHOSEN, NOT_RUN, SeedSample, means, with_difference
from reproduce.presentation.content import Entry, Role, missing
from reproduce.presentation.tables import Field, amount, entry, number, table
from reproduce.records.broken import RULE, chance
from reproduce.records.frames import RunSet
from reproduce.text import count

POINT = ["warmup_epochs", "k", "reference_rate"]  # the last is the rate at 256 samples per update
ROW = ["warmup_epochs", "k", "method"]
PETRA, EXACT = (method.title for method in COMPARED)
DIFFERENCE = f"{PETRA} − {EXACT}, points"


def each(run_set: RunSet) -> Iterator[Shown]:
    """Yield the map, and for each of its rows the largest stable rate and the most accurate rate."""
    runs = run_set.runs[run_set.runs["seed"] == run_set.example.seed]
    runs = runs.assign(method=runs["method"].map({method.name: method.title for method in COMPARED}))
    warmups, ks, rates = (sorted(set(runs[name])) for name in POINT)
    samples = means(runs, "test_accuracy", [*POINT, "method"])
    points = list(dict.fromkeys((warmup, k, rate) for warmup, k, rate, _ in samples))
    known = [point for point in points if samples[*point, PETRA].ended and samples[*point, EXACT].ended]
    petra, exact = ({point for point in known if samples[*point, method].broken} for method in (PETRA, EXACT))
    done, tried = runs.dropna(subset=["test_accuracy"]), runs[runs["status"] != NOT_RUN].groupby(ROW)["reference_rate"]
    best = done.loc[done.groupby(ROW)["test_accuracy"].idxmax()].set_index(ROW)
    least, several = tried.min().reindex(best.index), tried.nunique().reindex(best.index) > 1  # rows with a best
    lowest = (best["reference_rate"] == least) & several
    setting, ours = run_set.describe(network=True, rate=False), len(petra - exact)

    def rate_columns(name: str) -> list[Field]:
        def best_rate(row: tuple[float, int]) -> Entry:
            rate = best["reference_rate"].get((*row, name))
            if rate is None:
                return missing("not known")
            return Entry(f"{rate:g}{' (lowest run)' if lowest[*row, name] else ''}", float(rate), Role.OURS)

        return [
            entry("stable up to rate", lambda row: stable_rate({r: samples[*row, r, name] for r in rates}), group=name),
            entry(f"most accurate rate{CHOSEN}", best_rate, group=name),
            amount(f"its accuracy, %{CHOSEN}", lambda row: best["test_accuracy"].get((*row, name)), 1, group=name),
        ]

    yield Sentence(
        f"In {count(len(known), 'pair')} of runs of {count(run_set.example.epochs, 'epoch')} (one seed) training "
        f"breaks at {count(len(petra), 'setting')} under PETRA and at {len(exact)} under backpropagation; "
        f"{ours} {'breaks' if ours == 1 else 'break'} only under PETRA, {len(exact - petra)} only under "
        "backpropagation.",
        known=bool(known),
    )
    yield facets.facet(
        with_difference(runs, "test_accuracy", minuend=PETRA, subtrahend=EXACT, by=POINT, title=DIFFERENCE),
        [facets.heat_map(chance(run_set.example))],
        key=f"stability-{run_set.key}",
        caption=text_of("stability", "figure", setting=setting),
        x="reference_rate",
        y=facets.Axis("test_accuracy", label="k"),
        hue="k",
        looks=facets.rising(ks),
        panels=facets.Panels(
            row="warmup_epochs",
            col="method",
            titles=lambda warmup, panel: f"{panel}\nwarm-up of {warmup:g} epochs",
            height=0.9 + 0.34 * len(ks),
        ),
        legend="",
    )
    yield table(
        key=f"stability-{run_set.key}-rates",
        caption=f"The largest rate up to which nothing breaks, and the most accurate one ({setting}).",
        rows=[(warmup, k) for warmup in warmups for k in ks],
        fields=[
            number("warm-up, epochs", lambda row: row[0], 1),
            number("k", lambda row: row[1]),
            *(field for name in (PETRA, EXACT) for field in rate_columns(name)),
        ],
        notes=["Lowest run: a lower rate may be better still. Nothing is interpolated."],
    )


def stable_rate(by_rate: Mapping[float, SeedSample]) -> Entry:
    """Return the largest rate up to which no run breaks, of the rates that were run, and what limits it."""
    stable, limit = None, "largest tried"
    for rate, sample in by_rate.items():
        if sample.broken and stable is None:
            return Entry("none", role=Role.OURS, hint="breaks at the smallest rate that was run")
        if sample.broken or (stable is not None and not sample.ended):
            limit = "" if sample.broken else "next not run"
            break
        stable = rate if sample.ended else None
    if stable is None:
        return missing("not known")
    return Entry(f"{stable:g} ({limit})" if limit else f"{stable:g}", stable, Role.OURS)


EXHIBIT = declare("stability", each, rule=RULE)
