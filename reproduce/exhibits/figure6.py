"""Figure 6: gradient quality over training, stage by stage.

The learning rate decides how far the weights move within a delay, and it changes over training: linear from 0, then
constant, then dropped. So the same stage has gradients of all qualities in one run, and Figure 5's means over the run
say nothing of when. Records made before single micro-batches were kept have one point an epoch and are drawn so.
"""

from collections.abc import Iterator, Mapping, Sequence

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D

from reproduce.exhibits import gradients
from reproduce.exhibits.figure5 import COLOURS, DASHES, KINDS_NOTE, claim_entry
from reproduce.exhibits.gradients import (
    CLOSENESS,
    DELAYED,
    MEASURE_TITLES,
    METHOD,
    PAIR_TITLES,
    Check,
    Stretch,
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
    none,
    not_run_at,
    run_at,
    text,
)
from reproduce.show.statements import Outcome

__all__ = ["cells", "section"]

POINTS = 24  # of a curve, at most
ROWS = 6  # of a study in the table, at most
PANELS = 10  # stages in a figure, at most


def section(results: Results) -> Section:
    """For every scale with records: a figure a study, and the paper's statement over training."""
    found = gradients.begun(results)
    blocks: list[Block] = [INTRODUCTION]
    findings: list[Finding] = []
    for scale, studies in found.items():
        shown = [study for study in studies if study.runs]
        spans = {study.key: gradients.stretches(study, ROWS) for study in shown}
        checks = _checks(spans)
        blocks += [*map(_figure, shown), _table(scale, shown, spans, checks)]
        findings.append(_finding(scale, shown, spans, checks))
    blocks += not_run_at([scale for scale in scales.SCALES if scale not in found and cells(scale)])
    coverage = f"published curves unknown; {run_at(found)}"
    nothing = Finding("Figure 6: no gradient has been measured yet.", Tone.MISSING)
    return Section("figure6", "Figure 6: gradient quality over training", blocks, findings or [nothing], coverage)


INTRODUCTION = (
    "The same gradients and measures as in Figure 5, over training: a panel for each stage and measure. Where records "
    "hold the micro-batches one by one, a point is the mean over an equal part of the training; else over an epoch. "
    "The statement that PETRA's gradient is the closer one is checked for each part of the training with means over "
    "all stages below the head."
)


# --- judging


def _checks(spans: Mapping[str, Sequence[Stretch]]) -> dict[tuple[str, int, str], Check]:
    """By study, number of the stretch, and measure."""
    gains = {
        (key, number, measure): over_seeds({s: gradients.mean_gain(p, measure) for s, p in stretch.profiles.items()})
        for key, own in spans.items()
        for number, stretch in enumerate(own)
        for measure in CLOSENESS
    }
    return gradients.judge({key: gain for key, gain in gains.items() if gain is not None})


def _finding(
    scale: str,
    shown: Sequence[Study],
    spans: Mapping[str, Sequence[Stretch]],
    checks: Mapping[tuple[str, int, str], Check],
) -> Finding:
    word = gradients.verdict(checks.values())
    return Finding(
        f"Figure 6: scale “{scale}”. The statement {statements.of('figure6').quoted}: ours, part by part of the "
        f"training: {word} ({gradients.tally(list(checks.values()))}). "
        + " ".join(_course(study, spans[study.key]) for study in shown),
        {Outcome.AGREE.value: Tone.GOOD, Outcome.CANNOT_TELL.value: Tone.MISSING}.get(word, Tone.PLAIN),
    )


def _course(study: Study, own: Sequence[Stretch]) -> str:
    """From where to where the cosine goes at the stem, in words."""
    first, last = (over_seeds(_at(stretch, METHOD, "cosine", 0)) for stretch in (own[0], own[-1]))
    if first is None or last is None:
        return f"{study.title}: not defined at the stem."
    course = f"{first.mean:.2f}" if len(own) == 1 else f"from {first.mean:.2f} to {last.mean:.2f}"
    return f"{study.title}: cosine of {PAIR_TITLES[METHOD]} at the stem {course} at epoch {own[-1].end:g}."


def _at(stretch: Stretch, pair: str, measure: str, stage: int) -> dict[int, float | None]:
    return {seed: profile[f"{pair}/{measure}"][stage] for seed, profile in stretch.profiles.items()}


# --- the table


def _table(
    scale: str,
    shown: Sequence[Study],
    spans: Mapping[str, Sequence[Stretch]],
    checks: Mapping[tuple[str, int, str], Check],
) -> Table:
    columns = [Column("study", numeric=False), Column("epochs"), Column("seeds")]
    for measure, title in MEASURE_TITLES.items():
        columns += [Column(name, group=title) for name in ("PETRA/e2e", "delayed/e2e")]
        if measure in CLOSENESS:
            columns += [Column("PETRA closer by", group=title), Column("the statement", numeric=False, group=title)]
    body: list[list[Entry]] = []
    for study in shown:
        for number, stretch in enumerate(spans[study.key]):
            line = [
                text(f"{study.title}: {study.extent}"),
                text(f"{stretch.begin:.3g} to {stretch.end:.3g}", sort=stretch.begin),
                text(str(len(stretch.profiles)), sort=len(stretch.profiles)),
            ]
            for measure in MEASURE_TITLES:
                line += [_mean_entry(stretch, pair, measure) for pair in (METHOD, DELAYED)]
                check = checks.get((study.key, number, measure))
                if check is not None:
                    line += [estimate(check.gain, 4, sign=True), claim_entry(check)]
                elif measure in CLOSENESS:
                    line += [none("not defined"), none("not defined")]
            body.append(line)
    return Table(
        key=f"figure6-{scale}",
        caption=(
            f"Gradient quality over training (scale “{scale}”), means over the stages below the head: mean over the "
            "seeds ± half the 95 % interval."
        ),
        columns=columns,
        rows=body,
        notes=(
            "e2e: the end-to-end gradient. PETRA closer by: the paired difference as in Figure 5, positive where "
            "PETRA's gradient is closer to the end-to-end one than the delayed gradient. "
            f"{CHANCE}: does not survive Holm's correction for all {len(checks)} comparisons of the table. "
            "The download has every stage and seed.",
        ),
        data=list(_data(shown)),
        grouped=True,
    )


def _mean_entry(stretch: Stretch, pair: str, measure: str) -> Entry:
    means: dict[int, float | None] = {}
    for seed, profile in stretch.profiles.items():
        defined = [value for value in profile[f"{pair}/{measure}"][:-1] if value is not None]
        means[seed] = sum(defined) / len(defined) if defined else None
    found = over_seeds(means)
    return none("not defined") if found is None else estimate(found, 3)


def _data(shown: Sequence[Study]) -> Iterator[dict[str, object]]:
    """One line a run, stretch and stage, as drawn."""
    for study in shown:
        for stretch in gradients.stretches(study, POINTS):
            for seed, profile in stretch.profiles.items():
                for stage, kind in enumerate(gradients.kinds(study.cell)):
                    yield {
                        "scale": study.cell.scale,
                        "network": study.network.key,
                        "k": study.cell.accumulation,
                        "seed": seed,
                        "epoch_begin": round(stretch.begin, 4),
                        "epoch_end": round(stretch.end, 4),
                        "stage": stage,
                        "kind": kind.value,
                        **{
                            key: "" if (value := of_stages[stage]) is None else float(f"{value:.6g}")
                            for key, of_stages in profile.items()
                        },
                    }


# --- the drawing


def _figure(study: Study) -> Figure:
    own = gradients.stretches(study, POINTS)
    kinds = gradients.kinds(study.cell)
    stages = _chosen(len(kinds))
    title = f"Gradient quality over training: {study.title}, scale “{study.cell.scale}”"
    key = f"figure6-{study.key}"
    description = (
        f"One row of panels for each measure, one panel for each of the stages {', '.join(map(str, stages))}, epochs "
        f"to the right. {_course(study, own)}"
    )
    with plots.style():
        drawing = Drawing(figsize=(10.4, 5.2), layout="constrained")
        panels = drawing.subplots(len(MEASURE_TITLES), len(stages), sharex=True, sharey="row", squeeze=False)
        for row, (measure, name) in zip(panels, MEASURE_TITLES.items(), strict=True):
            for panel, stage in zip(row, stages, strict=True):
                _draw(panel, own, measure, stage)
                panel.set_facecolor("#f3f3f1" if kinds[stage] is gradients.Kind.KEPT else "white")
                panel.tick_params(left=panel is row[0], bottom=measure == list(MEASURE_TITLES)[-1])
            row[0].set_ylabel(name)
        for panel, stage in zip(panels[0], stages, strict=True):
            panel.set_title(f"{stage}, {kinds[stage].letter}")
        panels[0][0].set_xlim(0, study.cell.epochs)
        panels[0][0].xaxis.get_major_locator().set_params(integer=True, nbins=3)
        lines = [
            Line2D([], [], color=COLOURS[pair], linestyle=DASHES[pair], label=PAIR_TITLES[pair]) for pair in COLOURS
        ]
        panels[-1][len(stages) // 2].set_xlabel("epoch")
        drawing.legend(handles=lines, loc="outside lower center", ncols=len(lines))
        sns.despine(drawing)
        svg = plots.to_svg(drawing, key=key, title=title, description=description)
    caption = (
        f"{title} ({study.extent}). Panels: stage and its kind. Line: mean over the seeds; band: their range; "
        f"points: means over {_epochs(own[0].end - own[0].begin)}. {KINDS_NOTE}"
    )
    return Figure(key, title, description, svg, caption)


def _epochs(length: float) -> str:
    """In words: an epoch, 0.33 epochs, 12 epochs."""
    return "an epoch" if length == 1 else f"{length:.2g} epochs"


def _chosen(count: int) -> list[int]:
    """The stages to draw: all, or equally many apart with both ends."""
    if count <= PANELS:
        return list(range(count))
    return sorted({round(place * (count - 1) / (PANELS - 1)) for place in range(PANELS)})


def _draw(panel: Axes, own: Sequence[Stretch], measure: str, stage: int) -> None:
    marker = "o" if len(own) <= 6 else ""
    for pair, colour in COLOURS.items():
        points = [
            (stretch.middle, defined)
            for stretch in own
            if (defined := [v for v in _at(stretch, pair, measure, stage).values() if v is not None])
        ]
        middles = [middle for middle, _ in points]
        means = [sum(values) / len(values) for _, values in points]
        low, high = [min(values) for _, values in points], [max(values) for _, values in points]
        panel.plot(middles, means, color=colour, linestyle=DASHES[pair], marker=marker, markersize=2.5, linewidth=1.2)
        if low != high:
            panel.fill_between(middles, low, high, color=colour, alpha=0.15, linewidth=0)
