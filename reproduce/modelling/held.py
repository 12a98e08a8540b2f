"""Compare the memory that the engine held for Table 3 with the rules of the published table."""

from pandas import DataFrame

from petra_core import methods
from petra_core.ledger import KINDS
from reproduce.cells import catalogue
from reproduce.grids.plans.table4 import METHODS
from reproduce.modelling.buffer_rules import CONSISTENT_RULE, PUBLISHED_RULE, BufferRule, memory, revnet_sizes
from reproduce.records.frames import Frames, RunSet

COUNTED = ("parameters", "buffers", "inputs", "stashed_weights")  # kinds that the rules count


def by_kind(frames: Frames, runs: DataFrame) -> DataFrame:
    """Return the rows of these runs with the peak bytes of each kind of tensors of each stage, as `value`."""
    parts = frames.parts(runs["cell"])
    return runs.drop(columns="kind").merge(parts[(parts["of"] == "peak") & parts["kind"].isin(KINDS)], on="cell")


def held(run_set: RunSet, unit: float) -> DataFrame:
    """Return the runs, methods in the paper's order, with the memory of all stages together; NaN if not measured.

    Args:
        run_set: RunSet of Table 3's plan.
        unit: Unit of the amounts, in bytes.

    Returns:
        The columns of the runs and images, subject (network and images), counted (kinds that the rules count), held,
        predicted, at_once (sum over stages of the largest total at one moment), process (growth of the process).

    """
    place = run_set.runs["method"].map([m.name for m in METHODS].index)
    runs = run_set.runs.assign(place=place).sort_values(["dataset", "model", "batch_size", "place"])
    titles = runs["dataset"].map(lambda name: catalogue.by_name(name).title)
    runs["images"] = titles + ", batch " + runs["batch_size"].astype(str)
    runs["subject"] = runs["network"].str.removesuffix(", width 64") + ", " + runs["images"]
    parts = run_set.frames.parts(runs["cell"])
    columns = [("counted", "peak", COUNTED), ("held", "peak", KINDS), ("predicted", "predicted", KINDS)]
    for name, source, kinds in columns:
        chosen = parts[(parts["of"] == source) & parts["kind"].isin(kinds)]
        runs[name] = runs["cell"].map(chosen.groupby("cell")["value"].sum()).astype(float) / unit
    results = {cell: run_set.frames.by_name[cell].result for cell in run_set.done["cell"]}
    runs["at_once"] = runs["cell"].map({cell: result["at_once"] / unit for cell, result in results.items()})
    grown = {cell: result["process"] for cell, result in results.items()}  # None if the system does not report it
    runs["process"] = runs["cell"].map({cell: growth["peak"] / unit for cell, growth in grown.items() if growth})
    return runs


def with_rules(runs: DataFrame, unit: float) -> DataFrame:
    """Add the results of both rules to the runs of `held`, as published_rule and consistent_rule.

    For these, counted and held, also add `…_saved`: percent less than under delayed gradients with the same network,
    images and batch.
    """
    runs = runs.assign(
        published_rule=_apply_rule(PUBLISHED_RULE, runs, unit), consistent_rule=_apply_rule(CONSISTENT_RULE, runs, unit)
    )
    delayed = runs[runs["method"] == METHODS[0].name].groupby("subject")
    for name in ("published_rule", "consistent_rule", "counted", "held"):
        runs[f"{name}_saved"] = 100 * (1 - runs[name] / runs["subject"].map(delayed[name].first()))
    return runs


def _apply_rule(rule: BufferRule, runs: DataFrame, unit: float) -> list[float]:
    return [
        memory(
            revnet_sizes(int(run["model"].removeprefix("revnet")), run["dataset"], run["batch_size"], run["width"]),
            methods.by_name(run["method"]),
            rule,
            run["k"],
        )
        / unit
        for run in runs.to_dict("records")
    ]
