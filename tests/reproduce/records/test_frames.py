"""Measures of stages over a training."""

from pandas import DataFrame

from reproduce.records.frames import LINES, over_training


def test_measures_are_averaged_over_micro_batches_and_what_is_not_defined_does_not_count() -> None:
    # An epoch of two micro-batches, one of six; stage 0 keeps its input in the second.
    rows = [("a", 0, 1, 0.5, 2, 0, "error", 1.0), ("a", 0, 2, 1.5, 6, 0, "error", None)]
    rows += [("a", 0, 1, 0.5, 2, 1, "error", 1.0), ("a", 0, 2, 1.5, 6, 1, "error", 5.0)]
    lines = DataFrame.from_records(rows, columns=list(LINES)).assign(k=None)
    means = over_training(lines)
    assert means.columns.tolist() == ["cell", "seed", "stage", "measure", "k", "value"]
    assert means[["stage", "value"]].to_numpy().tolist() == [[0, 1.0], [1, 4.0]]
    assert over_training(lines.iloc[:0]).empty
