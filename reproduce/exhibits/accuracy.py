"""Test accuracies of all methods in one setting, scale by scale, with the learning curves behind them.

The paper compares PETRA with backpropagation only; its reviewers asked for the other asynchronous methods. Here are all
of them, on the same network with the same k and seeds, and beside the differences to backpropagation those of PETRA to
each rival. Runs made by hand are shown likewise, recipe by recipe. A scale may say what it expects
(`reproduce.grids.scales.Scale.target_accuracy`); a run that falls short of that is broken, and the report says so
before anything else.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from petra_core import methods
from petra_core.methods import Method
from reproduce.exhibits._exhibit import Coverage, Exhibit, Folded, Sentence, Shown
from reproduce.grids import scales
from reproduce.grids.plans.accuracy import COMPARED
from reproduce.records.frames import Frame, Frames, Sheet
from reproduce.show import facets
from reproduce.show.compare import Samples, family_note, judge, means, reported
from reproduce.show.content import MEGABYTE, Entry, Finding, OfK, Table, Tone, missing, short_title, some
from reproduce.show.facets import facet
from reproduce.show.statistics import MARGIN_POINTS, Judgement
from reproduce.show.tables import Field, amount, entry, judged, mean, mean_entry, method, number, table, words
from reproduce.words import count

PETRA, EXACT = methods.PETRA.name, methods.BACKPROPAGATION.name
#: Methods that work on delayed gradients and are not PETRA.
RIVALS = tuple(m for m in COMPARED if m.pipelined and m is not methods.PETRA)
INTRODUCTION = (
    "Accuracy on the test set after the last epoch, in percent: mean over the seeds ± half the 95 % interval "
    "(Student's t), and in brackets the number of seeds. With two seeds the interval is wide by nature, since "
    "Student's factor is then 12.7. Differences are to backpropagation on the same network with the same k, over "
    "the seeds that both have; a seed fixes initialisation and order of the data. No stage of a ResNet can be "
    "inverted: there PETRA is DSP, and approximate inputs are delayed gradients."
)


class Place(NamedTuple):
    """What tells groups of runs of one recipe apart."""

    network: str
    method: str
    k: int


def whole(frames: Frames) -> Iterator[Shown]:
    """What was trained by hand, recipe by recipe."""
    by_hand = frames.runs[(frames.runs["kind"] == "training") & ~frames.runs["scale"].isin(list(scales.SCALES))]
    for (scale, recipe), runs in by_hand.groupby(["scale", "recipe"]):
        for sheet in frames.sheets(str(scale), [frames.by_name[name].cell for name in runs["cell"]]):
            yield Coverage(sheet.progress)
            yield from each(sheet, f"-{recipe}")


def each(sheet: Sheet, recipe: str = "") -> Iterator[Shown]:
    """Accuracies as a picture and as a matrix, curves, and folded the cells one by one."""
    accuracy = means(sheet.runs, "test_accuracy", Place._fields)
    places = [Place(*place) for place in accuracy]
    less = judge({p: accuracy[p] - accuracy[p._replace(method=EXACT)] for p in places if p.method != EXACT})
    short = falling_short(sheet)
    key, setting = f"{sheet.key}-{sheet.dataset}{recipe}", sheet.described(width=False)
    networks = list(dict.fromkeys(place.network for place in places))
    compared = [m for m in methods.KNOWN if any(place.method == m.name for place in places)]
    ks = sorted({place.k for place in places})
    yield from _findings(sheet, setting, less, short)
    if not sheet.done.empty:
        first = min((place for place in places if place.network == networks[0]), key=lambda place: place.k)
        reached = {m: accuracy[first._replace(method=m.name)].estimate for m in compared}
        said = [f"{short_title(m)} {found.mean:.1f} %" for m, found in reached.items() if found]
        yield Sentence(f"{networks[0].partition(',')[0]}, k = {first.k}: {', '.join(said)}.")
        yield facet(
            sheet.done.assign(title=sheet.done["method"].map({m.name: short_title(m) for m in compared})),
            [facets.rows([short_title(m) for m in compared])],
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
        group = OfK(k)
        alarming = {(n, m) for n, m in short.loc[short["k"] == k, ["network", "method"]].itertuples(index=False)}

        def reached(row: tuple[str, Method]) -> Entry:
            place = Place(row[0], row[1].name, k)
            if place not in accuracy:
                return missing("no cell")
            return mean_entry(accuracy[place], 1, tone=Tone.ALERT if place[:2] in alarming else Tone.OURS)

        def difference(row: tuple[str, Method]) -> Judgement | str | None:
            place = Place(row[0], row[1].name, k)
            return less.get(place) if accuracy[place].values else ""

        return [
            entry("accuracy, %", reached, group=group),
            judged("difference", difference, digits=1, group=group),
        ]

    yield table(
        key=f"accuracy-{key}",
        caption=f"Test accuracy by network, method and k ({setting}).",
        rows=[(n, m) for n in networks for m in compared if any(Place(n, m.name, k) in accuracy for k in ks)],
        fields=[
            words("network", lambda row: row[0]),
            method("method", lambda row: row[1]),
            *(field for k in ks for field in of_k(k)),
        ],
        notes=(
            "Difference: to backpropagation on the same network with the same k, points, paired over seeds.",
            family_note(less.values()),
        ),
        grouped=True,
    )
    yield from _rivals(accuracy, networks, ks, key, setting)
    curves = sheet.epochs()
    for network in dict.fromkeys(curves["network"]):
        yield facet(
            curves[curves["network"] == network],
            [facets.line("range")],
            key=f"curves-{key}-{network.lower().replace(', ', '-').replace(' ', '-')}",
            title=f"Learning curves of {network}",
            caption=f"Learning curves of {network} ({setting}). Line: mean over seeds; band: their range.",
            x="epoch",
            y="test_accuracy",
            col="k",
            titles=lambda _, k: f"k = {k}",
            xlabel="epoch",
            ylabel="test accuracy, %",
        )
    yield Folded(_details(sheet, accuracy, networks, less, key, setting))


def falling_short(sheet: Sheet) -> Frame:
    """The runs of which the sheet's scale expects more than they reached."""
    runs, scale = sheet.runs, scales.SCALES.get(sheet.scale)
    if scale is None:
        return runs[:0]
    targets = runs["model"].map(lambda model: scale.own_targets.get(model, scale.target_accuracy))
    low = (runs["status"] == "done") & (runs["test_accuracy"] <= targets) | (runs["status"] == "failed")
    return runs[low & runs["k"].isin(scale.target_accumulations)]


def _findings(sheet: Sheet, setting: str, less: Mapping[Place, Judgement], short: Frame) -> Iterator[Finding]:
    runs, done = sheet.runs, sheet.done
    seeds = count(len(set(runs["seed"])), "seed")
    yield Finding(
        f"{setting[0].upper()}{setting[1:]}: {len(done)} of {len(runs)} runs finished, {seeds}.",
        Tone.PLAIN if len(done) == len(runs) else Tone.MISSING,
    )
    scale = scales.SCALES.get(sheet.scale)
    judged = done[done["k"].isin(scale.target_accumulations)] if scale else done[:0]
    at = f"k = {' and '.join(map(str, scale.target_accumulations))}" if scale else ""
    if scale and not short.empty:
        reached = short["test_accuracy"].map("{:.1f} %".format).where(short["status"] == "done", short["state"])
        names = some([f"{cell}: {what}" for cell, what in zip(short["cell"], reached, strict=True)])
        target = f"{scale.target_accuracy:g} % test accuracy"
        yield Finding(f"{count(len(short), 'run')} at {at} not above {target}. {names}.", Tone.ALERT)
    elif scale and not judged.empty:
        yield Finding(
            f"Every method learns: all {len(judged)} finished runs at {at} are above {scale.target_accuracy:g} % test "
            f"accuracy, the lowest at {judged['test_accuracy'].min():.1f} %. At the scale “{scale.name}” this says "
            "that the methods train, and nothing about the paper's accuracies.",
            Tone.GOOD,
        )
    said = {
        m: text
        for m in (*RIVALS, methods.PETRA)
        if (text := reported(j for place, j in less.items() if place.method == m.name))
    }
    against = f"against backpropagation on the same network, k and seeds, margin {MARGIN_POINTS} points"
    rivals = "; ".join(f"{m.title}, {text}" for m, text in said.items() if m in RIVALS)
    if rivals:
        yield Finding(f"Rivals {against}. {rivals}.")
    if methods.PETRA in said:
        yield Finding(f"PETRA {against}, {said[methods.PETRA]}.")


def _rivals(accuracy: Samples, networks: Sequence[str], ks: Sequence[int], key: str, setting: str) -> Iterator[Table]:
    """PETRA less each of its rivals, on the networks that have both."""
    less = judge(
        {
            (network, rival, k): accuracy[network, PETRA, k] - accuracy[network, rival.name, k]
            for network in networks
            for rival in RIVALS
            for k in ks
        }
    )
    made = {network for (network, _, _), judgement in less.items() if judgement.difference is not None}

    def of_k(k: int) -> Field:
        return judged("PETRA less it", lambda row: less[row[0], row[1], k], digits=1, group=OfK(k))

    if made:
        yield table(
            key=f"rivals-{key}",
            caption=f"PETRA less each asynchronous rival, points of accuracy ({setting}).",
            rows=[(network, rival) for network in networks if network in made for rival in RIVALS],
            fields=[words("network", lambda row: row[0]), method("rival", lambda row: row[1]), *map(of_k, ks)],
            notes=("Paired over seeds, same network and k.", family_note(less.values())),
            grouped=True,
        )


def _details(
    sheet: Sheet,
    accuracy: Samples,
    networks: Sequence[str],
    less: Mapping[Place, Judgement],
    key: str,
    setting: str,
) -> Table:
    """Every group of runs: learning rate, seeds, verdict, memory."""
    best = means(sheet.runs, "best_test_accuracy", Place._fields)
    rates = dict(iter(sheet.runs.groupby(list(Place._fields))["learning_rate"].first().items()))
    peaks = dict(iter(sheet.done.groupby(list(Place._fields))["peak_bytes"].max().items()))
    return table(
        key=f"cells-{key}",
        caption=f"Every cell ({setting}).",
        rows=[place for network in networks for place in map(Place._make, accuracy) if place.network == network],
        fields=[
            words("network", lambda place: place.network),
            method("method", lambda place: methods.by_name(place.method)),
            number("k", lambda place: place.k),
            entry("learning rate", lambda place: Entry(f"{rates[place]:.4g}", rates[place])),
            mean("accuracy, %", lambda place: accuracy[place]),
            mean("best epoch's, %", lambda place: best[place]),
            judged("difference", lambda place: less.get(place) if accuracy[place].values else ""),
            amount("peak memory, MB", lambda place: peaks[place] / MEGABYTE if place in peaks else None, 2),
            words("unfinished", lambda place: missing(accuracy[place].unfinished)),
        ],
        notes=(
            f"Verdict on the difference to backpropagation: agree if its 95 % interval lies within ±{MARGIN_POINTS} "
            "points, differ if the interval excludes 0 and does not, else cannot tell. Peak memory: the most "
            "bytes that a stage held at one moment, counted by the engine, summed over the stages; 1 MB = 10⁶ bytes.",
        ),
        grouped=True,
    )


EXHIBIT = Exhibit(
    "accuracy",
    "Accuracy of the methods",
    INTRODUCTION,
    each,
    whole,
    folded="Every cell: learning rate, seeds, verdict, memory",
)
