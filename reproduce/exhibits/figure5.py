"""Figure 5: gradient quality per stage, PETRA's gradient beside the delayed one and the end-to-end one.

Three curves of cosines look alike, and what is asked of them, whether one is above another, is a difference that is
smaller than what separates the seeds. So it is drawn too, run by run, and judged stage by stage.
"""

from collections.abc import Iterator, Mapping, Sequence

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D

from petra_core import methods
from reproduce.exhibits import gradients
from reproduce.exhibits.gradients import (
    BETWEEN,
    CLOSENESS,
    DELAYED,
    MEASURE_TITLES,
    METHOD,
    PAIR_TITLES,
    Check,
    Study,
    over_seeds,
)
from reproduce.exhibits.sheets import CHANCE
from reproduce.grids import scales
from reproduce.grids.plans.gradients import cells
from reproduce.records.results import Results
from reproduce.show import plots, statements
from reproduce.show.content import (
    Block,
    Column,
    Entry,
    Figure,
    Finding,
    Section,
    Table,
    Tone,
    estimate,
    missing,
    none,
    not_run_at,
    number,
    run_at,
    text,
)
from reproduce.show.statements import Outcome, outcome_entry
from reproduce.show.statistics import Estimate

__all__ = ["cells", "claim_entry", "section"]

COLOURS = {
    METHOD: plots.COLOURS[methods.PETRA],
    DELAYED: plots.COLOURS[methods.DELAYED_GRADIENTS],
    BETWEEN: plots.COLOURS[methods.BACKPROPAGATION],
}
DASHES: dict[str, tuple[float, Sequence[float]]] = {METHOD: (0, ()), DELAYED: (0, (4, 1.5)), BETWEEN: (0, (1, 1))}
SHORT = {METHOD: "PETRA/e2e", DELAYED: "delayed/e2e", BETWEEN: "PETRA/delayed"}
MARKERS = {"cosine": "o", "relative_error": "^"}

Gains = dict[tuple[str, str, int], Estimate]  # by study, measure and stage


def section(results: Results) -> Section:
    """For every scale with records: the curves, every number, and the paper's statement against it."""
    found = gradients.begun(results)
    blocks: list[Block] = [_introduction(), STRUCTURE]
    findings: list[Finding] = []
    for scale, studies in found.items():
        shown = [study for study in studies if study.runs]
        checks = _checks(shown)
        overall = _overall(shown)
        blocks += [_figure(scale, shown), _values(scale, studies), _check_table(scale, shown, overall, checks)]
        findings.append(_finding(scale, shown, overall, checks))
    blocks += not_run_at([scale for scale in scales.SCALES if scale not in found and cells(scale)])
    coverage = f"published curves unknown; {run_at(found)}"
    nothing = Finding("Figure 5: no gradient has been measured yet.", Tone.MISSING)
    return Section("figure5", "Figure 5: gradient quality per stage", blocks, findings or [nothing], coverage)


def _introduction() -> str:
    return (
        "Three gradients of the same micro-batch at a stage: PETRA's own; the delayed one, exact for the whole network "
        "with each stage's weights as they were when the micro-batch went forward; and the end-to-end one, exact with "
        "the weights of the moment of that stage's backward. For each pair: the cosine, the ratio of the norms and the "
        "relative error (norm of the difference over that of the second), averaged over the stage's weight tensors, "
        "then over all micro-batches of the run that were followed. Stated of the paper: "
        f"{statements.of('figure5').quoted}. Its curves are not known to us."
    )


STRUCTURE = (
    "What the structure means. A RevNet-18 has stages that keep their input (K): the stem, the three that halve the "
    "resolution, the head. Each hands its exact input down, so an error of reconstruction lives only between two of "
    "them; and as one of the two streams is handed down as a copy, the reversible stage just below (E) evaluates F at "
    "exactly the right place. That leaves stage 1 as the only one that evaluates F on a reconstructed input (R): in "
    "RevNet-18, PETRA's gradient differs from that of DSP, which keeps all inputs, by little else. The chain of 8 "
    "reversible blocks is shown beside it since there every inner stage but the last is of this kind."
)


# --- judging


def _checks(shown: Sequence[Study]) -> dict[tuple[str, str, int], Check]:
    """By study, measure and stage, all of one scale as one family; the head is none, its gradients being the same."""
    gains: Gains = {}
    for study in shown:
        profiles = study.profiles()
        for measure in CLOSENESS:
            by_seed = {seed: gradients.gain(profile, measure) for seed, profile in profiles.items()}
            for stage in range(len(gradients.kinds(study.cell)) - 1):
                found = over_seeds({seed: values[stage] for seed, values in by_seed.items()})
                if found is not None:
                    gains[study.key, measure, stage] = found
    return gradients.judge(gains)


def _overall(shown: Sequence[Study]) -> dict[tuple[str, str], Check]:
    """By study and measure, of the mean gain over the stages below the head; a family of its own."""
    gains = {
        (study.key, measure): over_seeds({s: gradients.mean_gain(p, measure) for s, p in study.profiles().items()})
        for study in shown
        for measure in CLOSENESS
    }
    return gradients.judge({key: found for key, found in gains.items() if found is not None})


def _finding(
    scale: str,
    shown: Sequence[Study],
    overall: Mapping[tuple[str, str], Check],
    checks: Mapping[tuple[str, str, int], Check],
) -> Finding:
    word = gradients.verdict(overall.values())
    return Finding(
        f"Figure 5: scale “{scale}”. The statement {statements.of('figure5').quoted}: ours, on average over the stages "
        f"below the head, {word}. " + " ".join(_counted(study, overall, checks) for study in shown),
        {Outcome.AGREE.value: Tone.GOOD, Outcome.CANNOT_TELL.value: Tone.MISSING}.get(word, Tone.PLAIN),
    )


def _counted(
    study: Study, overall: Mapping[tuple[str, str], Check], checks: Mapping[tuple[str, str, int], Check]
) -> str:
    words = []
    for measure in CLOSENESS:
        own = [check for (key, m, _), check in checks.items() if (key, m) == (study.key, measure)]
        closer = sum(check.gain.mean > 0 for check in own)
        mean = overall.get((study.key, measure))
        claim = "not defined" if mean is None else claim_entry(mean).text
        words.append(f"by {MEASURE_TITLES[measure]} {claim}, PETRA the closer one at {closer} of {len(own)} stages")
    return f"{study.title} ({study.extent}): {'; '.join(words)}."


def claim_entry(check: Check) -> Entry:
    """A claim, with a dagger where it does not survive Holm's correction."""
    shown = outcome_entry(check.claim)
    if check.claim is Outcome.CANNOT_TELL:
        return missing(shown.text, "one seed: no interval" if check.gain.low is None else "")
    return shown if check.stands else Entry(f"{shown.text} {CHANCE}", shown.text, shown.tone)


# --- tables


def _values(scale: str, studies: Sequence[Study]) -> Table:
    columns = [Column("study", numeric=False), Column("stage"), Column("kind", numeric=False)]
    for title in MEASURE_TITLES.values():
        columns += [Column(SHORT[pair], group=title, hint=PAIR_TITLES[pair]) for pair in PAIR_TITLES]
    body: list[list[Entry]] = []
    for study in studies:
        heading = text(f"{study.title}: {study.extent}")
        profiles = study.profiles()
        for stage, kind in enumerate(gradients.kinds(study.cell) if profiles else ()):
            line = [heading, number(stage, 0, tone=Tone.PLAIN), text(kind.letter, hint=kind.value)]
            for measure in MEASURE_TITLES:
                for pair in PAIR_TITLES:
                    own = {seed: profile[f"{pair}/{measure}"][stage] for seed, profile in profiles.items()}
                    found = over_seeds(own)
                    line.append(none("not defined") if found is None else estimate(found, 3))
            body.append(line)
    return Table(
        key=f"figure5-{scale}",
        caption=f"Gradient quality per stage (scale “{scale}”): mean over the seeds ± half the 95 % interval.",
        columns=columns,
        rows=body,
        notes=(f"e2e: the end-to-end gradient. {KINDS_NOTE}", *_notes(studies)),
        data=list(_data(studies)),
        grouped=True,
    )


KINDS_NOTE = "Kinds of stages: " + "; ".join(f"{kind.letter}, {kind.value}" for kind in gradients.Kind) + "."


def _notes(studies: Sequence[Study]) -> list[str]:
    return [f"{study.title}: {study.extent}." for study in studies if not study.runs]


def _data(studies: Sequence[Study]) -> Iterator[dict[str, object]]:
    """One line a run and stage."""
    for study in studies:
        for seed, profile in study.profiles().items():
            run = study.runs[seed]
            for stage, kind in enumerate(gradients.kinds(study.cell)):
                yield {
                    "scale": run.cell.scale,
                    "network": study.network.key,
                    "k": study.cell.accumulation,
                    "seed": seed,
                    "state": str(run.state),
                    "stage": stage,
                    "kind": kind.value,
                    "micro_batches": sum(line["probes"] for line in run.metrics),
                    **{key: values[stage] for key, values in profile.items()},
                    "cell": run.cell.name,
                }


def _check_table(
    scale: str,
    shown: Sequence[Study],
    overall: Mapping[tuple[str, str], Check],
    checks: Mapping[tuple[str, str, int], Check],
) -> Table:
    columns = [Column("study", numeric=False), Column("stage"), Column("kind", numeric=False), Column("seeds")]
    for measure in CLOSENESS:
        title = f"closer by {MEASURE_TITLES[measure]}"
        columns += [Column("difference", group=title), Column("the statement", numeric=False, group=title)]
    body: list[list[Entry]] = []
    for study in shown:
        heading = text(f"{study.title}: {study.extent}")
        seeds = number(len(study.runs), 0, tone=Tone.PLAIN)
        for stage, kind in enumerate(gradients.kinds(study.cell)[:-1]):
            found = [checks.get((study.key, measure, stage)) for measure in CLOSENESS]
            head = [heading, number(stage, 0, tone=Tone.PLAIN), text(kind.letter, hint=kind.value), seeds]
            body.append([*head, *_check_entries(found)])
        means = [overall.get((study.key, measure)) for measure in CLOSENESS]
        body.append([heading, text("mean", sort=1e3), none("of all stages above"), seeds, *_check_entries(means)])
    return Table(
        key=f"figure5-statement-{scale}",
        caption=(
            "By how much PETRA's gradient is closer to the end-to-end gradient than the delayed one "
            f"(scale “{scale}”): paired differences, mean over the seeds ± half the 95 % interval."
        ),
        columns=columns,
        rows=body,
        notes=(
            "Difference by cosine: that of PETRA less that of the delayed gradient; by relative error: that of the "
            "delayed gradient less that of PETRA. Positive: PETRA is closer. Agree if the interval lies above 0, "
            f"disagree if below, else cannot tell. {CHANCE}: does not survive Holm's "
            f"correction for all {len(checks)} comparisons of stages, or all {len(overall)} of means.",
            "The head is not in it: its forward and backward are of one tick, and PETRA's gradient is the delayed one.",
        ),
        grouped=True,
    )


def _check_entries(found: Sequence[Check | None]) -> Iterator[Entry]:
    """Difference and claim of each measure."""
    for check in found:
        if check is None:
            yield from (none("not defined"), missing(""))
        else:
            yield from (estimate(check.gain, 4, sign=True), claim_entry(check))


# --- the drawing


def _figure(scale: str, shown: Sequence[Study]) -> Figure:
    title = f"Gradient quality per stage, scale “{scale}”"
    key = f"figure5-{scale}"
    description = (
        "One row of panels for each network and k; the stages from the stem on the left to the head on the right. "
        + " ".join(map(_described, shown))
    )
    with plots.style():
        drawing = Drawing(figsize=(10.4, 0.8 + 2.3 * len(shown)), layout="constrained")
        rows = drawing.subplots(len(shown), len(MEASURE_TITLES) + 1, squeeze=False)
        for row, study in zip(rows, shown, strict=True):
            _draw(row, study)
        for panel, name in zip(rows[0], [*MEASURE_TITLES.values(), "PETRA closer by …"], strict=True):
            panel.set_title(name)
        lines = [
            Line2D([], [], color=COLOURS[pair], linestyle=DASHES[pair], label=PAIR_TITLES[pair]) for pair in COLOURS
        ]
        lines += [
            Line2D([], [], color=plots.INK, marker=marker, linestyle="", markersize=4, label=MEASURE_TITLES[measure])
            for measure, marker in MARKERS.items()
        ]
        drawing.legend(handles=lines, loc="outside lower center", ncols=len(lines))
        sns.despine(drawing)
        svg = plots.to_svg(drawing, key=key, title=title, description=description)
    caption = (
        f"{title}. Line: mean over the seeds; band: their range. Right: how much closer PETRA's gradient is to the "
        "end-to-end one than the delayed gradient, a mark for each seed. Letters: "
        + "; ".join(f"{kind.letter}, {kind.value}" for kind in gradients.Kind)
        + "."
    )
    return Figure(key, title, description, svg, caption)


def _draw(row: Sequence[Axes], study: Study) -> None:
    profiles = study.profiles()
    kinds = gradients.kinds(study.cell)
    for panel, measure in zip(row, MEASURE_TITLES, strict=False):
        for pair, colour in COLOURS.items():
            seeds = [profile[f"{pair}/{measure}"] for profile in profiles.values()]
            defined = [
                [v for v in of_stage if v is not None] or [float("nan")] for of_stage in zip(*seeds, strict=True)
            ]
            panel.plot([sum(v) / len(v) for v in defined], color=colour, linestyle=DASHES[pair])
            low, high = [min(v) for v in defined], [max(v) for v in defined]
            panel.fill_between(range(len(low)), low, high, color=colour, alpha=0.15, linewidth=0)
    for measure, marker in MARKERS.items():
        shift = 0.12 if measure == "cosine" else -0.12
        for profile in profiles.values():
            gains = gradients.gain(profile, measure)[:-1]
            points = [(stage + shift, gain) for stage, gain in enumerate(gains) if gain is not None]
            row[-1].plot(
                *zip(*points, strict=True), linestyle="", marker=marker, markersize=3.5, color=plots.INK, alpha=0.7
            )
    row[-1].axhline(0, color=plots.QUIET, linewidth=0.8)
    row[0].set_ylabel(study.title.replace(", ", "\n", 1))
    for panel in row:
        for stage, kind in enumerate(kinds):
            if kind is gradients.Kind.KEPT:
                panel.axvspan(stage - 0.5, stage + 0.5, color=plots.RULE, alpha=0.45, linewidth=0, zorder=0)
        ticks = range(0, len(kinds), 1 + len(kinds) // 20)
        panel.set(xlim=(-0.5, len(kinds) - 0.5), xticks=ticks)
        panel.set_xticklabels([f"{stage}\n{kinds[stage].letter}" for stage in ticks], fontsize=7.5)


def _described(study: Study) -> str:
    """The ends of the curves in words."""
    words = []
    for pair in (METHOD, DELAYED):
        ends = []
        for stage in (0, len(gradients.kinds(study.cell)) - 2):
            found = over_seeds({s: p[f"{pair}/cosine"][stage] for s, p in study.profiles().items()})
            ends.append("not defined" if found is None else f"{found.mean:.2f}")
        words.append(f"the cosine of {PAIR_TITLES[pair]} is {ends[0]} at the stem and {ends[1]} below the head")
    return f"{study.title}: {', '.join(words)}."
