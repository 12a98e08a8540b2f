"""Runs by place: what has a value, what broke, what is known."""

from typing import Any

from pandas import DataFrame, isna

from reproduce.show.compare import Sample, means, measured, with_difference


def run(method: str, seed: int, accuracy: float | None, status: str = "done", broken: str = "") -> dict[str, Any]:
    state = {"done": "done", "failed": "diverged (epoch 1 of 2)"}.get(status, status)
    reason = "diverged" if status == "failed" else ""
    columns = {"method": method, "seed": seed, "status": status, "state": state, "reason": reason, "broken": broken}
    columns |= {"machine": "CPU", "study": None}
    return columns | {"accuracy": accuracy}


def test_a_sample_knows_what_broke_and_whether_all_is_known() -> None:
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
    assert samples["A"].seeds == "2 of 3; 1 diverged"
    difference = (samples["A"] - samples["B"]).estimate
    assert difference is not None
    assert (difference.mean, difference.counts) == (-30.0, (2, 1))


def test_what_was_measured_counts_whatever_became_of_the_run() -> None:
    rows = DataFrame({"J": [4, 4, 10], "seed": [0, 1, 0], "error": [0.1, 0.3, None]})
    samples = measured(rows, "error", ["J"])
    assert samples[4] == Sample({0: 0.1, 1: 0.3})
    assert samples[10].summary == "not run"


def test_differences_stand_beside_the_runs_as_a_third_method() -> None:
    runs = DataFrame(
        [
            {"k": 1, **run("A", 0, 30.0)},
            {"k": 2, **run("A", 0, None, "not run")},
            {"k": 1, **run("B", 0, 50.0, broken="loss of a guess")},
            {"k": 2, **run("B", 0, 40.0)},
            {"k": 1, **run("C", 0, 5.0)},
        ]
    )
    frame = with_difference(runs, "accuracy", of="A", less="B", by=["k"], title="A less B")
    assert list(frame["method"]) == ["A", "A", "B", "B", "A less B", "A less B"]
    assert list(frame["difference"]) == [False] * 4 + [True] * 2
    assert list(frame["broken"]) == ["", "", "loss of a guess", "", "loss of a guess", ""]
    assert frame["accuracy"].iloc[4] == -20.0
    assert isna(frame["accuracy"].iloc[5])
