"""Test samples by place: their values, broken runs, and the state of unfinished runs."""

import math
from dataclasses import replace
from typing import Any

import pytest
from pandas import DataFrame, isna
from scipy import stats

from reproduce.presentation.compare import SeedSample, format_difference, means, measured_samples, with_difference
from reproduce.presentation.statistics import ResidualSpread, Verdict
from reproduce.presentation.tables import difference_entries, mean_entry


def run(method: str, seed: int, accuracy: float | None, status: str = "done", broken: str = "") -> dict[str, Any]:
    state = {"done": "done", "failed": "diverged (epoch 1 of 2)"}.get(status, status)
    reason = "diverged" if status == "failed" else ""
    columns = {"method": method, "seed": seed, "status": status, "state": state, "reason": reason, "broken": broken}
    columns |= {"machine": "CPU", "study": None}
    return columns | {"accuracy": accuracy}


def test_sample_states_broken_seeds_and_completion() -> None:
    """A sample lists its broken seeds, whether all runs have ended, and excludes broken ones from differences."""
    runs = [
        run("A", 0, 50.0),
        run("A", 1, 10.0, broken="accuracy of a guess"),
        run("A", 2, None, "failed", "loss not finite"),
        run("B", 0, 60.0),
        run("B", 1, None, "not run"),
    ]
    samples = means(DataFrame(runs), "accuracy", ["method"])
    assert samples["A"].broken == {1: "accuracy of a guess", 2: "loss not finite"}
    assert (samples["A"].ended, samples["B"].ended, samples["C"].ended) == (True, False, False)
    assert samples["A"].seeds == "2 of 3; 1 diverged; 1 broken"
    difference = (samples["A"] - samples["B"]).estimate
    assert difference is not None
    assert (difference.mean, difference.counts) == (-10.0, (1, 1))


def test_removing_a_seed_keeps_states_of_the_others() -> None:
    """A sample without a seed keeps the values, states and problems of the others."""
    states = {0: "done", 1: "done", 2: "diverged (epoch 1 of 3)"}
    others = SeedSample({0: 60.0, 1: 61.0}, states, {2: "diverged"}, {2: "loss not finite"}).without([0])
    assert (others.values, others.seeds, others.ended) == ({1: 61.0}, "1 of 2; 1 diverged", True)


def test_measured_values_count_without_a_run_state() -> None:
    """Measured values are part of the sample without a state of their run."""
    rows = DataFrame({"J": [4, 4, 10], "seed": [0, 1, 0], "value": [0.1, 0.3, None]})
    samples = measured_samples(rows, ["J"])
    assert samples[4] == SeedSample({0: 0.1, 1: 0.3})
    assert samples[10].summary == "not run"


def test_with_difference_appends_a_third_method() -> None:
    """The difference of two methods is appended as a third method, broken where one side is."""
    runs = DataFrame(
        [
            {"k": 1, **run("A", 0, 30.0)},
            {"k": 2, **run("A", 0, None, "not run")},
            {"k": 1, **run("B", 0, 50.0, broken="loss of a guess")},
            {"k": 2, **run("B", 0, 40.0)},
            {"k": 1, **run("C", 0, 5.0)},
        ]
    )
    frame = with_difference(runs, "accuracy", minuend="A", subtrahend="B", by=["k"], title="A less B")
    assert list(frame["method"]) == ["A", "A", "B", "B", "A less B", "A less B"]
    assert list(frame["difference"]) == [False] * 4 + [True] * 2
    assert list(frame["broken"]) == ["", "", "loss of a guess", "", "loss of a guess", ""]
    assert frame["accuracy"].iloc[4] == -20.0
    assert isna(frame["accuracy"].iloc[5])


def test_broken_seed_is_counted_but_not_judged() -> None:
    """One collapsed run among three seeds turned "lower" into "open", which hid the evidence against the claim."""
    exact = SeedSample({0: 90.0, 1: 90.4, 2: 90.2}, dict.fromkeys(range(3), "done"))
    sound = SeedSample({0: 80.1, 1: 80.3, 2: 80.2}, dict.fromkeys(range(3), "done"))
    broken = replace(sound, values={**sound.values, 2: 10.0}, broken={2: "below twice chance"})
    assert mean_entry(broken).text.endswith("(3; 1 broken)")
    assert (sound - exact).verdict is Verdict.LOWER
    difference = broken - exact
    assert difference.verdict is Verdict.LOWER
    assert difference.estimate == (sound.without([2]) - exact).estimate
    assert difference.wrecks == 1
    assert difference_entries(difference)[0].text.endswith("(2 + 3; 1 broken)")
    assert format_difference(difference).endswith("(1 broken)")
    assert "broken" not in format_difference(sound - exact)


def test_seeds_next_to_a_broken_one_keep_the_study_spread() -> None:
    """The sound seeds in a difference have the spread of the study; the mean of all has its sample's."""
    spread = ResidualSpread(0.2, 40, 20, 0.5)
    exact = SeedSample({0: 90.0, 1: 90.4, 2: 90.2}, spread=spread)
    broken = SeedSample({0: 80.1, 1: 80.3, 2: 10.0}, broken={2: "below twice chance"}, spread=spread)
    known = (broken - exact).estimate
    assert known is not None
    assert known.freedom == pytest.approx(40)
    assert exact.estimate is not None
    assert exact.estimate.half_width == pytest.approx(0.2 * stats.t.ppf(0.975, 40) / math.sqrt(3))
    assert broken.estimate is not None
    assert broken.estimate.freedom == 2, "the mean of all has the spread of these values"


def test_all_broken_seeds_are_judged() -> None:
    """If every seed is broken, the difference is judged from the broken values."""
    exact = SeedSample(dict.fromkeys(range(3), 90.0))
    wrecks = SeedSample({0: 10.0, 1: 10.5, 2: 11.0}, broken=dict.fromkeys(range(3), "below twice chance"))
    difference = wrecks - exact
    assert difference.verdict is Verdict.LOWER
    assert difference.estimate is not None
    assert (difference.wrecks, difference.estimate.counts) == (3, (3, 3))
