"""The runs behind one table, looked up by the very cells that the table lays out.

The obvious way to fill a table is to filter the records: model RevNet-18, method PETRA, k = 4. It shows whatever
matches, a run with another learning rate or length included. Here a table asks for the cell that it means, with every
setting, and gets the runs of that cell over its seeds, or none. Only two settings may be chosen to fit a machine: the
loader, and the precision. Runs in different precision never stand in one column either, so each has a sheet of its own.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from petra_core import methods
from reproduce.cells import catalogue, rates
from reproduce.cells.kinds import Cell, TrainedCell, TrainingCell
from reproduce.exhibits.experiments import Group, Network
from reproduce.records.record import Status
from reproduce.records.results import Results, Run
from reproduce.show.content import Entry, estimate, missing, with_sign
from reproduce.show.content import verdict as verdict_entry
from reproduce.show.statistics import Judgement, Verdict
from reproduce.show.statistics import estimate as mean_of
from reproduce.words import count

KeyT = TypeVar("KeyT")
CHANCE = "\N{DAGGER}"  # beside a verdict that does not survive Holm's correction
DIFFERENCES = (
    "Differences are in points of accuracy, paired over the seeds that both have finished; a run that failed is told "
    "beside the number of seeds and enters neither mean nor difference."
)


@dataclass(frozen=True)
class Sheet:
    """The runs of an exhibit at one scale, in one arithmetic.

    Attributes:
        scale: name of the scale.
        arithmetic: see `arithmetic`.
        groups: the runs of a cell over its seeds, by its settings.

    """

    scale: str
    arithmetic: str
    groups: Mapping[str, Group]

    def group(self, cell: TrainedCell) -> Group:
        """The runs of this cell over all seeds, whatever its own seed, loader and precision; maybe none."""
        return self.groups.get(settings_key(cell), Group(()))

    @property
    def runs(self) -> list[Run[TrainingCell]]:
        """All of them."""
        return [run for group in self.groups.values() for run in group.runs]

    def begun(self, cells: Iterable[TrainedCell]) -> bool:
        """Whether there is a record of any of these cells."""
        return any(run.state.status is not Status.NOT_RUN for cell in cells for run in self.group(cell).runs)

    @property
    def key(self) -> str:
        """For anchors."""
        return self.scale if self.arithmetic == "float32" else f"{self.scale}-{self.arithmetic}".replace(" ", "-")

    @property
    def progress(self) -> str:
        """How many runs are finished."""
        return f"{sum(run.done for run in self.runs)} of {count(len(self.runs), 'run')} finished"


def sheets(results: Results, scale: str, cells: Iterable[Cell]) -> list[Sheet]:
    """The training runs of an exhibit's cells; one sheet for each arithmetic in which any has begun, maybe none."""
    laid_out = dict.fromkeys(settings_key(cell) for cell in cells if isinstance(cell, TrainingCell))
    found: dict[str, dict[str, list[Run[TrainingCell]]]] = {}
    for run in results.training:
        key = settings_key(run.cell)
        if key in laid_out:
            found.setdefault(arithmetic(run.cell), {}).setdefault(key, []).append(run)
    return [
        Sheet(scale, name, {key: Group(_one_a_seed(by_key[key])) for key in laid_out if key in by_key})
        for name, by_key in sorted(found.items(), reverse=True)  # tf32, float32, bf16
        if any(run.state.status is not Status.NOT_RUN for runs in by_key.values() for run in runs)
    ]


def settings_key(cell: Cell) -> str:
    """The configuration less seed, loader and precision."""
    apart = ("seed", "loader", "precision")
    return json.dumps({name: value for name, value in cell.to_dict().items() if name not in apart}, sort_keys=True)


def arithmetic(cell: TrainedCell) -> str:
    """The precision, and whether the images are torchvision's; of the other two loaders they are the same bits."""
    return cell.precision + (" torchvision" if cell.loader == "torchvision" else "")


def described(cell: TrainedCell, *, network: bool = False, width: bool = True, length: bool = True) -> str:
    """The settings that matter to a reader, in words, less method and k.

    Args:
        cell: the settings.
        network: whether to name the network with its width.
        width: whether to name the width if not the network.
        length: whether to name the number of epochs.

    """
    title = Network(cell.model, cell.stem, cell.width).title + ", " if network else f"width {cell.width}, " * width
    epochs = f"{count(cell.epochs, 'epoch')}, " if length else ""
    return (
        f"scale “{cell.scale}”: {catalogue.by_name(cell.dataset).title}, {title}micro-batches of {cell.batch_size}, "
        f"{epochs}learning rate {rates.described(cell.optimizer, rates.reference_of(cell))}"
    )


def _one_a_seed(runs: Sequence[Run[TrainingCell]]) -> tuple[Run[TrainingCell], ...]:
    """By seed; of several with the same bits (from different loaders) the one that is furthest."""
    order = (Status.NOT_RUN, Status.PARTIAL, Status.FAILED, Status.DONE)
    furthest = {run.cell.seed: run for run in sorted(runs, key=lambda run: order.index(run.state.status))}
    return tuple(furthest[seed] for seed in sorted(furthest))


# --- entries


def accuracy_entry(group: Group, name: str = "test_accuracy") -> Entry:
    """Mean ± half the interval and the number of seeds; without any, how far the runs are."""
    return mean_entry(group, group.values(name))


def mean_entry(group: Group, values: Mapping[int, float]) -> Entry:
    """The same of a measure that is not in the results, by seed."""
    if not values:
        return missing(group.summary, group.unfinished)
    found = mean_of(list(values.values()))
    shown = estimate(found, 2)
    failed = [run.state.reason for run in group.runs if run.state.status is Status.FAILED]
    seeds = str(found.n) if found.n == len(group.runs) else f"{found.n} of {len(group.runs)}"
    words = "; ".join([seeds, *(f"{failed.count(reason)} {reason}" for reason in dict.fromkeys(failed))])
    return Entry(f"{shown.text} ({words})", found.mean, shown.tone, group.unfinished or shown.hint)


def judged_entries(judgement: Judgement, *, digits: int = 2) -> list[Entry]:
    """A difference and its verdict, with a dagger where it does not survive Holm's correction."""
    if judgement.difference is None:
        return [missing("no pair", "no seed with which both are finished"), missing("")]
    shown = verdict_entry(judgement.verdict)
    if judgement.verdict is Verdict.DIFFER:
        hint = f"p = {judgement.corrected:.2g} after Holm's correction"
        shown = Entry(shown.text + ("" if judgement.stands else f" {CHANCE}"), shown.text, shown.tone, hint)
    difference = estimate(judgement.difference, digits, sign=True)
    return [Entry(difference.text, difference.value, difference.tone, f"n = {judgement.difference.n}"), shown]


def counted(judgements: Mapping[Any, Judgement]) -> str:
    """How many comparisons, how many of each verdict, and how many survive; empty if there are none."""
    made = [j for j in judgements.values() if j.difference is not None]
    if not made:
        return ""
    verdicts = [j.verdict for j in made]
    words = ", ".join(f"{v.value} {verdicts.count(v)}" for v in Verdict if v in verdicts)
    differ = verdicts.count(Verdict.DIFFER)
    stand = f" ({sum(j.stands for j in made)} after Holm's correction)" if differ and len(made) > 1 else ""
    return f"{count(len(made), 'comparison')}: {words}{stand}"


def told(judgements: Mapping[Any, Judgement]) -> str:
    """The same, and how large the differences of accuracy are; empty if there are none."""
    means = sorted(j.difference.mean for j in judgements.values() if j.difference is not None)
    if not means:
        return ""
    low, high = (with_sign(mean, 1) for mean in (means[0], means[-1]))
    return f"{counted(judgements)}, {f'mean {low}' if low == high else f'means from {low} to {high}'} points"


def family_note(judgements: Mapping[Any, Judgement]) -> str:
    """What the number of comparisons in a table means for its verdicts."""
    words = counted(judgements)
    if not words:
        return "No comparison can be made yet."
    return (
        f"{words}. A verdict is of one comparison by itself, and one in twenty such intervals excludes 0 though "
        f"nothing differs; {CHANCE}: does not survive Holm's correction for all comparisons of the table."
    )


def data(groups: Iterable[Group]) -> Iterator[dict[str, object]]:
    """One line a run: what a reader needs to do the statistics anew."""
    for group in groups:
        for run in group.runs:
            cell, result = run.cell, run.result
            yield {
                "scale": cell.scale,
                "dataset": cell.dataset,
                "model": cell.model,
                "width": cell.width,
                "method": methods.by_name(cell.method).name,
                "k": cell.accumulation,
                "batch_size": cell.batch_size,
                "precision": cell.precision,
                "seed": cell.seed,
                "state": str(run.state),
                "test_accuracy": result.get("test_accuracy", ""),
                "best_test_accuracy": result.get("best_test_accuracy", ""),
                "peak_bytes": result.get("peak_bytes", ""),
                "cell": cell.name,
            }
