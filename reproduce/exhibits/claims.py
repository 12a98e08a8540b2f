"""Judge claims: sentences of papers as data, the runs that test each, and the resulting verdict.

`reproduce/published/claims.json` contains a predicate and tests for every sentence. A test names a scale and either a
benchmark, or a plan, a measure and the cells of the plan that are compared. Tests at the paper's size come first. The
verdict is always computed, and without runs it is "unknown". Runs of smaller scales show only whether the claim holds
there, and modelled values leave it open.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pandas import DataFrame

from petra_core import methods
from reproduce import published
from reproduce.cells import catalogue
from reproduce.exhibits._exhibit import run_sets
from reproduce.exhibits.pareprop import gains_of
from reproduce.modelling.buffer_rules import held, with_rules
from reproduce.modelling.complexity import Measured, read_measured
from reproduce.modelling.network import read_timed_networks
from reproduce.presentation.compare import Difference, SeedSample, format_difference, means, measured_samples, sample_of
from reproduce.presentation.content import GIGABYTE, signless, with_sign
from reproduce.presentation.statements import ClaimVerdict, compare, holds
from reproduce.presentation.statistics import Estimate
from reproduce.published import Claim
from reproduce.records import gradients
from reproduce.records.frames import Frames, RunSet
from reproduce.records.run import hardware
from reproduce.text import conjunction, count

OWN_SCALE = "paper"
PAPER = "PETRA"
#: Predicate of one claim and of several claims with a verdict.
PREDICATES = {
    ClaimVerdict.AGREE: ("agrees with our runs", "agree with our runs"),
    ClaimVerdict.DISAGREE: ("disagrees with our runs", "disagree with our runs"),
    ClaimVerdict.SAME: ("holds at a smaller scale", "hold at a smaller scale"),
    ClaimVerdict.NOT_SO: ("does not hold at a smaller scale", "do not hold at a smaller scale"),
    ClaimVerdict.OPEN: ("is open", "are open"),
    ClaimVerdict.UNKNOWN: ("has no run that bears on it", "have no run that bears on them"),
}
PARTS = 6  # parts of a training, in each of which a gradient must be the closer one
DECIMALS = {"points": 1, "%": 1, "GB": 2, "times": 1, "cosine": 3}


@dataclass(frozen=True)
class Evidence:
    """Result of the runs of a test.

    Attributes:
        setting: Network, data set and length in words.
        text: The measured value in words.
        cells: Names of the finished cells that it is based on.
        estimate: The value with its interval; None for rules that hold or do not.
        holds: Whether the predicate holds; None if the data do not decide.
        verdict: Verdict on the claim from this evidence only.
        remarks: Facts that a reader must know about the runs.

    """

    setting: str
    text: str
    cells: tuple[str, ...]
    estimate: Estimate | None = None
    holds: bool | None = None
    verdict: ClaimVerdict = ClaimVerdict.OPEN
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judged:
    """A claim with its evidence, the strongest first."""

    claim: Claim
    evidence: tuple[Evidence, ...]

    @property
    def verdict(self) -> ClaimVerdict:
        """Verdict of the strongest evidence."""
        return self.evidence[0].verdict if self.evidence else ClaimVerdict.UNKNOWN

    @property
    def found(self) -> str:
        """The result in words; empty without runs."""
        return "; ".join(
            f"{evidence.text} ({'; '.join((evidence.setting, *evidence.remarks))})" for evidence in self.evidence
        )


def judge(frames: Frames) -> list[Judged]:
    """Judge every claim by the records, in the order of the file."""
    return [judge_claim(claim, frames) for claim in published.claims()]


def judge_claim(claim: Claim, frames: Frames) -> Judged:
    """Gather the evidence of all tests of a claim. Runs of the paper's size come first, independent of their result."""
    return Judged(claim, tuple(evidence for test in claim.tests for evidence in _evidence(claim, test, frames)))


def _evidence(claim: Claim, test: Mapping[str, Any], frames: Frames) -> list[Evidence]:
    if "benchmark" in test:
        return [replace(found, verdict=_verdict(claim, test, found)) for found in _of_benchmark(test, frames)]
    for run_set in run_sets(frames, test["plan"]):
        wanted = test["cells"].get("dataset")
        if run_set.scale != test["scale"] or (wanted and run_set.dataset not in (wanted, "")):
            continue
        if found := _MEASURES.get(test["measure"], _of_runs)(claim, test, run_set):
            remarks = (*found.remarks, *([test["undecided"]] if "undecided" in test else []))
            return [replace(found, verdict=_verdict(claim, test, found), remarks=remarks)]
    return []


def _verdict(claim: Claim, test: Mapping[str, Any], found: Evidence) -> ClaimVerdict:
    if test.get("modelled") or "undecided" in test:
        return ClaimVerdict.OPEN  # a model is not a measurement, and some runs cannot decide, whatever their values
    value = claim.predicate.get("value")
    if test["scale"] == OWN_SCALE and value is not None and found.estimate is not None:
        if (digits := claim.predicate.get("digits")) is not None:  # for values without a spread
            return ClaimVerdict.AGREE if round(found.estimate.mean, digits) == value else ClaimVerdict.DISAGREE
        return compare(found.estimate, value)
    yes, no = (
        (ClaimVerdict.AGREE, ClaimVerdict.DISAGREE)
        if test["scale"] == OWN_SCALE
        else (ClaimVerdict.SAME, ClaimVerdict.NOT_SO)
    )
    return ClaimVerdict.OPEN if found.holds is None else yes if found.holds else no


def _holds(claim: Claim, ours: Estimate | None) -> bool | None:
    """Return whether a value supports the claim; for a published number, whether it has the same sign."""
    predicate = claim.predicate
    if predicate["is"] != "equal":
        return holds(predicate["is"], ours)
    if predicate["unit"] != "points":
        return None
    return holds("equal" if not predicate["value"] else "above" if predicate["value"] > 0 else "below", ours)


# --- measures


def _chosen(rows: DataFrame, where: Mapping[str, Any]) -> DataFrame:
    """Return the rows with these values. A list allows any of its values."""
    for column, value in where.items():
        rows = rows[rows[column].isin(value if isinstance(value, list) else [value])]
    return rows


def _of_runs(claim: Claim, test: Mapping[str, Any], run_set: RunSet) -> Evidence | None:
    """Return the evidence of a weighted sum of means over seeds of a column of runs."""
    runs = _chosen(run_set.runs[run_set.runs["traceable"]], {n: v for n, v in test["cells"].items() if n != "dataset"})
    terms, remarks, cells = [], [], []
    for term in test["terms"]:
        rows = _chosen(runs, term["where"])
        if by := term.get("choose"):
            samples = {place: sample for place, sample in means(rows, test["measure"], [by]).items() if sample.estimate}
            best = max(samples, key=lambda place: _mean(samples[place]), default=None)
            rows = rows[rows[by] == best]
            if best is not None and rows["status"].eq("done").any():
                remarks.append(f"{by} = {best}{', chosen by test accuracy' * (len(samples) > 1)}")
        terms.append((float(term["weight"]), sample_of(rows, test["measure"])))
        cells += list(rows.loc[rows["status"] == "done", "cell"])
    difference = Difference(tuple(terms))
    if (ours := difference.estimate) is None:
        return None
    if test["measure"] == "best_test_accuracy":
        remarks.append("best epoch, chosen by test accuracy")
    return Evidence(
        _setting(run_set, runs[runs["cell"].isin(cells)]),
        _format_value(claim, ours, format_difference(difference) if len(terms) > 1 else ""),
        tuple(dict.fromkeys(cells)),
        ours,
        _holds(claim, ours),
        remarks=tuple(dict.fromkeys(remarks)),
    )


def _mean(sample: SeedSample) -> float:
    return sample.estimate.mean if sample.estimate else -math.inf


def _format_value(claim: Claim, ours: Estimate, bounded_by: str = "") -> str:
    unit = claim.predicate["unit"]
    single = ours.counts == (1,) and "digits" not in claim.predicate and unit == "%"
    digits = DECIMALS[unit] + single
    text = bounded_by
    if not text:
        value = with_sign(ours.mean, digits) if unit == "cosine" else signless(f"{ours.mean:.{digits}f}")
        text = value if ours.half_width is None else f"{value} ± {ours.half_width:.{digits}f}"
    return f"{text} {unit}{' (one run)' * single}"


def _setting(run_set: RunSet, runs: DataFrame) -> str:
    """Return scale, network, data set and length of runs as text."""
    networks = " and ".join(dict.fromkeys(runs["network"]))
    dataset = next(iter(dict.fromkeys(runs["dataset"].dropna())), "")
    lengths = sorted({int(epochs) for epochs in runs["epochs"].dropna()})
    parts = [networks, catalogue.by_name(dataset).title if dataset else "", *(count(n, "epoch") for n in lengths)]
    return ", ".join(filter(None, [*parts, f"scale “{run_set.scale}”"]))


def _of_formula(claim: Claim, test: Mapping[str, Any], run_set: RunSet) -> Evidence | None:
    """Compare a column of Table 1 with the counts, at every inner stage."""
    name, method = test["measure"].removeprefix("formula of "), methods.by_name(test["cells"]["method"])
    known = [m for m in read_measured(run_set.finished) if m.method is method]
    if not known:
        return None
    holding = [m for m in known if m.follows(name)]
    return Evidence(
        f"reversible chains, {_stages(known)}, scale “{run_set.scale}”",
        f"counted in {len(holding)} of {count(len(known), 'measurement')}",
        tuple(m.cell.name for m in known),
        holds=len(holding) == len(known),
    )


def _stages(known: Sequence[Measured]) -> str:
    stages = sorted({m.place["J"] for m in known})
    return f"J = {stages[0]}" if len(stages) == 1 else f"J = {stages[0]} to {stages[-1]}"


def _of_memory(claim: Claim, test: Mapping[str, Any], run_set: RunSet) -> Evidence | None:
    """Return the bytes held that the paper's rule counts, or the share saved compared with both buffers."""
    where = test["cells"] | test["terms"][0]["where"]
    runs = _chosen(with_rules(held(run_set, GIGABYTE), GIGABYTE), where)
    measured = "counted_saved" if test["measure"] == "counted saving" else "counted"
    first = runs.dropna(subset=[measured])[:1]
    if first.empty:
        return None
    ours = Estimate(float(first[measured].item()), None, None, (1,))
    setting = f"{_setting(run_set, first)}, batch {first['batch_size'].item()}"
    return Evidence(setting, _format_value(claim, ours), (first["cell"].item(),), ours)


def _of_speed(claim: Claim, test: Mapping[str, Any], run_set: RunSet) -> Evidence | None:
    timed = [m for m in read_timed_networks(run_set) if m.cell.model == test["cells"]["model"]]
    if not timed:
        return None
    ours, cell = Estimate(timed[0].speedup, None, None, (1,)), timed[0].cell
    setting = f"{timed[0].title}, width {cell.width}, batch {cell.batch_size}, one device per stage"
    remarks = ("modelled from stages timed on one device, not measured",)
    return Evidence(setting, _format_value(claim, ours), (cell.name,), ours, remarks=remarks)


def _of_gradients(claim: Claim, test: Mapping[str, Any], run_set: RunSet) -> Evidence | None:
    """Return how much closer PETRA's gradient is, as a mean over the stages below the head.

    The value is that of the whole training, or of the part of the training with the least gain.
    """
    rows = _chosen(run_set.done, test["cells"])
    overall = not test["measure"].startswith("least")
    lines = gradients.comparisons(run_set, single=not overall)
    lines = lines[lines["cell"].isin(rows["cell"])]
    if lines["value"].isna().all():
        return None
    epochs = run_set.example.epochs
    values = gradients.profiles(lines) if overall else gradients.in_parts(lines, epochs, PARTS)
    by = ["measure"] if overall else ["begin", "end", "measure"]
    gains = measured_samples(gradients.over_stages(gradients.gains(values)), by)
    cosines = [gain for place, gain in gains.items() if (place if overall else place[-1]) == "cosine" and gain.estimate]
    ours = min(cosines, key=_mean).estimate
    assert ours is not None  # samples without an estimate were excluded
    text = _format_value(claim, ours) + ("" if overall else ", where it is least")
    return Evidence(_setting(run_set, rows), text, tuple(rows["cell"]), ours, _holds(claim, ours))


def _of_benchmark(test: Mapping[str, Any], frames: Frames) -> list[Evidence]:
    """Test whether the gain of PaReprop, including its lower quartile, is above 0 in every setting on a GPU."""
    found = []
    for record in frames.results.benchmarks:
        if record.name.partition("-")[0] != test["benchmark"]:
            continue
        gains = gains_of(record).values()
        if not gains:
            continue
        faster, slower = sum(gain.lower > 0 for gain in gains), sum(gain.upper < 0 for gain in gains)
        ends = [f"{with_sign(end(gain.median for gain in gains), 1)} %" for end in (min, max)]
        decided = True if faster == len(gains) else None if slower < len(gains) / 2 else False
        on_cpu = record.environment.get("device") == "cpu"
        text = f"faster in {faster} of {count(len(gains), 'setting')}, {ends[0]} to {ends[1]}"
        setting, cells = f"small networks on {hardware(record.environment)}", (f"benchmarks/{record.name}",)
        remarks = ("PaReprop was made for GPUs",) * on_cpu
        found.append(Evidence(setting, text, cells, holds=None if on_cpu else decided, remarks=remarks))
    return found


_Measure = Callable[[Claim, Mapping[str, Any], RunSet], Evidence | None]
_MEASURES: dict[str, _Measure] = {
    **{f"formula of {name}": _of_formula for name in ("activations", "copies", "down", "flops", "executed")},
    "counted gigabytes": _of_memory,
    "counted saving": _of_memory,
    "modelled speed-up": _of_speed,
    "gain in cosine": _of_gradients,
    "least gain in cosine over training": _of_gradients,
}


def count_verdicts(judged: Sequence[Judged]) -> str:
    """Count the claims of the paper by verdict, as "Of 19 claims [...] 8 hold at a smaller scale and 11 are open."."""
    verdicts = Counter(judgement.verdict for judgement in judged if judgement.claim.paper == PAPER)
    listed = [f"{number} {forms[number > 1]}" for verdict, forms in PREDICATES.items() if (number := verdicts[verdict])]
    return f"Of {count(verdicts.total(), 'claim')} of the PETRA paper {conjunction(listed)}."
