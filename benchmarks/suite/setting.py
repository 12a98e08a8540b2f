"""Share the common part of the suite: profile, networks, devices, number of threads.

asv calls `setup` before every timed call. So functions that build something keep it as long as the parameters stay the
same (`functools.lru_cache(maxsize=1)`).
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import torch
from asv_runner.benchmarks.mark import SkipNotImplemented
from torch import Tensor

from petra_core import Pipeline, Stage, methods, models
from petra_core.optimizers import sgd

PROFILES = ("fast", "full")


def is_full(profile: str) -> bool:
    """Return whether the profile has the paper's networks.

    Raises:
        ValueError: No profile has this name.

    """
    if profile not in PROFILES:
        raise ValueError(f"PETRA_BENCHMARKS: got {profile!r}, expected one of {', '.join(PROFILES)}")
    return profile == "full"


FULL = is_full(os.environ.get("PETRA_BENCHMARKS", "fast"))
#: CPU threads, at most two, so that machines with more cores measure the same thing.
THREADS = min(2, torch.get_num_threads())
DEVICES = ["cpu", "cuda"]
METHODS = ["BACKPROPAGATION", "REVERSIBLE_BACKPROPAGATION", "DELAYED_GRADIENTS", "DSP", "APPROXIMATE_INPUTS", "PETRA"]
CLASSES = 10
#: The paper's optimizer, with a rate so small that random images cannot make the weights diverge.
SGD = sgd(1e-4, momentum=0.9, nesterov=True, weight_decay=5e-4)
#: Factor on predictions: kernels need workspaces, and allocators round up.
MARGIN = 1.15


@dataclass(frozen=True)
class SuiteNetwork:
    """A RevNet and its micro-batches.

    Attributes:
        depth: 18 or 50.
        width: Channels of the first blocks, per stream.
        batch: Images per micro-batch.
        size: Side of an image in pixels.

    """

    depth: int
    width: int
    batch: int
    size: int

    def stages(self, device: torch.device) -> list[Stage]:
        """Build the stages, from stem to head, as training does."""
        stages = models.revnet(self.depth, num_classes=CLASSES, width=self.width)
        return [stage.to(device).to(memory_format=torch.channels_last) for stage in stages]

    def micro_batch(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return random images [batch, 3, size, size] and labels [batch]. Bytes and seconds depend only on shapes."""
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
    """Predict the peak bytes of a full pipeline from shapes: the sum over its stages."""
    from petra_core.prediction.memory import predict

    meta = torch.device("meta")
    images = torch.empty(network.batch, 3, network.size, network.size, device=meta)
    labels = torch.empty(network.batch, dtype=torch.int64, device=meta)
    with meta:
        outlined = network.stages(meta)
    stages = predict(outlined, methods.by_name(method), images, labels, optimizer=SGD)
    # Not `stage.total`, which older commits lack.
    return sum(sum(stage.peak.values()) for stage in stages)


def check_room(network: SuiteNetwork, method: str, device: torch.device) -> None:
    """Check that a full pipeline fits, since the system might kill other processes as well when memory runs out.

    Raises:
        SkipNotImplemented: It does not fit. asv then reports the benchmark as skipped.

    """
    from reproduce.measures.machine_memory import available

    needed, free = MARGIN * predicted_bytes(network, method), available(device)
    if free is not None and needed > free:
        skip(f"needs about {needed / 1e9:.0f} GB on {device}, {free / 1e9:.0f} GB are available")


def open_device(name: str) -> torch.device:
    """Return the device of this name, after setting threads and seed 0.

    Raises:
        SkipNotImplemented: This machine has no such device. asv then reports the benchmark as skipped.

    """
    if name == "cuda" and not torch.cuda.is_available():
        skip("no CUDA device")
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    return torch.device(name)


def skip(why: str) -> NoReturn:
    """Skip this benchmark.

    Raises:
        SkipNotImplemented: Always. asv reports the benchmark as skipped.

    """
    raise SkipNotImplemented(why)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def step_of_full_pipeline(network: SuiteNetwork, method: str, device_name: str) -> tuple[Pipeline, Callable[[], None]]:
    """Return a pipeline whose buffers have stopped growing, and its next step, including the device's work.

    Raises:
        SkipNotImplemented: This machine has no such device, or too little memory for one of the paper's networks.

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
    """Return the ticks until a pipeline is full. The first commits lack `Method.ticks_to_steady`."""
    method, stages = pipeline.method, len(pipeline.stages)
    if hasattr(method, "ticks_to_steady"):
        return method.ticks_to_steady(stages, pipeline.accumulation)
    delay = method.delay(0, stages)
    return (2 * delay if method.stashes_weights else delay) + pipeline.accumulation
