"""Accuracies drawn: every run a dot, every method a line, and the same in words."""

import math
from pathlib import Path
from xml.etree import ElementTree

from petra_core import methods
from reproduce.exhibits import curves
from reproduce.exhibits.experiments import Experiment, experiments
from reproduce.grids.smoke import digits_cell
from reproduce.records import results
from reproduce.show import plots
from tests import fake_records


def experiment(root: Path) -> Experiment:
    for seed in (0, 1):
        for k in (1, 4):
            fake_records.train(digits_cell("revnet18", methods.PETRA, k, seed), root, 90.0 + seed)
        fake_records.train(digits_cell("revnet18", methods.DSP, 1, seed), root, 95.0 + seed)
    fake_records.train(digits_cell("resnet18", methods.DSP, 4), root, 80.0, epochs=1)
    (found,) = experiments(results.read(root).training)
    return found


def test_every_finished_run_is_a_dot(tmp_path: Path) -> None:
    (figure,) = curves.dots(experiment(tmp_path))
    svg = ElementTree.fromstring(figure.svg)
    uses = [element.get("style", "") for element in svg.iter(f"{{{plots.SVG}}}use")]
    assert sum(plots.COLOURS[methods.PETRA] in style for style in uses) == 4
    assert sum(plots.COLOURS[methods.DSP] in style for style in uses) == 2
    assert "6 runs between 90.0 and 96.0 %" in figure.description


def test_without_a_finished_run_there_is_no_picture_of_dots(tmp_path: Path) -> None:
    fake_records.train(digits_cell(), tmp_path, 90.0, epochs=1)
    (found,) = experiments(results.read(tmp_path).training)
    assert list(curves.dots(found)) == []
    assert len(list(curves.lines(found))) == 1  # what there is of it


def test_learning_curves_are_a_figure_a_network_and_say_where_they_end(tmp_path: Path) -> None:
    by_title = {figure.title.rpartition(" of ")[2]: figure for figure in curves.lines(experiment(tmp_path))}
    assert [title.partition(",")[0] for title in by_title] == ["ResNet-18", "RevNet-18"]
    revnet = next(figure for title, figure in by_title.items() if title.startswith("RevNet"))
    assert "k = 1: Delayed gradients + checkpointing (DSP) ends at 95.5 %, PETRA ends at 90.5 %." in revnet.description
    assert "k = 4: PETRA ends at 90.5 %." in revnet.description
    assert len({figure.key for figure in by_title.values()}) == 2
    texts = ["".join(e.itertext()) for e in ElementTree.fromstring(revnet.svg).iter(f"{{{plots.SVG}}}text")]
    assert {"k = 1", "k = 4", "DSP", "PETRA"} <= {text.strip() for text in texts}
    assert math.isfinite(float(ElementTree.fromstring(revnet.svg).get("width", "nan").removesuffix("pt")))
