"""The numbers of docs/first_run.md are those of the committed records; `python -m tests.test_first_run` writes them."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from petra_core.staleness import lockstep
from reproduce.cells import networks, timing
from reproduce.cells.kinds import TrainedCell
from reproduce.cells.rates import learning_rate as rate_of_recipe
from reproduce.records.record import scan
from reproduce.records.run import Run, Status
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "first_run.md"
BLOCK = re.compile(r"(<!-- (\w+): written by `python -m tests\.test_first_run` -->\n).*?(<!-- \2: end -->)", re.S)
MINUS = "\N{MINUS SIGN}"
BACKPROPAGATION = "BACKPROPAGATION"


@cache
def all_runs() -> tuple[Run[TrainedCell], ...]:
    """Return the training runs of the scale `small` on CIFAR-10 that ended: finished or diverged."""
    found = (run for run in scan(ROOT / "reports" / "records").records if run.cell.kind == "training")
    found = (run for run in found if run.state.status in (Status.DONE, Status.FAILED))
    return tuple(run for run in found if (run.cell.scale, run.cell.dataset) == ("small", "cifar10"))


def runs(**settings: Any) -> dict[int, Run[TrainedCell]]:
    """Return the runs with these settings by seed; SGD at the rate of the rule, without delay compensation."""
    usual = {"optimizer": "sgd", "forward_weights": "current", "correction": "none", "timing": "lockstep", "stages": ()}
    wanted = {**usual, **settings}
    ruled = "learning_rate" not in settings
    return {
        run.cell.seed: run
        for run in all_runs()
        if all(getattr(run.cell, name) == value for name, value in wanted.items())
        and not (ruled and run.cell.learning_rate != rate_of_recipe(run.cell.batch_size, run.cell.accumulation))
    }


def result(run: Run[TrainedCell]) -> float | None:
    """Return the test accuracy in percent; None if the run diverged."""
    return float(run.result["test_accuracy"]) if run.done else None


def compared(method: str, other: dict[str, Any] | None = None, **settings: Any) -> list[str]:
    """Return the mean accuracies under backpropagation and a method, their difference, and the number of seeds."""
    plain, late = runs(method=BACKPROPAGATION, **settings), runs(method=method, **settings, **(other or {}))
    seeds = sorted(plain.keys() & late.keys())
    assert seeds, (method, settings)
    first, second = ([result(by_seed[seed]) for seed in seeds] for by_seed in (plain, late))
    if None in second:
        return [mean(first), f"{second.count(None)} of {len(seeds)} not finite", "", str(len(seeds))]
    difference = sum(b - a for a, b in zip(first, second, strict=True)) / len(seeds)  # type: ignore[operator]  # no None
    return [mean(first), mean(second), f"{difference:+.1f}".replace("-", MINUS), str(len(seeds))]


def mean(values: Sequence[float | None]) -> str:
    finite = [value for value in values if value is not None]
    return f"{sum(finite) / len(finite):.1f} %"


def table(head: Sequence[str], rows: Iterator[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def title(model: str) -> str:
    return networks.title_of(next(run.cell for run in all_runs() if run.cell.model == model))


def growth() -> str:
    settings = {"model": "revnet18", "width": 8, "accumulation": 1}
    rows = ([str(epochs), *compared("PETRA", epochs=epochs, **settings)] for epochs in (3, 9, 27, 81))
    return table(["epochs", "backpropagation", "PETRA", "difference", "seeds"], rows)


def accumulation() -> str:
    settings = {"model": "revnet18", "width": 8, "epochs": 3}
    rows = ([str(k), *compared("PETRA", accumulation=k, **settings)] for k in (1, 2, 4, 8, 16, 32))
    return table(["k", "backpropagation", "PETRA", "difference", "seeds"], rows)


def rates() -> str:
    """One seed each: which rates end in a network that has learnt something."""
    settings = {"model": "chain8", "epochs": 1, "accumulation": 4, "warmup_epochs": 0.5}
    chosen = sorted({run.cell.learning_rate for run in all_runs() if run.cell.model == "chain8"})
    rows = []
    for learning_rate in chosen:
        pair = [runs(method=m, learning_rate=learning_rate, **settings).get(0) for m in (BACKPROPAGATION, "PETRA")]
        if None not in pair:
            accuracies = [result(run) for run in pair if run is not None]
            rows.append([f"{learning_rate:.3g}", *("not finite" if a is None else f"{a:.1f} %" for a in accuracies)])
    assert len(rows) > 4
    return table(["learning rate", "backpropagation", "PETRA"], iter(rows))


def stages() -> str:
    def rows() -> Iterator[list[str]]:
        for depth in (2, 8, 16, 32, 48):
            model = f"chain{depth}"
            j = timing.blocks(next(run.cell for run in all_runs() if run.cell.model == model))
            yield [str(j), str(lockstep(j)[0]), *compared("DSP", model=model, width=16, epochs=2, accumulation=1)]

    return table(["J", "staleness of stage 0", "backpropagation", "DSP", "difference", "seeds"], rows())


def compensation() -> str:
    settings = {"model": "revnet18", "width": 8, "epochs": 3, "accumulation": 1}
    others = [("none", {}), ("predicted weights in the forward", {"forward_weights": "predicted"})]
    others += [(name, {"correction": name}) for name in ("average", "gap_aware", "rate", "spike", "compensation")]

    def rows() -> Iterator[list[str]]:
        for name, other in others:
            usual = {"forward_weights": "current", "correction": "none"} | other
            plain = runs(method=BACKPROPAGATION, **settings)
            late = runs(method="PETRA", **settings, **usual)
            seeds = sorted(plain.keys() & late.keys())
            yield [name, mean([result(late[seed]) for seed in seeds]), str(len(seeds))]

    return table(["compensation", "PETRA", "seeds"], rows())


BLOCKS: dict[str, Callable[[], str]] = {
    "growth": growth,
    "accumulation": accumulation,
    "rates": rates,
    "stages": stages,
    "compensation": compensation,
}


def written(text: str) -> str:
    """Return the page with the tables of the records."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{BLOCKS[match[2]]()}\n\n{match[3]}", text)


def test_tables_match_records() -> None:
    """Every table of docs/first_run.md equals the one that the committed records give."""
    text = PAGE.read_text(encoding="utf-8")
    assert [name for _, name, _ in BLOCK.findall(text)] == list(BLOCKS)
    assert text == written(text), "run `python -m tests.test_first_run`"


def test_text_outside_tables_has_no_results() -> None:
    """Sentences may say which direction, not how much."""
    sentences = BLOCK.sub("", PAGE.read_text(encoding="utf-8"))
    assert not re.findall(r"\d+(?:\.\d+)?\s*(?:%|points)", sentences)


@pytest.mark.parametrize("name", ["growth", "accumulation", "stages"])
def test_stated_trends_hold(name: str) -> None:
    """The page says that the gap shrinks with the length of a run and grows with the number of stages."""
    rows = [line.strip("| ").split(" | ") for line in BLOCKS[name]().splitlines()[2:]]
    gaps = [float(row[-2].replace(MINUS, "-")) for row in rows if row[-2].strip()]
    if name == "growth":
        assert all(before < after for before, after in pairwise(gaps)), gaps
    elif name == "stages":
        assert all(before > after for before, after in pairwise(gaps)), gaps
    else:
        assert gaps[-1] > gaps[0]


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
