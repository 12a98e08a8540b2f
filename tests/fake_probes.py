"""Write records of cells with a probe, with made-up measures, for tests of their readers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from reproduce.cells.kinds import GradientsCell, ReconstructionCell, TrainedCell
from reproduce.data.manifest import built_in
from reproduce.measures.gradient_quality import MEASURES, PAIRS
from reproduce.measures.reconstruction import CAUSES, TENSORS
from reproduce.records.record import Record
from tests import fake_records

#: (a/b or cause, measure or stream, stage, epoch) -> value
Value = Callable[[str, str, int, int], float | None]

KEYS: dict[type[TrainedCell], list[tuple[str, str]]] = {
    GradientsCell: [(f"{a}/{b}", measure) for a, b in PAIRS for measure in MEASURES],
    ReconstructionCell: [(cause, tensor) for cause in CAUSES for tensor in TENSORS],
}


def stages_of(cell: TrainedCell) -> int:
    """Return J of the networks of these tests."""
    return 10 if cell.model == "revnet18" else int(cell.model.removeprefix("chain")) + 2


def end(record: Record, accuracy: float) -> None:
    """Add a result to a record with all epochs."""
    data = built_in(record.cell.dataset)  # type: ignore[attr-defined]  # the cell is trained
    fake_records.finish(record, accuracy, parameters=1000, micro_batches=100, evaluation_seconds=0.1, data=data)


def train(cell: TrainedCell, root: Path, accuracy: float, loss: float | None = 0.5) -> Record:
    """Write a finished record without a probe, with this accuracy and loss in all epochs."""
    record = fake_records.begin(cell, root)
    for epoch in range(1, cell.epochs + 1):
        record.append({"epoch": epoch, "train_loss": loss, "test_accuracy": accuracy})
    end(record, accuracy)
    return record


def measure(
    cell: TrainedCell,
    root: Path,
    value: Value,
    *,
    epochs: int | None = None,
    accuracy: float = 80.0,
    probes: int = 5,
    singly: bool = False,
) -> Record:
    """Write a record that is finished, or left after `epochs` epochs.

    Args:
        cell: Cell of the record.
        root: Folder of the records.
        value: Measured value.
        epochs: Number of finished epochs; None for all.
        accuracy: Accuracy of every epoch in percent.
        probes: Number of followed micro-batches per epoch.
        singly: Whether to store single micro-batches, as today's records do. Their values are spread around the mean.

    Returns:
        The record.

    """
    record = fake_records.begin(cell, root)
    for epoch in range(1, (cell.epochs if epochs is None else epochs) + 1):
        measured = {
            f"{left}/{right}": [value(left, right, stage, epoch) for stage in range(stages_of(cell))]
            for left, right in KEYS[type(cell)]
        }
        line: dict[str, Any] = {"epoch": epoch, "train_loss": 0.5, "test_accuracy": accuracy}
        line |= {"probes": probes, "measured": measured}
        if singly:
            line["measured_at"] = [
                {
                    "micro_batch": ((epoch - 1) * probes + number) * cell.probe_every,  # type: ignore[attr-defined]  # of a probed cell
                    "measured": {
                        key: [None if v is None else v + (number - (probes - 1) / 2) * 0.001 for v in of_stages]
                        for key, of_stages in measured.items()
                    },
                }
                for number in range(probes)
            ]
        record.append(line)
    if epochs is None:
        end(record, accuracy)
    return record
