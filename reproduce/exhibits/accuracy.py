"""Test accuracies of all methods in one setting, scale by scale.

The paper compares PETRA with backpropagation only; its reviewers asked for the other asynchronous methods. Here are all
of them, on the same network with the same k and seeds, and PETRA less each rival. Runs made by hand are shown likewise,
recipe by recipe. A run that falls short of what its scale expects is broken, and that is said before anything else.
"""

from collections.abc import Iterator

from petra_core import methods
from petra_core.methods import Method
from reproduce.exhibits._exhibit import Exhibit, Sentence, Shown
from reproduce.grids import scales
from reproduce.grids.plans.accuracy import COMPARED
from reproduce.records.frames import Frame, Frames, Sheet
from reproduce.show import facets
from reproduce.show.compare import family_note, judge, means, reported
from reproduce.show.content import Entry, Finding, OfK, Tone, missing, short_title
from reproduce.show.facets import facet
from reproduce.show.statistics import MARGIN_POINTS, Judgement
from reproduce.show.tables import Field, entry, judged, mean_entry, method, table, words
from reproduce.words import count, some

PETRA, EXACT = methods.PETRA.name, methods.BACKPROPAGATION.name
PLACE = ["network", "method", "k"]
#: Methods that work on delayed gradients and are not PETRA.
RIVALS = tuple(m for m in COMPARED if m.pipelined and m is not methods.PETRA)
INTRODUCTION = (
    "Accuracy on the test set after the last epoch, in percent: mean over the seeds ± half the 95 % interval "
    "(Student's t), and in brackets the number of seeds. Differences are to backpropagation on the same network with "
    "the same k, over the seeds that both have; a seed fixes initialisation and order of the data. No stage of a "
    "ResNet can be inverted: there PETRA is DSP, and approximate inputs are delayed gradients."
)


def whole(frames: Frames) -> Iterator[Shown]:
    """What was trained by hand, recipe by recipe."""
    by_hand = frames.runs[(frames.runs["kind"] == "training") & ~frames.runs["scale"].isin(list(scales.SCALES))]
    for (scale, recipe), runs in by_hand.groupby(["scale", "recipe"]):
        for sheet in frames.sheets(str(scale), [frames.by_name[name].cell for name in runs["cell"]]):
            yield from each(sheet, f"-{recipe}")


def each(sheet: Sheet, recipe: str = "") -> Iterator[Shown]:
    """Accuracies as a picture and by method and k, and PETRA less its rivals."""
    accuracy = means(sheet.runs, "test_accuracy", PLACE)
    networks, names, ks = (list(dict.fromkeys(axis)) for axis in zip(*accuracy, strict=True))
    compared = [m for m in methods.KNOWN if m.name in names]
    less = judge({(n, m, k): accuracy[n, m, k] - accuracy[n, EXACT, k] for n, m, k in accuracy if m != EXACT})
    key, setting = f"{sheet.key}-{sheet.dataset}{recipe}", sheet.described(width=False)
    short, findings = _expected(sheet)
    alarming = set(short[PLACE].itertuples(index=False, name=None))
    yield from findings
    said = {m: reported(j for (_, name, _), j in less.items() if name == m.name) for m in (*RIVALS, methods.PETRA)}
    if differences := "; ".join(f"{m.title}, {found}" for m, found in said.items() if found):
        yield Finding(
            f"Accuracy, scale “{sheet.scale}”: against backpropagation on the same network, k and seeds, margin "
            f"{MARGIN_POINTS} points. {differences}."
        )
    if not sheet.done.empty:
        first, k = networks[0], min(k for network, _, k in accuracy if network == networks[0])
        reached = {m: accuracy[first, m.name, k].estimate for m in compared}
        of_each = ", ".join(f"{short_title(m)} {found.mean:.1f} %" for m, found in reached.items() if found)
        yield Sentence(f"{first.partition(',')[0]}, k = {k}: {of_each}.")
        titles = {m.name: short_title(m) for m in compared}
        yield facet(
            sheet.done.assign(title=sheet.done["method"].map(titles)),
            [facets.rows(list(titles.values()))],
            key=f"dots-{key}",
            title="Test accuracy of every run",
            caption=f"Test accuracy of every run ({setting}). Dot: a seed; bar: mean.",
            x="test_accuracy",
            y="title",
            row="network",
            col="k",
            titles=lambda network, k: f"{network.partition(',')[0]}, k = {k}",
            xlabel="test accuracy, %",
            height=1.6,
            legend="",
        )

    def of_k(k: int) -> list[Field]:
        def reached(row: tuple[str, Method]) -> Entry:
            place = row[0], row[1].name, k
            if place not in accuracy:
                return missing("no cell")
            return mean_entry(accuracy[place], 1, tone=Tone.ALERT if place in alarming else Tone.OURS)

        def difference(row: tuple[str, Method]) -> Judgement | str | None:
            place = row[0], row[1].name, k
            return less.get(place) if accuracy[place].values else ""

        shown = entry("accuracy, %", reached, group=OfK(k))
        return [shown, judged("difference", difference, digits=1, group=OfK(k))]

    def less_rival(k: int) -> Field:
        return judged("PETRA less it", lambda row: beside[*row, k], digits=1, group=OfK(k))

    planned = {(network, name) for network, name, _ in accuracy}
    yield table(
        key=f"accuracy-{key}",
        caption=f"Test accuracy by network, method and k ({setting}).",
        rows=[(network, m) for network in networks for m in compared if (network, m.name) in planned],
        fields=[
            words("network", lambda row: row[0]),
            method("method", lambda row: row[1]),
            *(field for k in sorted(ks) for field in of_k(k)),
        ],
        notes=(
            "Difference: to backpropagation on the same network with the same k, points, paired over seeds.",
            family_note(less.values()),
        ),
        grouped=True,
    )
    gaps = {(n, m, k): accuracy[n, PETRA, k] - accuracy[n, m.name, k] for n in networks for m in RIVALS for k in ks}
    beside = judge(gaps)
    if paired := [n for n in networks if any(gap.values for (network, _, _), gap in gaps.items() if network == n)]:
        yield table(
            key=f"rivals-{key}",
            caption=f"PETRA less each asynchronous rival, points of accuracy ({setting}).",
            rows=[(network, rival) for network in paired for rival in RIVALS],
            fields=[
                words("network", lambda row: row[0]),
                method("rival", lambda row: row[1]),
                *map(less_rival, sorted(ks)),
            ],
            notes=("Paired over seeds, same network and k.", family_note(beside.values())),
            grouped=True,
        )


def _expected(sheet: Sheet) -> tuple[Frame, list[Finding]]:
    """The runs that fall short of what the scale expects, and what that says."""
    scale, by_name = scales.SCALES.get(sheet.scale), sheet.frames.by_name
    if not scale or not scale.target_accumulations:
        return sheet.runs[:0], []

    def falls_short(name: str) -> bool:
        run = by_name.get(name)
        return run is not None and scale.falls_short(run.cell, run.state, run.result.get("test_accuracy"))

    short = sheet.runs[sheet.runs["cell"].map(falls_short)]
    judged = sheet.done[sheet.done["k"].isin(scale.target_accumulations)]
    at = f"k = {' and '.join(map(str, scale.target_accumulations))}"
    target = f"{scale.target_accuracy:g} % test accuracy"
    if not short.empty:
        reached = short["test_accuracy"].map("{:.1f} %".format).where(short["status"] == "done", short["state"])
        names = some([f"{cell}: {what}" for cell, what in zip(short["cell"], reached, strict=True)])
        return short, [Finding(f"{count(len(short), 'run')} at {at} not above {target}. {names}.", Tone.ALERT)]
    learns = (
        f"Every method learns: all {len(judged)} finished runs at {at} are above {target}, the lowest at "
        f"{judged['test_accuracy'].min():.1f} %. At the scale “{scale.name}” this says that the methods train, and "
        "nothing about the paper's accuracies."
    )
    return short, [] if judged.empty else [Finding(learns, Tone.GOOD)]


EXHIBIT = Exhibit("accuracy", "Accuracy of the methods", INTRODUCTION, each, whole)
