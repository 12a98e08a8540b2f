"""Test that the times of a GPU in the documentation agree with the records."""

import json
import statistics
from pathlib import Path
from typing import Any

from reproduce.records.record import scan

ROOT = Path(__file__).parents[2]
CELL = "cifar10-revnet18-w64-petra-k1-s0-2b959085d163"
PLAIN, COMPILED = "autograd step", "compiled autograd step"


def ticks() -> list[str]:
    """Return the lines of the table, the slowest kernels first."""
    rows = []
    for file in (ROOT / "reports/records/benchmarks").glob("tick-*-nvidia-h200.json"):
        record = json.loads(file.read_text(encoding="utf-8"))
        setting = record["setting"]
        times = {series["name"]: series["values"] for series in record["series"] if series["quantity"] == "time"}
        seconds = {name: statistics.median(values) for name, values in times.items()}
        ratio = statistics.median(tick / step for tick, step in zip(times["tick"], times[COMPILED], strict=True))
        assert seconds[COMPILED] < seconds[PLAIN], "then the fastest rival is another one"
        words = [setting["precision"], setting["batch"], "modules" if setting["compile"] else "no", setting["captured"]]
        words += [f"{1000 * seconds[name]:.2f}" for name in ("tick", PLAIN, COMPILED)]
        rows.append((seconds["tick"], f"| {' | '.join(map(str, [*words, f'{ratio:.3f}']))} |"))
    return [line for _, line in sorted(rows, reverse=True)]


def cell() -> list[str]:
    """Return the sentences of the documentation about the first cell of Table 2."""
    (run,) = (run for run in scan(ROOT / "reports/records").records if run.cell.name == CELL)
    result: dict[str, Any] = run.result
    lines = run.metrics
    epoch = statistics.median(line["train_seconds"] for line in lines)
    per_epoch = result["micro_batches"] / len(lines)
    return [
        f"{result['micro_batches']:,} ticks ({len(lines)} epochs) in {result['train_seconds']:.0f} s",
        f"{len(lines)} evaluations in {result['evaluation_seconds']:.0f} s",
        f"a tick every {1000 * epoch / per_epoch:.2f} ms (median of the epochs)",
        f"{result['images_per_second']:,.0f} images/s",
        f"{result['test_accuracy']:.2f} % after the last epoch ({result['best_test_accuracy']:.2f} % at best)",
        f"{result['peak_bytes'] / 1e9:.2f} GB at its peak",
    ]


def test_documented_gpu_times_match_records() -> None:
    """The GPU times in docs/benchmarks.md equal those of the committed records."""
    text = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    words = " ".join(text.split())
    table = [line for line in text.splitlines() if line in (lines := ticks())]
    assert table == lines, "\n".join(lines)
    assert [phrase for phrase in cell() if phrase not in words] == []
