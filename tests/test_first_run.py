"""The numbers of two pages are those of the committed records; `python -m tests.test_first_run` writes them.

They are docs/first_run.md, and docs/benchmarks.md with its measurements on an H200.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from operator import truediv
from statistics import median
from typing import Any

import pytest
from pandas import DataFrame

from petra_core.staleness import lockstep
from reproduce.cells import timing
from reproduce.cells.rates import REFERENCE_BATCH, learning_rate
from reproduce.presentation.compare import SeedSample, format_difference, means
from reproduce.records.frames import Frames
from reproduce.records.results import read
from tests.conftest import ROOT

PAGES = (PAGE := ROOT / "docs" / "first_run.md", ROOT / "docs" / "benchmarks.md")
BLOCK = re.compile(r"(<!-- (\w+): written by `python -m tests\.test_first_run` -->\n).*?(<!-- \2: end -->)", re.S)
MINUS = "\N{MINUS SIGN}"
BACKPROPAGATION = "BACKPROPAGATION"
USUAL: dict[str, Any] = {"optimizer": "sgd", "forward_weights": "current", "correction": "none"}
USUAL |= {"timing": "lockstep", "stages": "", "batch_size": 32}


@cache
def frames() -> Frames:
    return Frames(read(ROOT / "reports" / "records"))


@cache
def all_runs() -> DataFrame:
    """Return the training runs of the scale `small` on CIFAR-10 with all training images."""
    runs = frames().runs
    small = (runs["scale"] == "small") & (runs["dataset"] == "cifar10") & (runs["held_out"] == 0)
    return runs[(runs["kind"] == "training") & small]


def with_settings(**settings: Any) -> DataFrame:
    runs = all_runs()
    for name, value in settings.items():
        runs = runs[runs[name] == value]
    return runs


def sample(method: str, **settings: Any) -> SeedSample:
    """Return the runs with these settings; SGD at the rate of the rule, without delay compensation, if not given."""
    rate = {"reference_rate": learning_rate(REFERENCE_BATCH)}
    runs = with_settings(**USUAL | rate | settings, method=method)
    (found,) = means(runs, "test_accuracy", ["settings"]).values()
    return found


def compared(method: str, **settings: Any) -> list[str]:
    """Return the mean accuracies under backpropagation and a method, their difference, and the number of seeds."""
    plain, late = sample(BACKPROPAGATION, **settings), sample(method, **settings)
    difference = "" if late.failures else format_difference(late - plain).removesuffix(" (one run each)")
    return [mean(plain), mean(late), difference, str(len(late.states))]


def mean(reached: SeedSample) -> str:
    if reached.failures:
        return f"{len(reached.failures)} of {len(reached.states)} not finite"
    assert reached.estimate
    return f"{reached.estimate.mean:.1f} %"


def table(head: Sequence[str], rows: Iterator[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def growth() -> str:
    settings = {"model": "revnet18", "width": 8, "k": 1}
    rows = ([str(epochs), *compared("PETRA", epochs=epochs, **settings)] for epochs in (3, 9, 27, 81))
    return table(["epochs", "backpropagation", "PETRA", "difference", "seeds"], rows)


def accumulation() -> str:
    settings = {"model": "revnet18", "width": 8, "epochs": 3}
    rows = ([str(k), *compared("PETRA", k=k, **settings)] for k in (1, 2, 4, 8, 16, 32))
    return table(["k", "backpropagation", "PETRA", "difference", "seeds"], rows)


@cache
def by_rate() -> dict[float, list[SeedSample]]:
    """Return the runs of backpropagation and PETRA by learning rate, one seed each."""
    runs = with_settings(**USUAL, model="chain8", epochs=1, k=4, warmup_epochs=0.5, seed=0)
    samples = means(runs, "test_accuracy", ["learning_rate", "method"])
    pairs = {rate: [samples[rate, method] for method in (BACKPROPAGATION, "PETRA")] for rate, _ in sorted(samples)}
    return {rate: pair for rate, pair in pairs.items() if all(one.states for one in pair)}


def rates() -> str:
    rows = ([f"{rate:.3g}", *map(mean, pair)] for rate, pair in by_rate().items())
    return table(["learning rate", "backpropagation", "PETRA"], rows).replace("1 of 1 ", "")


def stages() -> str:
    def rows() -> Iterator[list[str]]:
        for depth in (2, 8, 16, 32, 48):
            settings = {"model": f"chain{depth}", "width": 16, "epochs": 2, "k": 1}
            name = next(iter(all_runs().query(f"model == 'chain{depth}'")["cell"]))
            j = timing.blocks(frames().by_name[name].cell)
            yield [str(j), str(lockstep(j)[0]), *compared("DSP", **settings)]

    return table(["J", "staleness of stage 0", "backpropagation", "DSP", "difference", "seeds"], rows())


def compensation() -> str:
    others = {"none": {}, "predicted weights in the forward": {"forward_weights": "predicted"}}
    others |= {name: {"correction": name} for name in ("average", "gap_aware", "rate", "spike", "compensation")}
    others["NAdam, at the best rate tried"] = {"optimizer": "nadam", "reference_rate": 0.004}

    def rows() -> Iterator[list[str]]:
        for name, other in others.items():
            row = [name]
            for epochs in (3, 27):
                settings = {"model": "revnet18", "width": 8, "k": 1, "epochs": epochs}
                plain = sample("PETRA", **settings)
                try:
                    reached = sample("PETRA", **settings | other)
                except ValueError:  # not run
                    row += ["", ""]
                else:
                    row += [mean(reached), format_difference(reached - plain) if other else ""]
            yield row

    return table(["compensation", "3 epochs", "gain", "27 epochs", "gain"], rows())


@cache
def measured_ticks() -> list[tuple[list[str], float]]:
    """Return settings, medians and ratio to the fastest autograd step (median of pairs) of the ticks on an H200."""
    found: list[tuple[list[str], float]] = []
    for benchmark in frames().results.benchmarks:
        if re.fullmatch("tick-w64-.*-nvidia-h200", benchmark.name):
            times = {series.name: series.values for series in benchmark.series if series.quantity == "time"}
            tick, captured, compiled = (times[name] for name in ("tick", "autograd step", "compiled autograd step"))
            assert median(compiled) < median(captured)
            setting = benchmark.setting
            settings = [setting["precision"], setting["batch"], "modules" if setting["compile"] else "no"]
            row = [*map(str, settings), str(setting["captured"])]
            row += [f"{1e3 * median(values):.2f}" for values in (tick, captured, compiled)]
            found.append((row, median(map(truediv, tick, compiled))))
    return sorted(found, key=lambda one: -float(one[0][4]))


def ticks() -> str:
    head = ["precision", "images", "compiled", "streams", "tick", "captured step", "compiled and captured step"]
    return table([*head, "tick / fastest"], ([*row, f"{ratio:.3f}"] for row, ratio in measured_ticks()))


def cell() -> str:
    """Describe the first cell of the paper's Table 2."""
    run = frames().by_name["cifar10-revnet18-w64-petra-k1-s0-2b959085d163"]
    result = run.result
    return (
        f"- 300 epochs in {result['train_seconds']:.0f} s, {result['images_per_second']:,.0f} images/s; evaluations in "
        f"{result['evaluation_seconds']:.0f} s.\n"
        f"- {result['test_accuracy']:.2f} % after the last epoch ({result['best_test_accuracy']:.2f} % at best), with "
        f"{result['peak_bytes'] / 1e9:.2f} GB at its peak."
    )


BLOCKS: dict[str, Callable[[], str]] = {
    "growth": growth,
    "accumulation": accumulation,
    "rates": rates,
    "stages": stages,
    "compensation": compensation,
    "ticks": ticks,
    "cell": cell,
}


def written(text: str) -> str:
    """Return the page with the tables of the records."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{BLOCKS[match[2]]()}\n\n{match[3]}", text)


def test_tables_match_records() -> None:
    """Every block equals the one that the committed records give."""
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    assert [name for text in texts for _, name, _ in BLOCK.findall(text)] == list(BLOCKS)
    assert [text == written(text) for text in texts] == [True, True], "run `python -m tests.test_first_run`"


def test_text_outside_tables_has_no_results() -> None:
    """Sentences may say which direction, not how much."""
    sentences = BLOCK.sub("", PAGE.read_text(encoding="utf-8"))
    assert not re.findall(r"\d+(?:\.\d+)?\s*(?:%|points)", sentences)


@pytest.mark.parametrize("name", ["growth", "accumulation", "stages"])
def test_stated_trends_hold(name: str) -> None:
    """The page says that the gap shrinks with the length of a run and grows with the number of stages."""
    rows = [line.strip("| ").split(" | ") for line in BLOCKS[name]().splitlines()[2:]]
    gaps = [float(row[-2].split("\N{NARROW NO-BREAK SPACE}")[0].replace(MINUS, "-")) for row in rows if row[-2].strip()]
    if name == "growth":
        assert all(before < after for before, after in pairwise(gaps)), gaps
    elif name == "stages":
        assert all(before > after for before, after in pairwise(gaps)), gaps
    else:
        assert gaps[-1] > gaps[0]


def test_range_of_ticks_is_stated() -> None:
    ratios = [100 * (ratio - 1) for _, ratio in measured_ticks()]
    assert f"takes {min(ratios):.0f} to {max(ratios):.0f} % longer" in PAGES[1].read_text(encoding="utf-8")


def test_advice_follows_from_tables() -> None:
    """PETRA is best at a sixteenth of backpropagation's best rate, and no gain is left after 27 epochs."""
    best = [max((list(pair[side].values.values()), rate) for rate, pair in by_rate().items())[1] for side in (0, 1)]
    assert best[0] == 16 * best[1]
    gains = [re.findall(r"[\d.]+", row.split(" | ")[-1]) for row in compensation().splitlines()[3:]]
    late = [(float(gain), float(half)) for gain, half in filter(None, gains)]
    assert late
    assert all(gain < half for gain, half in late)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
