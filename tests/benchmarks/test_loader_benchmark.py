"""The benchmark of the loaders runs; what it measures is not for a test to judge."""

from importlib.util import find_spec

import pytest
import torch

if find_spec("ffcv") is None:
    pytest.skip("FFCV is not installed", allow_module_level=True)

from benchmarks import loaders


def test_every_part_gives_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    few = "--workers 0 --pairs 1 --seconds 0.05 --images 640 --files 70 --widths 2 --threads 1"
    try:
        medians = loaders.main(few.split())
    finally:
        torch.set_num_threads(threads)
    assert [title.split(",")[0] for title in medians] == ["small", "memory", "jpeg", "share", "share"]
    assert all(value > 0 for value in medians.values())
    printed = capsys.readouterr().out
    assert all(title in printed for title in medians)
