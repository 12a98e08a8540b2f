"""Beyond the paper: reconstruction error and accuracy against depth and delay, on a chain of constant width.

In a RevNet a reconstruction error lives only between two stages that keep their input, at most 5 blocks. On the chain
nothing but the head stops it: with n blocks there are J = n + 2 stages, a run of n inversions, and a delay of 2(J - 1)
ticks at the bottom. DSP has the same delays and keeps its inputs, backpropagation has neither: what separates PETRA
from DSP is reconstruction, what separates DSP from backpropagation is delay.
"""

from collections.abc import Iterator, Sequence

from petra_core.methods import Method
from reproduce.exhibits import depth_plots
from reproduce.exhibits.depth_runs import RULE, STEPS, Depths, Place, read_depths
from reproduce.exhibits.gradients import over_seeds
from reproduce.exhibits.sheets import counted, described, family_note, judged_entries
from reproduce.grids import scales
from reproduce.grids.plans.depth import COMPARED, cells
from reproduce.measures.names import CAUSES
from reproduce.records.results import Results
from reproduce.show.content import (
    Block,
    Column,
    Entry,
    Finding,
    Section,
    Table,
    Tone,
    estimate,
    missing,
    not_run_at,
    number,
    relative_error,
    run_at,
    short_title,
    text,
    two_digits,
)
from reproduce.show.statistics import MARGIN_POINTS, Estimate, Judgement, Verdict
from reproduce.words import conjunction

BOTTOM = 1  # the lowest stage that rebuilds its input


def section(results: Results) -> Section:
    """For every scale with records: accuracy and errors against depth, what separates the methods, and what breaks."""
    studies = [found for scale in scales.SCALES if (found := read_depths(results, scale, cells(scale))) is not None]
    shown = [found for found in studies if found.begun]
    blocks: list[Block] = [INTRODUCTION, RULE]
    findings: list[Finding] = []
    for found in shown:
        words = [_breaking(found, k) for k in found.accumulations]
        blocks += [
            *depth_plots.accuracy(found, " ".join(words)),
            _accuracy_table(found),
            *depth_plots.errors(found, _growth(found)),
            _error_table(found),
        ]
        findings += _findings(found, words)
    blocks += not_run_at([found.scale for found in studies if not found.begun])
    return Section(
        "depth",
        "Depth and delay: how far can inputs be rebuilt?",
        blocks,
        findings or [Finding("Depth and delay: no chain has been trained yet.", Tone.MISSING)],
        run_at(found.scale for found in shown),
    )


INTRODUCTION = (
    "Chains of equal reversible blocks: J stages, of which all but stem and head rebuild their inputs one from the "
    "other, with a delay of 2(J-1) ticks at the bottom. DSP (delayed gradients with checkpointing) has PETRA's delays "
    "and keeps its inputs, backpropagation has neither delays nor reconstruction. So PETRA less DSP is what "
    "reconstruction costs, and DSP less backpropagation is what delay costs."
)


# --- findings


def _findings(found: Depths, breaking: Sequence[str]) -> Iterator[Finding]:
    scale = f"Depth and delay: scale “{found.scale}”"
    yield Finding(f"{scale}. {' '.join(breaking)}")
    judged = found.judgements()
    words = []
    for step, (method, reference) in STEPS.items():
        own = {place: judgement for (place, s), judgement in judged.items() if s == step}
        worse = [p for p, j in own.items() if j.verdict is Verdict.DIFFER and j.difference and j.difference.mean < 0]
        at = f"; worse at {', '.join(f'J = {p.stages} with k = {p.k}' for p in worse)}" if worse else ""
        made = counted(own) or "nothing to compare yet"
        words.append(f"{step.capitalize()} ({short_title(method)} less {short_title(reference)}): {made}{at}.")
    decided = any(judgement.verdict is not Verdict.CANNOT_TELL for judgement in judged.values())
    yield Finding(
        f"{scale}, what it costs in accuracy (margin {MARGIN_POINTS} points). {' '.join(words)}",
        Tone.PLAIN if decided else Tone.MISSING,
    )
    if growth := _growth(found):
        yield Finding(f"{scale}, relative error of the input that the lowest stage rebuilds. {growth}")


def _breaking(found: Depths, k: int) -> str:
    """At which J which method breaks, among those that have ended."""
    words, tried = [], []
    for method in COMPARED:
        places = [p for p in found.places if p.k == k and found.ends(p, method)[0]]
        broken = ", ".join(str(p.stages) for p in places if found.breaks(p, method))
        unclear = ", ".join(str(p.stages) for p in places if found.undecided(p, method))
        where = f"breaks at J = {broken}" if broken else "is not seen to break" if places else "is not run"
        words.append(f"{short_title(method)} {where}" + (f", cannot tell at J = {unclear}" if unclear else ""))
        tried.append(_with_seeds(found, places, method) or "none")
    if set(tried) == {"none"}:
        return f"k = {k}: not run."
    if len(set(tried)) == 1:
        return f"k = {k}, of J = {tried[0]}: {'; '.join(words)}."
    return f"k = {k}: {'; '.join(f'{what} (of {js})' for what, js in zip(words, tried, strict=True))}."


def _with_seeds(found: Depths, places: Sequence[Place], method: Method) -> str:
    """Every J, and the number of seeds behind those where some are missing."""
    by_seeds: dict[tuple[int, int], list[str]] = {}
    for place in places:
        by_seeds.setdefault(found.ends(place, method), []).append(str(place.stages))
    words = []
    for (ended, planned), stages in by_seeds.items():
        words.append(", ".join(stages) + (f" with {ended} of {planned} seeds" if ended < planned else ""))
    return "; ".join(words)


def _growth(found: Depths) -> str:
    """The error at the bottom, from the least to the greatest depth."""
    words = []
    for k in found.accumulations:
        errors = [(p.stages, _bottom(found, p, "training/input")) for p in found.places if p.k == k]
        known = [(stages, entry) for stages, entry in errors if entry is not None]
        if known:
            words.append(f"k = {k}: " + ", ".join(f"{_relative(e.mean)} at J = {stages}" for stages, e in known) + ".")
    return " ".join(words)


def _relative(error: float) -> str:
    """In percent, or as a multiple where percents become hard to read."""
    return f"{two_digits(100 * error)} %" if error < 10 else f"{error:,.0f} times the input"


def _bottom(found: Depths, place: Place, key: str) -> Estimate | None:
    return over_seeds({seed: p[key][BOTTOM] for seed, p in found.errors(place).items() if key in p})


# --- tables


def _accuracy_table(found: Depths) -> Table:
    judged = found.judgements()
    columns = [Column("k", numeric=False), Column("J"), Column("delay at the bottom, updates")]
    columns += [Column(short_title(method), group="accuracy, %") for method in COMPARED]
    for step, pair in STEPS.items():
        group = f"{step}: {' less '.join(short_title(method) for method in pair)}"
        columns += [Column("difference", group=group), Column("verdict", numeric=False, group=group)]
    columns.append(Column("breaks", numeric=False))
    body: list[list[Entry]] = []
    for place in found.places:
        line = [
            text(f"k = {place.k}", sort=place.k),
            number(place.stages, 0, tone=Tone.PLAIN),
            number(2 * (place.stages - 1) / place.k, 1 if place.k > 1 else 0, tone=Tone.PLAIN),
            *(_accuracy_entry(found, place, method) for method in COMPARED),
        ]
        for step in STEPS:
            line += _step_entries(found, place, step, judged[place, step])
        line.append(_breaks_entry(found, place))
        body.append(line)
    return Table(
        key=f"depth-{found.scale}",
        caption=(
            f"Accuracy against depth ({described(found.example)}): mean over the seeds ± half the 95 % interval, and "
            "the number of seeds."
        ),
        columns=columns,
        rows=body,
        notes=(
            "Differences in points of accuracy, paired over the seeds that both have finished.",
            family_note(judged),
        ),
        data=list(_accuracy_data(found)),
        grouped=True,
    )


def _step_entries(found: Depths, place: Place, step: str, judgement: Judgement) -> list[Entry]:
    difference = found.difference(place, *STEPS[step])
    if difference is not None and found.both_broken(place, step):
        return [estimate(difference, 2, sign=True), missing("both broken")]
    return judged_entries(judgement)


def _accuracy_entry(found: Depths, place: Place, method: Method) -> Entry:
    accuracy, rest = found.accuracy(place, method), found.extent(place, method)
    if accuracy is None and found.breaks(place, method):
        return text("diverged", tone=Tone.ALERT, hint=rest)
    if accuracy is None:
        return missing("not finished" if found.runs.get((place, method)) else "not run", rest)
    shown = estimate(accuracy, 1, tone=Tone.ALERT if found.breaks(place, method) else Tone.OURS)
    return Entry(f"{shown.text} ({accuracy.n})", shown.value, shown.tone, rest or shown.hint)


def _breaks_entry(found: Depths, place: Place) -> Entry:
    reasons = [(method, why) for method in COMPARED if (why := found.breaks(place, method))]
    if reasons:
        hint = "; ".join(f"{short_title(method)} ({why})" for method, why in reasons)
        return text(", ".join(short_title(method) for method, _ in reasons), tone=Tone.ALERT, hint=hint)
    unclear = [method for method in COMPARED if found.undecided(place, method)]
    if unclear:
        hint = "far below backpropagation, but the interval contains 0, or there is none"
        return missing(f"cannot tell of {conjunction([short_title(method) for method in unclear])}", hint)
    return text("none") if all(found.ended(place, method) for method in COMPARED) else missing("not all finished")


def _accuracy_data(found: Depths) -> Iterator[dict[str, object]]:
    """One line a run."""
    for place in found.places:
        for method in COMPARED:
            for seed, run in found.runs[place, method].items():
                yield {
                    "scale": found.scale,
                    "k": place.k,
                    "J": place.stages,
                    "method": method.name,
                    "seed": seed,
                    "state": str(run.state),
                    "train_loss": run.result.get("train_loss", ""),
                    "test_accuracy": run.result.get("test_accuracy", ""),
                    "cell": run.cell.name,
                }


def _error_table(found: Depths) -> Table:
    titles = {
        "rounding": "rounding, float32",
        "rounding_bfloat16": "rounding, bfloat16 streams",
        "training": "training",
    }
    columns = [Column("k", numeric=False), Column("J"), Column("seeds")]
    columns += [Column(titles[cause], group="whole input") for cause in CAUSES]
    columns.append(Column("training", group="stream at which F is evaluated"))
    body: list[list[Entry]] = []
    for place in found.places:
        keys = [*(f"{cause}/input" for cause in CAUSES), "training/x"]
        line = [text(f"k = {place.k}", sort=place.k), number(place.stages, 0, tone=Tone.PLAIN)]
        line.append(number(len(found.errors(place)), 0, tone=Tone.PLAIN))
        for key in keys:
            error = _bottom(found, place, key)
            line.append(relative_error(error) if error is not None else missing("not run"))
        body.append(line)
    return Table(
        key=f"depth-{found.scale}-errors",
        caption=(
            "Relative error of the input that the lowest reversible stage rebuilds, under PETRA "
            f"({described(found.example)}): mean over the micro-batches that were followed, then over the seeds ± half "
            "the 95 % interval."
        ),
        columns=columns,
        rows=body,
        notes=(
            "Norm of rebuilt less true over that of the true, of a whole micro-batch. Rounding: the forward inverted "
            "with its own weights, in float32 and with streams of bfloat16, which the engine does not have. Training: "
            "the engine's own inversion, 2(J-2) ticks after the forward. The download has every stage, epoch and seed.",
        ),
        data=list(_error_data(found)),
        grouped=True,
    )


def _error_data(found: Depths) -> Iterator[dict[str, object]]:
    """One line a run, epoch and stage."""
    for place in found.places:
        for seed, run in found.probed(place).items():
            for metrics in run.metrics:
                for stage in range(1, place.stages - 1):
                    values = {key: of_stages[stage] for key, of_stages in metrics["measured"].items()}
                    yield {
                        "scale": found.scale,
                        "k": place.k,
                        "J": place.stages,
                        "seed": seed,
                        "epoch": metrics["epoch"],
                        "micro_batches": metrics["probes"],
                        "stage": stage,
                        **{
                            key: "" if (value := values.get(key)) is None else float(f"{value:.4g}")
                            for key in (*(f"{cause}/input" for cause in CAUSES), "training/x", "training/x_tilde")
                        },
                    }
