"""Show the progress of cells: a progress bar on a terminal, plain lines in a log."""

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from torch import Tensor
from tqdm import tqdm

from reproduce.cells.kinds import TrainedCell
from reproduce.measures.context import Observer

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class _Bar:
    """Progress bar that also prints lines. Without a terminal, only the lines are printed."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream or sys.stderr
        self._bar: tqdm[Any] | None = None

    def notice(self, text: str) -> None:
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        else:
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class TrainingBar(_Bar, Observer):
    """Progress of one cell's training: a line for each epoch and, on a terminal, a bar.

    The bar shows the epoch, loss, accuracy, images per second and the remaining time.

    Attributes:
        begun: Whether the cell was run. It stays false if the cell already had a result.

    """

    title = "the progress bar"
    begun = False

    def __init__(self, cell: TrainedCell, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._cell = cell
        self._is_terminal = self._stream.isatty()
        self._accuracy = ""
        self._started = (time.monotonic(), 0)  # time and micro-batch at the start
        self._done = self._total = 0

    def begin(self) -> None:
        self.begun = True

    def tick(self, done: int, total: int, loss: Tensor | None) -> None:
        if self._total == 0:
            self._started = (time.monotonic(), done - 1)
        self._done, self._total = done, total
        if not self._is_terminal:
            return
        batch = self._cell.batch_size * self._cell.replicas
        if self._bar is None:
            start = (done - 1) * batch
            self._bar = tqdm(
                total=total * batch, initial=start, unit=" images", unit_scale=True, file=self._stream, leave=True
            )
        epoch = min((done - 1) * self._cell.epochs // total + 1, self._cell.epochs)
        self._bar.set_description_str(f"epoch {epoch}/{self._cell.epochs}{self._accuracy}", refresh=False)
        if self._bar.update(batch) and loss is not None:  # wait for the GPU only when the bar was redrawn
            self._bar.set_postfix_str(f"loss {loss.item():.4f}", refresh=False)

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        loss = "none yet" if metrics["train_loss"] is None else f"{metrics['train_loss']:.4f}"
        self._accuracy = f", {metrics['test_accuracy']:.2f} %"
        line = (
            f"epoch {metrics['epoch']}/{self._cell.epochs}  loss {loss}  accuracy {metrics['test_accuracy']:.2f} %  "
            f"{metrics['images_per_second']:.0f} images/s  {tqdm.format_interval(self._left())} left"
        )
        self.notice(line)

    def _left(self) -> float:
        moment, start = self._started
        if self._done == start:  # resumed in the evaluation after an epoch
            return 0.0
        return (time.monotonic() - moment) / (self._done - start) * (self._total - self._done)


class GridBar(_Bar):
    """Progress of a grid: number of finished cells, their outcomes, and the cells that are running."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._total = total
        self._finished = 0
        self._running: dict[int, tuple[str, float]] = {}  # worker -> cell, completed fraction
        if self._stream.isatty():
            self._bar = tqdm(
                total=total, file=self._stream, bar_format="{desc} |{bar}| {n:.1f}/{total} cells{postfix}", leave=False
            )

    def show(self, worker: int, cell: str, share: float) -> None:
        self._running[worker] = (cell, share)
        self._draw()

    def finish(self, cell: str, outcome: str, *, worker: int | None) -> None:
        """Report that a cell has ended. `worker` is None if it was finished before the run."""
        self._finished += 1
        if worker is not None:
            self._running.pop(worker, None)
            self.notice(f"[{self._finished:>{len(str(self._total))}}/{self._total}] {cell}: {outcome}")
        self._draw()

    def _draw(self) -> None:
        if self._bar is not None:
            self._bar.n = self._finished + sum(share for _, share in self._running.values())
            self._bar.set_postfix_str(", ".join(cell for cell, _ in self._running.values()))


class EventFiles(Observer):
    """Write the metrics of every epoch as TensorBoard scalars. The folder is created at the first epoch."""

    title = "--tensorboard"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: SummaryWriter | None = None

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter  # takes a second

            self._writer = SummaryWriter(str(self._folder))
        for name, value in metrics.items():
            if name != "epoch" and isinstance(value, int | float):  # values per stage are not scalars
                self._writer.add_scalar(name, value, metrics["epoch"])
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class Observers(Observer):
    """Forward reports to several observers. An observer that fails is dropped with a notice, and the run continues."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = list(observers)

    def _tell(self, report: Callable[[Observer], None]) -> None:
        for observer in list(self._observers):
            try:
                report(observer)
            except Exception as error:
                self._observers.remove(observer)
                self.notice(f"WARNING: {observer.title} ends here ({type(error).__name__}: {error}); the run continues")

    def begin(self) -> None:
        self._tell(lambda observer: observer.begin())

    def tick(self, done: int, total: int, loss: Tensor | None) -> None:
        self._tell(lambda observer: observer.tick(done, total, loss))

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        self._tell(lambda observer: observer.epoch(metrics))

    def notice(self, text: str) -> None:
        self._tell(lambda observer: observer.notice(text))

    def close(self) -> None:
        self._tell(lambda observer: observer.close())
