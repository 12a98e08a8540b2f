"""Bytes that the methods hold, as the engine accounts for them; on a GPU, what the allocator says as well.

Counts, not samples: the same in every run. The pipelines of all methods are run once, in `setup_cache`, and what they
held is read off afterwards.
"""

import torch

from petra_core.ledger import MemoryReport

from .setting import FULL, METHODS, NARROW, PAPER, open_device, predicted_bytes, step_of_full_pipeline

KINDS = ["parameters", "buffers", "gradients", "optimizer", "inputs", "stashed_weights", "messages", "graph"]
HELD = ("inputs", "stashed_weights", "messages", "graph")
Reports = dict[str, MemoryReport]


def _reports(names: list[str]) -> Reports:
    """The memory reports of full pipelines of the narrow RevNet-18, by method."""
    return {method: step_of_full_pipeline(NARROW["revnet18"], method, "cpu")[0].memory() for method in names}


class Stages:
    """The narrow RevNet-18 under PETRA: the most that a stage has held of a kind, bytes."""

    params = (list(range(10)), list(KINDS))
    param_names = ("stage", "kind")
    version = "1"

    def setup_cache(self) -> Reports:
        return _reports(["PETRA"])

    def track_peak(self, reports: Reports, stage: int, kind: str) -> int:
        return reports["PETRA"].stages[stage].peak[kind]

    track_peak.unit = "bytes"  # type: ignore[attr-defined]  # asv reads it


class Narrow:
    """The narrow RevNet-18 under each method: the sum over stages of the most a stage has held, and what is held
    between ticks beside weights and optimizer, bytes.
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
    """Peaks of the paper's networks with 64 images of CIFAR's size, predicted from shapes, since they may not fit.

    `track_peak_foretold` keeps the name under which asv has its history.
    """

    params = (list(PAPER), METHODS)
    param_names = ("network", "method")
    version = "1"

    def track_peak_foretold(self, network: str, method: str) -> int:
        return predicted_bytes(PAPER[network], method)

    track_peak_foretold.unit = "bytes"  # type: ignore[attr-defined]  # asv reads it


class Cuda:
    """The most that CUDA's allocator has given out during a step of a full pipeline, bytes."""

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
