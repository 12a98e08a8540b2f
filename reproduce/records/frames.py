"""Put all records into long tables, the input of every exhibit.

The obvious way to fill a table is to filter records: model RevNet-18, method PETRA, k = 4. The filter also accepts runs
with another learning rate or length, and it does not show missing runs. Here an exhibit asks for the cells of its plan,
with every setting, and gets a row for each, including further seeds and cells that were not run.

    runs    one row per cell, recorded or only planned; columns RUNS
    lines   cell x point of training x stage x measure -> value; columns LINES (measured by probes)
    parts   cell x stage x kind x of -> value; columns PARTS (bytes by purpose, seconds, FLOPs)
    series  benchmark x group x contestant x quantity x at x round -> value; columns SERIES

`Frames.run_sets` yields the runs of planned cells of a scale, separated by arithmetic, training data set and text, so
that only comparable runs share a `RunSet`.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pandas import DataFrame, Series

from petra_core.files import replacing
from reproduce.cells import catalogue, own, rates, timing
from reproduce.cells.base import Cell
from reproduce.cells.kinds import (
    KINDS,
    ComplexityCell,
    ForwardGradientCell,
    MeasuredCell,
    MemoryCell,
    StageCostCell,
    TrainedCell,
)
from reproduce.cells.networks import title_of
from reproduce.cells.setting import settings_of
from reproduce.presentation.statistics import ResidualStudy, pool
from reproduce.records.broken import broken
from reproduce.records.lost_commits import LOST
from reproduce.records.results import Results
from reproduce.records.run import Run, State, Status, hardware
from reproduce.records.storage import check_own, explain_full_disk
from reproduce.text import conjunction, count

#: Columns of `runs`. Those that do not apply to the kind of a cell are empty.
RUNS = (
    *("cell", "kind", "scale", "network", "k"),
    *dict.fromkeys(name for kind in KINDS.values() for name in settings_of(kind) if name != "accumulation"),  # it is k
    *("reference_rate", "staleness", "arithmetic", "settings", "recipe", "text"),
    *("status", "state", "reason", "detail", "broken", "epochs_done"),
    *("test_accuracy", "best_test_accuracy", "final_accuracy", "test_bits_per_byte", "train_loss", "final_loss"),
    *("peak_bytes", "engine", "train_seconds", "images_per_second", "micro_batches"),
    *("gpus", "machine", "traceable", "study"),
)
LINES = ("cell", "seed", "epoch", "point", "weight", "stage", "measure", "value")
PARTS = ("cell", "stage", "kind", "of", "value")
SERIES = ("benchmark", "group", "contestant", "quantity", "unit", "at", "round", "value")

#: Settings in which runs of one recipe may differ. The learning rate may differ as it follows from k.
_VARIED = ("model", "width", "coupling", "method", "accumulation", "seed", "learning_rate", "timing", "stages")
#: Settings that do not change what is trained. Precision does, but it is part of the title of a study.
_NOT_OF_TRAINING = ("kind", "probe_every", "seed", "loader", "precision")
#: Progress of a record, the smallest first.
_ORDER = (Status.NOT_RUN, Status.PARTIAL, Status.FAILED, Status.DONE)
_MEASURED = ("test_accuracy", "best_test_accuracy", "test_bits_per_byte", "train_loss", "peak_bytes")
_TIMED = ("train_seconds", "images_per_second", "micro_batches")
AVERAGED = 10  # number of last epochs that an accuracy or a loss is averaged over, as in the paper's Figure 4
#: Columns whose spread over seeds is shared within a study.
SPREAD = ("test_accuracy", "best_test_accuracy", "final_accuracy", "train_loss", "final_loss", "test_bits_per_byte")


def settings_key(cell: Cell) -> str:
    """Return the configuration without the seed and the settings that depend on a machine (loader, precision)."""
    return cell.text_without("seed", "loader", "precision")


@dataclass(frozen=True)
class Frames:
    """The tables of all records under one root."""

    results: Results  # the records behind the tables
    #: Run sets by the name of their plan, as far as they were requested.
    by_plan: dict[str, list["RunSet"]] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def runs(self) -> DataFrame:
        return _table(self._rows)

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        return [row | {"study": self.studies.get(row["study"])} for row in self._of_results]

    @cached_property
    def _of_results(self) -> list[dict[str, Any]]:
        return [_run(run) for run in self.results.runs]

    @cached_property
    def studies(self) -> dict[str, ResidualStudy]:
        """The studies by title, with the spread of all sound trainings.

        A cell with probes repeats the training of another cell bit by bit, so each training counts once.
        """
        studies: dict[str, ResidualStudy] = {}
        pooled: set[tuple[str, str, int]] = set()
        settings: dict[tuple[str, str], dict[str, list[float]]] = {}  # values by study and column, then by settings
        for run, row in zip(self.results.runs, self._of_results, strict=True):
            if row["status"] == Status.DONE and row["study"] and not row["broken"]:
                studies.setdefault(row["study"], ResidualStudy(row["study"]))
                training = run.cell.text_without(*_NOT_OF_TRAINING)
                if (place := (row["study"], training, row["seed"])) in pooled:
                    continue
                pooled.add(place)
                for column in SPREAD:
                    if row[column] is not None:
                        alike = settings.setdefault((row["study"], column), {})
                        alike.setdefault(training, []).append(row[column])
        for (title, column), values in settings.items():
            if spread := pool(values.values()):
                studies[title].spreads[column] = spread
        return studies

    @cached_property
    def by_name(self) -> dict[str, Run[Cell]]:
        return {run.cell.name: run for run in self.results.runs}

    def lines(self, cells: Iterable[str], *, single: bool = False) -> DataFrame:
        """Return what probes measured in these cells: epoch means, or with `single` micro-batches if recorded."""
        rows = [line for run in self._find_runs(cells) for line in _lines(run, single=single)]
        return DataFrame.from_records(rows, columns=list(LINES))

    def epochs(self, cells: Iterable[str]) -> DataFrame:
        """Return one row per epoch of these cells. `test_accuracy` is in percent."""
        rows = [
            (run.cell.name, _seed_of(run.cell), line["epoch"], line["train_loss"], line["test_accuracy"])
            for run in self._find_runs(cells)
            for line in run.metrics
        ]
        return DataFrame.from_records(rows, columns=["cell", "seed", "epoch", "train_loss", "test_accuracy"])

    def parts(self, cells: Iterable[str]) -> DataFrame:
        """Return bytes, seconds and FLOPs of the stages of these cells."""
        rows = [part for run in self._find_runs(cells) for part in _parts(run)]
        return DataFrame.from_records(rows, columns=list(PARTS))

    def _find_runs(self, cells: Iterable[str]) -> Iterator[Run[Cell]]:
        """Yield the records of these cells. Planned cells may have none."""
        return (self.by_name[name] for name in cells if name in self.by_name)

    @cached_property
    def series(self) -> DataFrame:
        rows = [
            (benchmark.name, s.group, s.name, s.quantity, s.unit, s.at, place, value)
            for benchmark in self.results.benchmarks
            for s in benchmark.series
            for place, value in enumerate(s.values, start=1)
        ]
        return DataFrame.from_records(rows, columns=list(SERIES))

    def export(self, folder: Path) -> Iterator[Path]:
        """Write every table as a CSV file into a folder, which is created if needed, and yield the files.

        A file of the same name is replaced if an earlier export wrote it.

        Raises:
            StorageFullError: There was no room.
            StorageError: A file of the same name is no table of an export, or nothing can be written.

        """
        names = list(self.by_name)
        tables = {
            "runs": self.runs.drop(columns="settings"),
            "epochs": self.epochs(names),
            "lines": self.lines(names),
            "parts": self.parts(names),
            "series": self.series,
        }
        for name, table in tables.items():
            check_own(folder / f"{name}.csv", f"{table.columns[0]},".encode())
        with explain_full_disk(f"to write {folder}", "free some space and give the same command again"):
            folder.mkdir(parents=True, exist_ok=True)
            for name, table in tables.items():
                with replacing(folder / f"{name}.csv") as file:
                    file.write(table.to_csv(index=False).encode())
                yield folder / f"{name}.csv"

    def run_sets(self, scale: str, cells: Sequence[Cell]) -> Iterator["RunSet"]:
        """Yield the runs of these cells of one scale, by data set, arithmetic and text. Cells may be unstarted.

        If no cell trains, a data set only determines the shape of images, and all data sets share a run set.
        """
        trains = any(isinstance(cell, TrainedCell) for cell in cells)
        datasets = [getattr(cell, "dataset", "") if trains else "" for cell in cells]
        for dataset in dict.fromkeys(datasets):
            planned = {
                (settings_key(c), _seed_of(c)): c for c, name in zip(cells, datasets, strict=True) if name == dataset
            }
            keys = dict.fromkeys(key for key, _ in planned)
            begun = [row for key in keys for row in self._begun.get(key, ())]
            for arithmetic in sorted({row["arithmetic"] for row in begun}, reverse=True) or ["float32"]:
                runs = [row for row in begun if row["arithmetic"] == arithmetic]
                # An unfinished run has no text yet, and is listed with every text.
                for text in sorted({row["text"] for row in runs} - {""}) or [""]:
                    rows: dict[tuple[str, int], dict[str, Any]] = {}
                    for row in sorted(runs, key=lambda row: _ORDER.index(row["status"])):
                        if row["text"] in (text, ""):
                            rows[row["settings"], row["seed"]] = row
                    yield RunSet(self, scale, arithmetic, dataset, text, planned, rows)

    @cached_property
    def _begun(self) -> dict[str, list[dict[str, Any]]]:
        rows: dict[str, list[dict[str, Any]]] = {}
        for row in self._rows:
            if row["status"] != Status.NOT_RUN:
                rows.setdefault(row["settings"], []).append(row)
        return rows


@dataclass(frozen=True)
class RunSet:
    """The runs of a plan that may share one table."""

    frames: Frames
    scale: str
    arithmetic: str  # the precision, and whether torchvision loads the images; the other loaders are bitwise equal
    dataset: str  # name of the training data set; empty if nothing is trained
    text: str  # SHA-256 of the training text; empty for images
    planned: Mapping[tuple[str, int], Cell]  # by settings and seed
    rows: Mapping[tuple[str, int], Mapping[str, Any]]  # the begun runs

    @cached_property
    def runs(self) -> DataFrame:
        """One row per planned cell and per further seed that was run, in the order of the plan, then by seed.

        Cells that were not run have a row with that status.
        """
        rows = dict(self.rows)
        for place, cell in self.planned.items():
            if place not in rows:
                row = _run(Run(cell, State(Status.NOT_RUN, epochs=cell.epochs_expected)))
                rows[place] = row | {"study": self.frames.studies.get(row["study"]), "arithmetic": self.arithmetic}
        keys = dict.fromkeys(key for key, _ in self.planned)
        places = {key: place for place, key in enumerate(keys)}
        return _table([rows[place] for place in sorted(rows, key=lambda p: (places[p[0]], p[1]))])

    @property
    def begun(self) -> bool:
        return bool(self.rows)

    @property
    def number_done(self) -> int:
        return sum(row["status"] == Status.DONE for row in self.rows.values())

    @property
    def done(self) -> DataFrame:
        return self.runs[self.runs["status"] == Status.DONE]

    @property
    def finished(self) -> list[Run[Any]]:
        """The records of the finished runs."""
        return [self.frames.by_name[name] for name in self.done["cell"]]

    @property
    def key(self) -> str:
        """Part of anchors: the scale, and what else distinguishes run sets of one data set."""
        arithmetic = "" if self.arithmetic == "float32" else f"-{self.arithmetic}".replace(" ", "-")
        return self.scale + arithmetic + (f"-{self.text[:6]}" if self.text else "")

    @property
    def example(self) -> TrainedCell:
        return next(cell for cell in self.planned.values() if isinstance(cell, TrainedCell))

    @property
    def after(self) -> str:
        """The length of the training: "after 3 epochs"."""
        return f"after {count(self.example.epochs, 'epoch')}"

    def describe(
        self,
        runs: DataFrame | None = None,
        *,
        network: bool = False,
        width: bool = True,
        length: bool = True,
        rate: bool = True,
    ) -> str:
        """Describe scale, data set and the settings that matter to a reader, except method and k, and GPU runs.

        Args:
            runs: The runs that are shown; all if None.
            network: Whether to name the network with its width.
            width: Whether to give the width if the network is not named.
            length: Whether to give the number of epochs.
            rate: Whether to give the learning rate.

        """
        cell = self.example
        title = title_of(cell) + ", " if network else f"width {cell.width}, " * width
        epochs = f", {count(cell.epochs, 'epoch')}" if length else ""
        tested = f", tested on {cell.held_out:,} held-out training samples" if cell.held_out else ""
        learning = f", learning rate {rates.describe_rule(cell.optimizer, rates.reference_of(cell))}" if rate else ""
        return (
            f"scale “{cell.scale}”: {catalogue.by_name(cell.dataset).title}, {title}micro-batches of {cell.batch_size}"
            f"{epochs}{learning}, {self.arithmetic}{tested}{_on_gpus(self.runs if runs is None else runs)}"
        )

    @property
    def counted_bytes(self) -> "Series[float]":
        """Peak bytes of the runs by the engine that made most of them, and NaN for the others.

        Two versions of the engine count differently: since 0.2 a pair of stages holds two messages down in lockstep.
        """
        engines = self.done["engine"].mode()
        return self.runs["peak_bytes"].where(self.runs["engine"].isin(engines[:1]))

    def lines(self, *, single: bool = False) -> DataFrame:
        """Return what probes measured in these runs (see `Frames.lines`), joined with the settings of each run."""
        return self._with_settings(self.frames.lines(self.runs["cell"], single=single))

    def parts(self) -> DataFrame:
        """Return bytes, seconds and FLOPs of the stages of these runs, joined with the settings of each run."""
        return self._with_settings(self.frames.parts(self.runs["cell"]))

    def _with_settings(self, frame: DataFrame) -> DataFrame:
        settings = self.runs[["cell", "dataset", "network", "model", "method", "k", "batch_size"]]
        return frame.merge(settings, on="cell", how="left")


def over_training(lines: DataFrame) -> DataFrame:
    """Average each measure over all followed micro-batches of a run, without those that have no value.

    The result has one row per cell, stage and measure, with the further columns of `Frames.lines` or `RunSet.lines`
    except epoch, point and weight.
    """
    kept = [name for name in lines.columns if name not in ("epoch", "point", "weight", "value")]
    return average_over_micro_batches(lines.dropna(subset=["value"]), kept)


def average_over_micro_batches(lines: DataFrame, by: Sequence[str]) -> DataFrame:
    """Average what probes measured (`Frames.lines`, possibly with more columns), weighted by micro-batches.

    The result has one row for every combination of the columns `by`, in order of appearance, with these columns and
    `value`: the mean of the defined values, or NaN if there are none.
    """
    values = lines["value"].astype(float)
    weights = lines["weight"].where(values.notna(), 0.0)
    sums = lines.assign(value=values * weights, weight=weights).groupby(list(by), sort=False, dropna=False)
    means = sums["value"].sum() / sums["weight"].sum()
    return means.rename("value").reset_index()


def _on_gpus(runs: DataFrame) -> str:
    done = runs[runs["status"] == Status.DONE]
    used = Counter(gpus for gpus in done["gpus"] if gpus)
    if not used:
        return ""
    alike = done.groupby(["network", "k", "batch_size", "epochs", "seed"])["gpus"]
    across = "; some compare different devices" * bool((alike.nunique() > 1).any())
    others = len(done) - used.total()
    if not others and len(used) == 1:
        return f"; {count(len(done), 'run')} on {next(iter(used))}{across}"
    devices = [*(f"{amount} on {gpus}" for gpus, amount in used.items()), *([f"{others} on CPUs"] if others else [])]
    return f"; {len(done)} runs: {', '.join(devices)}{across}"


def _table(rows: Sequence[dict[str, Any]]) -> DataFrame:
    """Return the rows as a table whose columns and types do not depend on its content.

    Raises:
        ValueError: A row has an unknown column.

    """
    unknown = {name for row in rows for name in row} - set(RUNS)
    if unknown:
        raise ValueError(f"runs has no column {', '.join(sorted(unknown))}, but {', '.join(RUNS)}")
    table = DataFrame(rows, columns=list(RUNS))
    return table.astype(dict.fromkeys((*_MEASURED, *_TIMED, "final_accuracy"), float))


def _recipe(cell: TrainedCell) -> str:
    shared = {name: value for name, value in cell.to_dict().items() if name not in _VARIED}
    text = json.dumps(shared | {"reference_rate": rates.reference_of(cell)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def _seed_of(cell: Cell) -> int:
    return int(cell.to_dict()["seed"])


def _run(run: Run[Cell]) -> dict[str, Any]:
    cell, result = run.cell, run.result if run.done else {}
    settings = cell.to_dict()
    row: dict[str, Any] = {name: settings.get(name) for name in RUNS if name in settings}
    row |= {"cell": cell.name, "kind": cell.kind, "k": settings.get("accumulation"), "settings": settings_key(cell)}
    row |= {"status": run.state.status.value, "state": str(run.state), "reason": run.state.reason}
    row |= {"detail": run.state.detail, "epochs_done": run.state.epochs_done, "text": run.text, "arithmetic": "float32"}
    row |= {name: result.get(name) for name in (*_MEASURED, *_TIMED)}
    devices = dict.fromkeys(environment.get("device", "cpu") for environment in run.environments)
    gpus = [device for device in devices if device != "cpu"]
    row |= {
        "gpus": conjunction([*gpus, *(["in part on a CPU"] * (bool(gpus) and "cpu" in devices))]),
        "machine": machine_of(run),
    }
    row |= {"traceable": not any(str(code.get("commit")) in LOST for code in run.codes), "study": None}
    if not isinstance(cell, TrainedCell):
        return row | {"network": title_of(cell) if isinstance(cell, MeasuredCell) else ""}
    torchvision = " torchvision" if cell.loader == "torchvision" else ""
    last = run.metrics[-count_averaged_epochs(cell) :] if run.done else ()
    arithmetic = cell.precision + torchvision
    data = f"{catalogue.by_name(cell.dataset).title}{f', text {run.text[:6]}' * bool(run.text)}"
    return row | {
        "engine": "" if not run.done else "0.2" if "observed_staleness" in result else "0.1",
        "network": title_of(cell),
        "optimizer": cell.optimizer,
        "drops": ",".join(map(str, cell.drops)),
        "stages": ",".join(map(str, cell.stages)),
        "staleness": _staleness(cell, result),
        "reference_rate": rates.reference_of(cell),
        "recipe": _recipe(cell),
        "arithmetic": arithmetic,
        "broken": broken(run),
        "final_accuracy": _mean(last, "test_accuracy"),
        "final_loss": _mean(last, "train_loss"),
        "study": f"{title_of(cell)}, {data}, {count(cell.epochs, 'epoch')}, scale “{cell.scale}”, {arithmetic}"
        f"{f', {cell.held_out:,} held-out samples' * bool(cell.held_out)}",
    }


def _staleness(cell: TrainedCell, result: Mapping[str, Any]) -> int | None:
    """Return the staleness of stage 0. None for forward gradients and unfinished runs of a user's network."""
    if isinstance(cell, ForwardGradientCell):
        return None
    if own.is_own(cell.model):  # to count the stages would import the user's module
        return next(iter(result.get("staleness", ())), None)
    return (timing.vector(cell) or (0,))[0]


def _mean(lines: Sequence[dict[str, Any]], name: str) -> float | None:
    values = [float(line[name]) for line in lines if line.get(name) is not None]
    return sum(values) / len(values) if values else None


def machine_of(run: Run[Cell]) -> str:
    """Return the devices of a run, in order, with the version of torch on each."""
    used = [
        f"{hardware(environment)}, torch {environment.get('packages', {}).get('torch', 'unknown')}"
        for environment in run.environments
    ]
    return ", then ".join(dict.fromkeys(used))


def count_averaged_epochs(cell: TrainedCell) -> int:
    """Return the number of last epochs that are averaged: those after the last drop of the rate, at most `AVERAGED`.

    Without drops it is 1.
    """
    return min(AVERAGED, cell.epochs - max(cell.drops)) if cell.drops else 1


def _lines(run: Run[Cell], *, single: bool) -> Iterator[tuple[Any, ...]]:
    if not isinstance(run.cell, TrainedCell):
        return
    cell = run.cell.name, run.cell.seed
    for line in run.metrics:
        points = (line.get("measured_at") if single else None) or ([line] if line.get("probes") else [])
        for number, point in enumerate(points):
            # The micro-batches of an epoch are equally far apart.
            place = line["epoch"] - 1 + (number + 0.5) / len(points)
            head = (*cell, line["epoch"], place, point.get("probes", 1))
            for measure, values in point["measured"].items():
                yield from ((*head, stage, measure, value) for stage, value in enumerate(values))


def _parts(run: Run[Cell]) -> Iterator[tuple[str, int, str, str, float]]:
    cell, result = run.cell, run.result
    if not run.done:
        return
    name = cell.name  # a hash of all settings: computed once per run, not per row
    if isinstance(cell, MemoryCell):
        for row in result["rows"]:
            for item in ("held", "peak", "predicted"):
                yield name, row["stage"], row["kind"], item, row[item]
    elif isinstance(cell, ComplexityCell):
        for row in result["rows"]:
            for kind, value in row.items():
                if kind not in ("stage", "invertible") and value is not None:
                    yield name, row["stage"], kind, "held", value
        for row in result["memory"]:
            for item in ("predicted", "measured"):
                yield name, row["stage"], row["kind"], item, row[item]
    elif isinstance(cell, StageCostCell):
        for row in result["stages"]:
            for item in ("forward", "backward", "update"):
                yield name, row["stage"], "seconds", item, row[item]["median"]
    elif isinstance(cell, TrainedCell):
        for stage, row in enumerate(result.get("stages", ())):
            for kind, value in row.items():
                yield name, stage, kind, "peak", value
