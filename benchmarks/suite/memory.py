"""Bytes that the methods hold, from the engine's ledger; on a GPU, from the allocator as well.

These are counts and equal in every run. `setup_cache` runs the pipelines of all methods once, and the benchmarks read
the reports.
"""

import torch

from petra_core.ledger import MemoryReport

from .setting import FULL, METHODS, NARROW, PAPER, open_device, predicted_bytes, step_of_full_pipeline

KINDS = ["parameters", "buffers", "gradients", "optimizer", "inputs", "stashed_weights", "messages", "graph"]
HELD = ("inputs", "stashed_weights", "messages", "graph")
Reports = dict[str, MemoryReport]


def _reports(names: list[str]) -> Reports:
    """Return the memory reports of full pipelines of the narrow RevNet-18, by method."""
    return {method: step_of_full_pipeline(NARROW["revnet18"], method, "cpu")[0].memory() for method in names}


class Stages:
    """Track the peak bytes of each kind that a stage of the narrow RevNet-18 holds under PETRA."""

    params = (list(range(10)), list(KINDS))
    param_names = ("stage", "kind")
    version = "1"

    def setup_cache(self) -> Reports:
        return _reports(["PETRA"])

    def track_peak(self, reports: Reports, stage: int, kind: str) -> int:
        return reports["PETRA"].stages[stage].peak[kind]

    track_peak.unit = "bytes"  # type: ignore[attr-defined]  # asv reads it


class Narrow:
    """Track the bytes of the narrow RevNet-18 under each method.

    The peak is the sum over stages of each stage's peak. Held is what is kept between ticks in addition to weights and
    optimizer state.
    """

    params = (METHODS,)
    param_names = ("method",)
    version = "1"

    def setup_cache(self) -> Reports:
        return _reports(METHODS)

    def track_peak(self, reports: Reports, method: str) -> int:
        return reports[method].peak()

    def track_held(self, reports: Reports, method: str) -> int:
        return reports[method].now(*HELD)

    track_peak.unit = track_held.unit = "bytes"  # type: ignore[attr-defined]  # asv reads it


class Paper:
    """Track the peaks of the paper's networks with 64 images of CIFAR's size, predicted from shapes: they may not fit.

    `track_peak_foretold` keeps the name under which asv has its history.
    """

    params = (list(PAPER), METHODS)
    param_names = ("network", "method")
    version = "1"

    def track_peak_foretold(self, network: str, method: str) -> int:
        return predicted_bytes(PAPER[network], method)

    track_peak_foretold.unit = "bytes"  # type: ignore[attr-defined]  # asv reads it


class Cuda:
    """Track the peak bytes of CUDA's allocator during a step of a full pipeline."""

    networks = PAPER if FULL else NARROW
    params = (list(networks), METHODS, ["full" if FULL else "fast"])
    param_names = ("network", "method", "profile")
    version = "1"

    def setup(self, network: str, method: str, profile: str) -> None:
        self.device = open_device("cuda")

    def track_peak_allocated(self, network: str, method: str, profile: str) -> int:
        _, step = step_of_full_pipeline(self.networks[network], method, "cuda")
        torch.cuda.reset_peak_memory_stats(self.device)
        step()
        return int(torch.cuda.max_memory_allocated(self.device))

    track_peak_allocated.unit = "bytes"  # type: ignore[attr-defined]  # asv reads it
