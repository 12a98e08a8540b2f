"""Beyond the paper: where does training break? A map over k, learning rate and warm-up.

Warm-up and accumulation are what makes PETRA stable: the first keeps the weights from moving far while they are
reconstructed through, the second divides the number of updates within a delay. The map has both, for PETRA and for
backpropagation at the same points, on a chain of reversible blocks, where every inner stage is reconstructed: whatever
breaks under both is the learning rate's doing and not the delay's.
"""

from collections.abc import Iterator

from petra_core.methods import Method
from reproduce.exhibits import stability_plots
from reproduce.exhibits.divergence import RULE
from reproduce.exhibits.stability_map import BREAKS, NOT_RUN, Map, Point, read_map, stable_rates
from reproduce.grids import scales
from reproduce.grids.plans.stability import COMPARED, cells
from reproduce.records.results import Results
from reproduce.show.content import (
    Block,
    Column,
    Entry,
    Finding,
    Section,
    Table,
    Tone,
    missing,
    not_run_at,
    number,
    run_at,
    signed,
    text,
)
from reproduce.words import count

TITLE = "Stability: where training breaks, over k, learning rate and warm-up"


def section(results: Results) -> Section:
    """For every scale with records: the maps, every point, and the largest rate that is stable."""
    maps = [found for scale in scales.SCALES if (found := read_map(results, scale, cells(scale))) is not None]
    shown = [found for found in maps if found.begun]
    blocks: list[Block] = [INTRODUCTION, RULE]
    findings: list[Finding] = []
    for found in shown:
        own = list(_findings(found))
        words = " ".join(finding.text.removeprefix("Stability: ") for finding in own)
        blocks += [stability_plots.figure(found, words), _stable_table(found)]
        findings += own
    blocks += not_run_at([found.scale for found in maps if not found.begun])
    return Section(
        "stability",
        TITLE,
        blocks,
        findings or [Finding("Stability: no point of the map has been run yet.", Tone.MISSING)],
        run_at(found.scale for found in shown),
        folded=[_points_table(found) for found in shown],
        folded_title="Every point of the maps",
    )


INTRODUCTION = (
    "Each field is one short training, with one seed: differences of a few points between two fields mean nothing, "
    "what breaks and what does not is what the map is for. The learning rate after warm-up is rate·batch·k/256, the "
    "paper's rule with other rates than its 0.1, so that a field further up has the same rate for each sample and "
    "fewer updates within a delay."
)


# --- what is stable


def _findings(found: Map) -> Iterator[Finding]:
    both = [point for point in found.cells if all(found.ended(point, method) for method in COMPARED)]
    by_method = {method: {point for point in both if found.broken(point, method)} for method in COMPARED}
    petra, reference = (by_method[method] for method in COMPARED)
    extent = f"{len(both)} of {count(len(found.cells), 'point')} run with both methods, one seed"
    yield Finding(
        f"Stability: scale “{found.scale}” ({extent}): PETRA breaks at {len(petra)} and backpropagation at "
        f"{len(reference)} of them; at {len(petra - reference)} PETRA alone, at {len(reference - petra)} "
        "backpropagation alone.",
        Tone.PLAIN if both else Tone.MISSING,
    )
    for warmup in found.warmups:
        length = f"warm-up of {stability_plots.count_epochs(warmup)}" if warmup else "no warm-up"
        words = []
        for method in COMPARED:
            own = [f"{_rate_words(found, method, warmup, k)} at k = {k}" for k in found.accumulations]
            words.append(f"{method.title} {', '.join(own)}")
        yield Finding(
            f"Stability: scale “{found.scale}”, {length}: the largest rate up to which nothing breaks "
            f"is for {'; for '.join(words)}."
        )


def _rate_words(found: Map, method: Method, warmup: float, k: int) -> str:
    rate, limit = stable_rates(found, method, warmup, k)
    if rate is None:
        return "not known" if limit == NOT_RUN else "none"
    return f"{rate:g}" if limit == BREAKS else f"{rate:g} ({limit})"


# --- tables


def _stable_table(found: Map) -> Table:
    columns = [Column("warm-up, epochs"), Column("k"), *(Column(method.title) for method in COMPARED)]
    body = [
        [
            number(warmup, 1, tone=Tone.PLAIN),
            number(k, 0, tone=Tone.PLAIN),
            *(_rate_entry(*stable_rates(found, method, warmup, k)) for method in COMPARED),
        ]
        for warmup in found.warmups
        for k in found.accumulations
    ]
    return Table(
        key=f"stability-{found.scale}-rates",
        caption=f"The largest rate up to which nothing breaks ({found.described}).",
        columns=columns,
        rows=body,
        notes=("The rate stands where the paper has 0.1. Only rates of the map were tried; nothing is interpolated.",),
    )


def _rate_entry(rate: float | None, limit: str) -> Entry:
    if rate is None:
        return (
            missing("not run")
            if limit == NOT_RUN
            else text("none", tone=Tone.ALERT, hint="breaks at the smallest rate")
        )
    return Entry(f"{rate:g}" if limit == BREAKS else f"{rate:g} ({limit})", rate, Tone.OURS)


def _points_table(found: Map) -> Table:
    columns = [Column(name) for name in ("warm-up, epochs", "k", "rate", "learning rate")]
    for method in COMPARED:
        columns += [Column("accuracy, %", group=method.title), Column("state", numeric=False, group=method.title)]
    columns.append(Column("difference"))
    body = []
    for point in sorted(found.cells):
        rate = next(iter(found.cells[point].values())).learning_rate
        line = [
            number(point.warmup, 1, tone=Tone.PLAIN),
            number(point.k, 0, tone=Tone.PLAIN),
            Entry(f"{point.rate:g}", point.rate),
            Entry(f"{rate:.4g}", rate),
        ]
        for method in COMPARED:
            accuracy, reason = found.accuracy(point, method), found.broken(point, method)
            line.append(missing("") if accuracy is None else number(accuracy, 1))
            line.append(text(f"broken: {reason}", tone=Tone.ALERT) if reason else missing(_state(found, point, method)))
        difference = found.difference(point)
        line.append(missing("") if difference is None else signed(difference, 1))
        body.append(line)
    return Table(
        key=f"stability-{found.scale}-points",
        caption=f"Every point of the map ({found.described}), one seed.",
        columns=columns,
        rows=body,
        notes=("Difference: PETRA less backpropagation at the same point, points of accuracy.",),
        data=list(_data(found)),
    )


def _state(found: Map, point: Point, method: Method) -> str:
    run = found.runs[point].get(method)
    return "not run" if run is None else "trains" if run.done else str(run.state)


def _data(found: Map) -> Iterator[dict[str, object]]:
    """One line a run."""
    for point in sorted(found.cells):
        for method, cell in found.cells[point].items():
            run = found.runs[point].get(method)
            yield {
                "scale": found.scale,
                "warmup_epochs": point.warmup,
                "k": point.k,
                "rate": point.rate,
                "learning_rate": cell.learning_rate,
                "method": method.name,
                "seed": cell.seed,
                "state": _state(found, point, method),
                "broken": found.broken(point, method),
                "train_loss": "" if run is None else run.result.get("train_loss", ""),
                "test_accuracy": "" if run is None else run.result.get("test_accuracy", ""),
                "cell": cell.name if run is None else run.cell.name,
            }
