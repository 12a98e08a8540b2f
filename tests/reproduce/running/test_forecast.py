"""The time left of a grid: by cells of the same kind, and no more than is known."""

import io
import threading

from petra_core import methods
from reproduce.grids.smoke import digits_cell
from reproduce.records.record import State, Status
from reproduce.records.speed import alike
from reproduce.running.forecast import Forecast
from reproduce.running.progress import GridBar
from reproduce.running.runner import Outcome, _Listener
from reproduce.running.worker import Settings


class Watch:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_cells_that_differ_are_told_apart() -> None:
    watch = Watch()
    forecast = Forecast(["short", "short", "long", "long"], [0.0] * 4, 1, now=watch)
    assert forecast.words() == ""
    forecast.at(0, 0.0)
    watch.seconds += 10
    forecast.end(0, whole=True)
    assert forecast.words() == "at least 0:10 left"  # of the short one; of the long ones nothing is known
    forecast.at(2, 0.0)
    watch.seconds += 30
    forecast.at(2, 0.25)
    assert forecast.words() == "3:40 left"  # 10 + 90 + 120
    forecast.end(2, whole=True)  # faster than it began
    assert forecast.words() == "0:40 left"


def test_workers_share_what_is_left() -> None:
    watch = Watch()
    forecast = Forecast(["one"] * 4, [0.0] * 4, 2, now=watch)
    forecast.at(0, 0.0)
    forecast.at(1, 0.0)
    watch.seconds += 60
    forecast.at(0, 0.5)
    forecast.at(1, 0.5)
    assert forecast.words() == "3:00 left"
    forecast.end(0, whole=True)
    forecast.end(1, whole=True)
    forecast.at(2, 0.0)
    forecast.end(2, whole=True)
    assert forecast.words() == "0:40 left"  # one worker has nothing to do; three took 120 seconds
    forecast.end(3, whole=True)
    assert forecast.words() == ""


def test_what_was_done_before_counts_neither_as_done_now_nor_as_left() -> None:
    watch = Watch()
    forecast = Forecast(["one", "one"], [0.5, 0.75], 1, now=watch)
    forecast.at(0, 0.0)
    watch.seconds += 20
    forecast.end(0, whole=True)
    assert forecast.words() == "0:10 left"


def test_a_cell_that_broke_off_says_nothing_of_others() -> None:
    watch = Watch()
    forecast = Forecast(["one"] * 3, [0.0] * 3, 1, now=watch)
    forecast.at(0, 0.0)
    watch.seconds += 1
    forecast.end(0, whole=False)
    forecast.end(1, whole=True)  # by another command
    assert forecast.words() == ""


def test_cells_of_one_kind() -> None:
    cell = digits_cell("revnet18", methods.PETRA, 1)
    assert alike(cell) == alike(digits_cell("revnet18", methods.PETRA, 4, seed=1))
    others = [digits_cell("revnet18", methods.DSP, 1), digits_cell("resnet18", methods.PETRA, 1)]
    others += [digits_cell("revnet18", methods.PETRA, 1, **change) for change in ({"epochs": 9}, {"batch_size": 48})]
    assert alike(cell) not in map(alike, others)


def test_what_was_recorded_before_is_believed_until_this_run_knows_better() -> None:
    watch = Watch()
    forecast = Forecast(["short", "long", "long"], [0.0, 0.0, 0.5], 1, {"short": 10.0, "long": 100.0}, now=watch)
    assert forecast.words() == "2:40 left"
    forecast.at(1, 0.0)
    watch.seconds += 20
    forecast.at(1, 0.5)  # 40 seconds a cell
    assert forecast.words() == "0:50 left"


def test_the_grid_tells_the_time_left_by_what_was_recorded_before(tmp_path) -> None:
    cells = [digits_cell(), digits_cell(seed=1), digits_cell("resnet18", methods.PETRA, 1)]
    outcome = Outcome(states={cell: State(Status.NOT_RUN, epochs=cell.epochs_expected) for cell in cells})
    bar = GridBar(len(cells), io.StringIO())
    _Listener(cells, Settings(tmp_path, jobs=2, expected={cells[0].name: 60.0}), outcome, bar, threading.Event())
    assert bar.left() == "at least 1:00 left"  # seed 1 takes as long; of ResNet-18 nothing is known
    bar.close()
