"""The common part of the suite: the profile, the networks, the devices, the number of threads.

Everything that is built is kept for as long as the parameters stay the same (`functools.lru_cache(maxsize=1)` where it
is built), since asv calls `setup` before every timed call.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from petra_core import Pipeline, Stage, methods, models

try:
    from petra_core.optimizers import sgd
except ImportError:  # an older commit, which asv measures with the suite of today
    from petra_core.optimizers import sgd

PROFILES = ("fast", "full")


def is_full(profile: str) -> bool:
    """Whether the profile of this name has the paper's networks. Raises: ValueError: there is none of that name."""
    if profile not in PROFILES:
        raise ValueError(f"PETRA_BENCHMARKS is {profile!r}, expected one of {', '.join(PROFILES)}")
    return profile == "full"


FULL = is_full(os.environ.get("PETRA_BENCHMARKS", "fast"))
#: Threads of the CPU; at most two, so that a machine with more cores does not measure something else.
THREADS = min(2, torch.get_num_threads())
DEVICES = ["cpu", "cuda"]
METHODS = ["BACKPROPAGATION", "REVERSIBLE_BACKPROPAGATION", "DELAYED_GRADIENTS", "DSP", "APPROXIMATE_INPUTS", "PETRA"]
CLASSES = 10
#: The paper's optimizer, at a rate at which random images cannot make the weights run away.
SGD = sgd(1e-4, momentum=0.9, nesterov=True, weight_decay=5e-4)
#: Factor on what is predicted: kernels need memory to work in, and allocators round up.
MARGIN = 1.15


@dataclass(frozen=True)
class SuiteNetwork:
    """A RevNet and the micro-batches it is measured with.

    Attributes:
        depth: 18 or 50.
        width: channels of the first blocks, per stream.
        batch: images of a micro-batch.
        size: pixels of an image's side.

    """

    depth: int
    width: int
    batch: int
    size: int

    def stages(self, device: torch.device) -> list[Stage]:
        """The stages, stem to head, as training has them."""
        stages = models.revnet(self.depth, num_classes=CLASSES, width=self.width)
        return [stage.to(device).to(memory_format=torch.channels_last) for stage in stages]

    def micro_batch(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Random images [batch, 3, size, size] and labels [batch]: bytes and seconds depend on shapes alone."""
        images = torch.randn(self.batch, 3, self.size, self.size).to(device, memory_format=torch.channels_last)
        return images, torch.randint(CLASSES, (self.batch,)).to(device)


NARROW = {
    "revnet18": SuiteNetwork(18, width=4, batch=4, size=16),
    "revnet50": SuiteNetwork(50, width=4, batch=4, size=16),
}
PAPER = {
    "revnet18": SuiteNetwork(18, width=64, batch=64, size=32),
    "revnet50": SuiteNetwork(50, width=64, batch=64, size=32),
}


def predicted_bytes(network: SuiteNetwork, method: str) -> int:
    """The most that a full pipeline holds, bytes, from shapes alone: the sum over its stages."""
    from petra_core.prediction.memory import predict

    meta = torch.device("meta")
    images = torch.empty(network.batch, 3, network.size, network.size, device=meta)
    labels = torch.empty(network.batch, dtype=torch.int64, device=meta)
    with meta:
        outlined = network.stages(meta)
    stages = predict(outlined, methods.by_name(method), images, labels, optimizer=SGD)
    # Not `stage.total`, which came later.
    return sum(sum(stage.peak.values()) for stage in stages)


def check_room(network: SuiteNetwork, method: str, device: torch.device) -> None:
    """See that a full pipeline fits: a process that the system kills for its memory may not be the only one.

    Raises:
        SkipNotImplemented: it does not; asv then shows the benchmark as skipped.

    """
    from reproduce.measures.machine_memory import available

    needed, free = MARGIN * predicted_bytes(network, method), available(device)
    if free is not None and needed > free:
        skip(f"needs about {needed / 1e9:.0f} GB on {device}, {free / 1e9:.0f} GB can be had")


def open_device(name: str) -> torch.device:
    """The device of this name, with the threads set and the seed 0.

    Raises:
        SkipNotImplemented: this machine has none; asv then shows the benchmark as skipped.

    """
    if name == "cuda" and not torch.cuda.is_available():
        skip("no CUDA device")
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    return torch.device(name)


def skip(why: str) -> NoReturn:
    """Leave this benchmark out. Raises: SkipNotImplemented: always; asv shows it as skipped."""
    # Not above: `benchmarks.overhead` runs without asv.
    from asv_runner.benchmarks.mark import SkipNotImplemented

    raise SkipNotImplemented(why)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def step_of_full_pipeline(network: SuiteNetwork, method: str, device_name: str) -> tuple[Pipeline, Callable[[], None]]:
    """A pipeline in which no buffer grows any more, and its next step, the device's work included.

    Raises:
        SkipNotImplemented: this machine has no such device, or, of the paper's networks, not enough memory.

    """
    device = open_device(device_name)
    if FULL:
        check_room(network, method, device)
    images, labels = network.micro_batch(device)
    pipeline = Pipeline(network.stages(device), methods.by_name(method), optimizer=SGD, seed=0)

    def step() -> None:
        pipeline.step(images, labels)
        synchronize(device)

    for _ in range(ticks_to_steady(pipeline)):
        step()
    return pipeline, step


def ticks_to_steady(pipeline: Pipeline) -> int:
    """Ticks until a pipeline is full; `Method.ticks_to_steady` says it, but not in commits of the first two days."""
    method, stages = pipeline.method, len(pipeline.stages)
    if hasattr(method, "ticks_to_steady"):
        return method.ticks_to_steady(stages, pipeline.accumulation)
    delay = method.delay(0, stages)
    return (2 * delay if method.stashes_weights else delay) + pipeline.accumulation
