"""Measure the quality of PETRA's gradients, stage by stage, in frames made from what probes recorded.

A single average over epochs, seeds and stages would hide that there are few seeds and that epochs differ. Here a run
gives one value per stage, or per stage and part of the training, and comparisons are made within a run: on the same
micro-batches at the same weights.
"""

from pandas import DataFrame

from reproduce.cells import networks
from reproduce.cells.kinds import TrainedCell
from reproduce.records.frames import RunSet, average_over_micro_batches

METHOD, DELAYED, BETWEEN = "method/end_to_end", "delayed/end_to_end", "method/delayed"
#: Measures of closeness, with the sign of a gain. A norm ratio is not one: a gradient of the right length may be wrong.
CLOSENESS = {"cosine": 1, "relative_error": -1}
FEWEST = 3  # micro-batches in a part of the training, because single ones vary widely


def kinds(cell: TrainedCell) -> str:
    """Return the kind of every stage of the cell's network, one letter each.

    K keeps its input. E is reversible, but evaluates F at an exact input. R is reversible, and evaluates F at a
    reconstructed input. One stream of a reversible stage's output is a copy of the stream that F took, so F is
    evaluated at an exact input if the stage above keeps its input.
    """
    keeps = [not stage.invertible for stage in networks.build_outline(cell)]
    above = [*keeps[1:], True]
    return "".join("K" if here else "E" if next_ else "R" for here, next_ in zip(keeps, above, strict=True))


def kinds_of(run_set: RunSet) -> dict[str, str]:
    """Return the kinds of the stages of every network of a run set, by the network's title."""
    cells = {networks.title_of(cell): cell for cell in run_set.planned.values() if isinstance(cell, TrainedCell)}
    return {network: kinds(cell) for network, cell in cells.items()}


def comparisons(run_set: RunSet, *, single: bool = False) -> DataFrame:
    """Return what the probes of a run set recorded.

    Args:
        run_set: Runs with probes.
        single: Whether to return single micro-batches instead of means.

    Returns:
        The run set's lines with `study` (network and k), `pair` (of gradients), `measure`, and the stage's `kind` and
        whether it is the `head`.

    """
    lines = run_set.lines(single=single)
    letters_of = kinds_of(run_set)
    stages = [(network, stage) for network, letters in letters_of.items() for stage in range(len(letters))]
    structure = DataFrame(stages, columns=["network", "stage"]).assign(
        kind=[letters_of[network][stage] for network, stage in stages],
        head=[stage == len(letters_of[network]) - 1 for network, stage in stages],
    )
    names = {name: name.rpartition("/") for name in lines["measure"].unique()}
    lines = lines.assign(
        study=lines["network"] + ", k = " + lines["k"].astype(str),
        pair=lines["measure"].map({name: pair for name, (pair, _, _) in names.items()}),
        measure=lines["measure"].map({name: measure for name, (_, _, measure) in names.items()}),
    )
    return lines.merge(structure, on=["network", "stage"], how="left")


def profiles(lines: DataFrame, *over: str) -> DataFrame:
    """Average each measure over micro-batches: one row per run, pair, measure and stage (and value of `over`)."""
    return average_over_micro_batches(lines, ["study", "seed", *over, "stage", "kind", "head", "pair", "measure"])


def in_parts(lines: DataFrame, epochs: int, most: int) -> DataFrame:
    """Return profiles in equal parts of the training, with the columns `begin` and `end` in epochs.

    No part is shorter than an epoch, unless every record of the study contains single micro-batches. Then each part
    contains at least `FEWEST` of them.

    Args:
        lines: Result of `comparisons`, with single micro-batches if they are recorded.
        epochs: Number of epochs of the training.
        most: Maximum number of parts of a study.

    """
    single = lines.groupby("study")["weight"].max() == 1
    probes = lines.groupby(["study", "cell", "epoch"])["point"].nunique().groupby("study").max()
    parts = lines["study"].map((probes * epochs // FEWEST).where(single, epochs).clip(1, most))
    number = (lines["point"] * parts / epochs).astype(int)
    return profiles(lines.assign(begin=number * epochs / parts, end=(number + 1) * epochs / parts), "begin", "end")


def gains(values: DataFrame) -> DataFrame:
    """Return how much closer PETRA's gradient is to the end-to-end one than the delayed gradient, below the head.

    The head's forward and backward are in one tick, where both gradients are equal.
    """
    close = values[values["measure"].isin(list(CLOSENESS)) & ~values["head"]]
    ours, delayed = (close[close["pair"] == pair].drop(columns="pair") for pair in (METHOD, DELAYED))
    both = ours.merge(delayed, on=[name for name in ours.columns if name != "value"], suffixes=("", "_delayed"))
    difference = (both["value"] - both["value_delayed"]) * both["measure"].map(CLOSENESS)
    return both.assign(value=difference).drop(columns="value_delayed")


def over_stages(values: DataFrame) -> DataFrame:
    """Return the means over the stages below the head."""
    by = [name for name in values.columns if name not in ("stage", "kind", "head", "value")]
    return values[~values["head"]].groupby(by, sort=False)["value"].mean().reset_index()
