"""All records as long tables, made in one place: what every exhibit reads.

The obvious way to fill a table is to filter records: model RevNet-18, method PETRA, k = 4. It shows whatever matches, a
run with another learning rate or length included, and what was not run is not there at all. Here an exhibit asks for
the cells of its plan, with every setting, and gets a row for each: run over whatever seeds, or not run.

    runs     a row a cell, recorded or only planned; columns RUNS
    lines    cell x point of training x stage x measure -> value; columns LINES (what probes measured)
    parts    cell x stage x kind x of -> value; columns PARTS (bytes by what they are for, seconds, FLOPs)
    series   benchmark x group x contestant x quantity x at x round -> value; columns SERIES
    history  machine x figure x method x setting x commit -> value; columns HISTORY (what asv counted)

`Frames.sheets` gives the runs of planned cells, split as they may be compared: a scale, an arithmetic, a
data set that is trained on, a text.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pandas import DataFrame

from petra_core.files import replacing
from reproduce.cells import catalogue, rates, timing
from reproduce.cells.base import Cell
from reproduce.cells.kinds import (
    ComplexityCell,
    ForwardGradientCell,
    MeasuredCell,
    MemoryCell,
    StageCostCell,
    TrainedCell,
)
from reproduce.cells.networks import title_of
from reproduce.forward_gradients import settings as forward
from reproduce.records.broken import broken
from reproduce.records.lost_commits import LOST
from reproduce.records.record import State, Status
from reproduce.records.results import Results, Run
from reproduce.records.storage import explain_full_disk
from reproduce.show.statistics import ResidualStudy, pool
from reproduce.words import conjunction, count

#: Columns of `runs`, of cells that train; of others those that they have.
RUNS = (
    *("cell", "kind", "scale", "dataset", "image_size", "model", "stem", "width", "coupling", "network", "method", "k"),
    *("batch_size", "epochs", "warmup_epochs", "learning_rate", "reference_rate", "optimizer", "seed"),
    *("forward_weights", "correction", "correction_value", "timing", "stages", "staleness"),
    *(*forward.AXES, "auxiliary"),
    *("precision", "loader", "arithmetic", "settings", "recipe", "text"),
    *("status", "state", "reason", "detail", "broken", "epochs_done"),
    *("test_accuracy", "best_test_accuracy", "final_accuracy", "test_bits_per_byte", "train_loss", "final_loss"),
    *("peak_bytes", "train_seconds", "images_per_second", "micro_batches", "gpus", "machine", "traceable", "study"),
)
LINES = ("cell", "seed", "epoch", "point", "weight", "stage", "measure", "value")
PARTS = ("cell", "stage", "kind", "of", "value")
HISTORY = ("machine", "figure", "method", "setting", "date", "commit", "value")
SERIES = ("benchmark", "group", "contestant", "quantity", "unit", "at", "round", "value")

#: What runs of one recipe may differ in; the learning rate as it follows from k.
_VARIED = ("model", "stem", "width", "coupling", "method", "accumulation", "seed", "learning_rate", "timing", "stages")
#: How far a record is, the least first.
_ORDER = (Status.NOT_RUN.value, Status.PARTIAL.value, Status.FAILED.value, Status.DONE.value)
_MEASURED = ("test_accuracy", "best_test_accuracy", "test_bits_per_byte", "train_loss", "peak_bytes")
_TIMED = ("train_seconds", "images_per_second", "micro_batches")
AVERAGED = 10  # the last epochs over which an accuracy or a loss is averaged, as in the paper's Figure 4
#: Columns whose spread over seeds is shared within a study.
SPREAD = ("test_accuracy", "best_test_accuracy", "final_accuracy", "final_loss", "test_bits_per_byte")


def settings_key(cell: Cell) -> str:
    """The configuration less what may be chosen to fit a machine (loader, precision) and less the seed."""
    return cell.less("seed", "loader", "precision")


@dataclass(frozen=True)
class Frames:
    """The tables of everything under one root."""

    results: Results  # the records that they are made from
    #: Sheets by the name of their plan, as far as they have been asked for.
    by_plan: dict[str, list["Sheet"]] = field(default_factory=dict, compare=False, repr=False)

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
        """The studies by their titles, with the spread of what all sound runs reached."""
        studies = {}
        done = [row for row in self._of_results if row["status"] == Status.DONE.value]
        rows = [row for row in done if row["study"] and not row["broken"]]
        for title in dict.fromkeys(row["study"] for row in rows):
            study = studies[title] = ResidualStudy(title)
            for column in SPREAD:
                settings: dict[str, list[float]] = {}
                for row in rows:
                    if row["study"] == title and row[column] is not None:
                        settings.setdefault(row["settings"], []).append(row[column])
                if spread := pool(settings.values()):
                    study.spreads[column] = spread
        return studies

    @cached_property
    def by_name(self) -> dict[str, Run[Cell]]:
        return {run.cell.name: run for run in self.results.runs}

    def lines(self, cells: Iterable[str], *, single: bool = False) -> DataFrame:
        """What probes measured in these cells: means of epochs, or where records have them `single` micro-batches."""
        rows = [line for run in self._recorded(cells) for line in _lines(run, single=single)]
        return DataFrame.from_records(rows, columns=list(LINES))

    def epochs(self, cells: Iterable[str]) -> DataFrame:
        """A row an epoch of these cells: cell, seed, epoch, test_accuracy (percent)."""
        rows = [
            (run.cell.name, _seed(run.cell), line["epoch"], line["test_accuracy"])
            for run in self._recorded(cells)
            for line in run.metrics
        ]
        return DataFrame.from_records(rows, columns=["cell", "seed", "epoch", "test_accuracy"])

    def parts(self, cells: Iterable[str]) -> DataFrame:
        """Bytes, seconds and FLOPs of the stages of these cells."""
        rows = [part for run in self._recorded(cells) for part in _parts(run)]
        return DataFrame.from_records(rows, columns=list(PARTS))

    def _recorded(self, cells: Iterable[str]) -> Iterator[Run[Cell]]:
        """The records of these cells; of planned ones there may be none."""
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

    @cached_property
    def history(self) -> DataFrame:
        """A row a value that asv counted; `at`: number of the commit on its machine, `ratio`: to the first value."""
        rows = DataFrame([vars(tracked) for tracked in self.results.history], columns=list(HISTORY))
        commits = rows.drop_duplicates(["machine", "commit"])
        rows = rows.merge(commits[["machine", "commit"]].assign(at=commits.groupby("machine").cumcount() + 1))
        same = rows.groupby(["machine", "figure", "method", "setting"])["value"]
        return rows.assign(before=same.shift(), ratio=rows["value"] / same.transform("first"))

    def export(self, folder: Path) -> Iterator[Path]:
        """Write every table as a CSV file into a folder that is made if need be; yields the files.

        Raises: StorageFullError: no room.
        """
        names = list(self.by_name)
        tables = {
            "runs": self.runs.drop(columns="settings"),
            "epochs": self.epochs(names),
            "lines": self.lines(names),
            "parts": self.parts(names),
            "series": self.series,
            "history": self.history,
        }
        with explain_full_disk(f"to write {folder}", "free some space and give the same command again"):
            folder.mkdir(parents=True, exist_ok=True)
            for name, table in tables.items():
                with replacing(folder / f"{name}.csv") as file:
                    file.write(table.to_csv(index=False).encode())
                yield folder / f"{name}.csv"

    def sheets(self, scale: str, cells: Sequence[Cell]) -> Iterator["Sheet"]:
        """The runs of these cells of one scale, by data set, arithmetic and text; what has not begun is a sheet too.

        Where no cell trains, a data set is the shape of images and no more, and all stand in one sheet.
        """
        trains = any(isinstance(cell, TrainedCell) for cell in cells)
        datasets = [getattr(cell, "dataset", "") if trains else "" for cell in cells]
        for dataset in dict.fromkeys(datasets):
            planned = {(settings_key(c), _seed(c)): c for c, of in zip(cells, datasets, strict=True) if of == dataset}
            keys = dict.fromkeys(key for key, _ in planned)
            begun = [row for key in keys for row in self._begun.get(key, ())]
            for arithmetic in sorted({row["arithmetic"] for row in begun}, reverse=True) or ["float32"]:
                runs = [row for row in begun if row["arithmetic"] == arithmetic]
                # What has not ended has no text yet, and stands with every one.
                for text in sorted({row["text"] for row in runs} - {""}) or [""]:
                    rows = {place: _planned(cell, arithmetic) for place, cell in planned.items()}
                    rows = {place: row | {"study": self.studies.get(row["study"])} for place, row in rows.items()}
                    for row in sorted(runs, key=lambda row: _ORDER.index(row["status"])):
                        if row["text"] in (text, ""):
                            rows[row["settings"], row["seed"]] = row
                    places = list(keys)
                    in_order = [rows[place] for place in sorted(rows, key=lambda p: (places.index(p[0]), p[1]))]
                    yield Sheet(self, scale, arithmetic, dataset, text, tuple(planned.values()), _table(in_order))

    @cached_property
    def _begun(self) -> dict[str, list[dict[str, Any]]]:
        rows: dict[str, list[dict[str, Any]]] = {}
        for row in self._rows:
            if row["status"] != Status.NOT_RUN.value:
                rows.setdefault(row["settings"], []).append(row)
        return rows


@dataclass(frozen=True)
class Sheet:
    """The runs of a plan that may stand in one table."""

    frames: Frames
    scale: str
    arithmetic: str  # the precision, and whether the images are torchvision's; other loaders give the same bits
    dataset: str  # name of the data set that is trained on; empty for what trains on none
    text: str  # SHA-256 of the text that was trained on; empty for images
    planned: tuple[Cell, ...]
    #: A row for each and for every further seed that was run, in the order of the plan, then by seed; what was
    #: not run is a row that says so.
    runs: DataFrame

    @property
    def begun(self) -> bool:
        return bool((self.runs["status"] != Status.NOT_RUN.value).any())

    @property
    def done(self) -> DataFrame:
        return self.runs[self.runs["status"] == Status.DONE.value]

    @property
    def key(self) -> str:
        """For anchors: the scale, and what else tells sheets of one data set apart."""
        arithmetic = "" if self.arithmetic == "float32" else f"-{self.arithmetic}".replace(" ", "-")
        return self.scale + arithmetic + (f"-{self.text[:6]}" if self.text else "")

    @property
    def example(self) -> TrainedCell:
        return next(cell for cell in self.planned if isinstance(cell, TrainedCell))

    @property
    def after(self) -> str:
        """The length of the training: "after 3 epochs"."""
        return f"after {count(self.example.epochs, 'epoch')}"

    def described(
        self,
        runs: DataFrame | None = None,
        *,
        network: bool = False,
        width: bool = True,
        length: bool = True,
        rate: bool = True,
    ) -> str:
        """Scale, data set and the settings that matter to a reader, in words, less method and k; which runs used a GPU.

        `runs` are those that are shown, all unless given. `network` names the network with its width, `width` the width
        where the network is not named.
        """
        cell = self.example
        title = title_of(cell) + ", " if network else f"width {cell.width}, " * width
        epochs = f", {count(cell.epochs, 'epoch')}" if length else ""
        learning = f", learning rate {rates.described(cell.optimizer, rates.reference_of(cell))}" if rate else ""
        return (
            f"scale “{cell.scale}”: {catalogue.by_name(cell.dataset).title}, {title}micro-batches of {cell.batch_size}"
            f"{epochs}{learning}, {self.arithmetic}{_on_gpus(self.runs if runs is None else runs)}"
        )

    def lines(self, *, single: bool = False) -> DataFrame:
        """What probes measured in these runs (see `Frames.lines`), with the settings of each run beside it."""
        return self._with_settings(self.frames.lines(self.runs["cell"], single=single))

    def parts(self) -> DataFrame:
        """Bytes, seconds and FLOPs of the stages of these runs, with the settings of each run beside them."""
        return self._with_settings(self.frames.parts(self.runs["cell"]))

    def _with_settings(self, frame: DataFrame) -> DataFrame:
        settings = self.runs[["cell", "dataset", "network", "model", "method", "k", "batch_size"]]
        return frame.merge(settings, on="cell", how="left")


def over_training(lines: DataFrame) -> DataFrame:
    """The mean of each measure over all micro-batches of a run that were followed, those without a value left out.

    A row a cell, stage and measure, with the further columns of `Frames.lines` or `Sheet.lines` less epoch, point and
    weight.
    """
    kept = [name for name in lines.columns if name not in ("epoch", "point", "weight", "value")]
    return weighted(lines.dropna(subset=["value"]), kept)


def weighted(lines: DataFrame, by: Sequence[str]) -> DataFrame:
    """The means of what probes measured (`Frames.lines`, with more columns perhaps), weighed by micro-batches.

    A row for every combination of the columns `by`, in the order in which they come, with these columns and `value`:
    the mean of what is defined, NaN where nothing is.
    """
    values = lines["value"].astype(float)
    weights = lines["weight"].where(values.notna(), 0.0)
    sums = lines.assign(value=values * weights, weight=weights).groupby(list(by), sort=False, dropna=False)
    means = sums["value"].sum() / sums["weight"].sum()
    return means.rename("value").reset_index()


def _on_gpus(runs: DataFrame) -> str:
    done = runs[runs["status"] == Status.DONE.value]
    used = Counter(gpus for gpus in done["gpus"] if gpus)
    if not used:
        return ""
    alike = done.groupby(["network", "k", "batch_size", "epochs", "seed"])["gpus"]
    across = ", some pairs across devices" * bool((alike.nunique() > 1).any())
    said = ", ".join(f"{amount} on {gpus}" for gpus, amount in used.items())
    return f", of {count(len(done), 'run')} {said}{across}"


def _table(rows: Sequence[dict[str, Any]]) -> DataFrame:
    """The rows as a table whose columns and types are the same whatever is in it.

    Raises: ValueError: a row has something that is no column.
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


def _seed(cell: Cell) -> int:
    return int(cell.to_dict()["seed"])


def _planned(cell: Cell, arithmetic: str) -> dict[str, Any]:
    state = State(Status.NOT_RUN, epochs=cell.epochs_expected)
    return _run(Run(cell, state, {}, (), (), (), {})) | {"arithmetic": arithmetic}


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
    row |= {"gpus": conjunction([*gpus, *(["a CPU"] * (bool(gpus) and "cpu" in devices))]), "machine": _machine(run)}
    row |= {"traceable": not any(str(code.get("commit")) in LOST for code in run.codes), "study": None}
    if not isinstance(cell, TrainedCell):
        return row | {"network": title_of(cell) if isinstance(cell, MeasuredCell) else ""}
    torchvision = " torchvision" if cell.loader == "torchvision" else ""
    last = run.metrics[-averaged(cell) :] if run.done else ()
    arithmetic = cell.precision + torchvision
    data = f"{catalogue.by_name(cell.dataset).title}{f', text {run.text[:6]}' * bool(run.text)}"
    return row | {
        "network": title_of(cell),
        "optimizer": cell.optimizer,
        "stages": ",".join(map(str, cell.stages)),
        "staleness": None if isinstance(cell, ForwardGradientCell) else (timing.vector(cell) or (0,))[0],
        "reference_rate": rates.reference_of(cell),
        "recipe": _recipe(cell),
        "arithmetic": arithmetic,
        "broken": broken(run),
        "final_accuracy": _mean(last, "test_accuracy"),
        "final_loss": _mean(last, "train_loss"),
        "study": f"{title_of(cell)}, {data}, {count(cell.epochs, 'epoch')}, scale “{cell.scale}”, {arithmetic}",
    }


def _mean(lines: Sequence[dict[str, Any]], name: str) -> float | None:
    values = [float(line[name]) for line in lines if line.get(name) is not None]
    return sum(values) / len(values) if values else None


def _machine(run: Run[Cell]) -> str:
    """The devices on which a run was made, in their order, with the version of torch on each."""
    used = [
        f"{environment.get('processor', 'CPU') if (device := environment.get('device', 'cpu')) == 'cpu' else device}, "
        f"torch {environment.get('packages', {}).get('torch', 'unknown')}"
        for environment in run.environments
    ]
    return ", then ".join(dict.fromkeys(used))


def averaged(cell: TrainedCell) -> int:
    """Return the number of last epochs that are averaged: 10 as in the paper's Figure 4, or all after the last drop."""
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
    name = cell.name  # a hash of all settings: once a run, not once a row
    if isinstance(cell, MemoryCell):
        for row in result["rows"]:
            for of in ("held", "peak", "predicted"):
                yield name, row["stage"], row["kind"], of, row[of]
    elif isinstance(cell, ComplexityCell):
        for row in result["rows"]:
            for kind, value in row.items():
                if kind not in ("stage", "invertible") and value is not None:
                    yield name, row["stage"], kind, "held", value
        for row in result["memory"]:
            for of in ("predicted", "measured"):
                yield name, row["stage"], row["kind"], of, row[of]
    elif isinstance(cell, StageCostCell):
        for row in result["stages"]:
            for of in ("forward", "backward", "update"):
                yield name, row["stage"], "seconds", of, row[of]["median"]
    elif isinstance(cell, TrainedCell):
        for stage, row in enumerate(result.get("stages", ())):
            for kind, value in row.items():
                yield name, stage, kind, "peak", value
