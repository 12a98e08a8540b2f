"""Measure a contestant. Every quantity is measured in the same way for all contestants.

    time of a step       seconds; a tick under PETRA
    allocated peak       peak bytes of all tensors, from the construction of the network on (`benchmarks.allocation`)
    held at the loss     the same count when the loss is called: tensors kept for the backward, and weights
    process peak         growth of a fresh process, as the system reports it
    gradient error       |g - g64| / |g64| over all parameters with fixed weights; g64 is autograd's in float64
    BatchNorm updates    updates of a layer's running statistics per step: 1, unless recomputation repeats it

The usual way to count the tensors kept for a backward, hooks on autograd's saved tensors, would favour the packages:
RevTorch and memcnn keep tensors outside autograd, where hooks do not see them. So all tensors are counted.
"""

import copy
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.allocation import Allocations, growth_of_fresh_process
from benchmarks.arguments import CLASSES, network
from benchmarks.peers.contestants import CONTESTANTS, Contestant, Loss
from petra_core import Stage
from reproduce.measures.synthetic import SGD

#: Of weights and images. The suite trains in channels-last. Which is faster depends on width, processor and package.
MEMORY_FORMATS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}


@dataclass(frozen=True)
class PeerSetting:
    """Configuration of a comparison.

    Attributes:
        network: Name of the network (`benchmarks.arguments.network`).
        width: Channels of the first stream.
        size: Side of an image in pixels.
        batch: Images per micro-batch.
        threads: Number of CPU threads.
        memory_format: One of `MEMORY_FORMATS`.

    """

    network: str
    width: int
    size: int
    batch: int
    threads: int
    memory_format: str = "contiguous"

    def __str__(self) -> str:
        return f"{self.network}, width {self.width}, {self.memory_format}"


class Task:
    """Hold the network that all contestants train: weights and a micro-batch, equal in every process."""

    def __init__(self, setting: PeerSetting) -> None:
        torch.set_num_threads(setting.threads)
        torch.manual_seed(0)
        layout = MEMORY_FORMATS[setting.memory_format]
        self._stages = [stage.to(memory_format=layout) for stage in network(setting.network, setting.width)]
        self.images = torch.randn(setting.batch, 3, setting.size, setting.size).to(memory_format=layout)
        self.labels = torch.randint(CLASSES, (setting.batch,))

    def stages(self, dtype: torch.dtype = torch.float32) -> list[Stage]:
        """Return a copy of the network."""
        return [stage.to(dtype) for stage in copy.deepcopy(self._stages)]


def gradients(contestant: Contestant, task: Task, dtype: torch.dtype) -> Tensor:
    """Return the gradients of all parameters, concatenated in float64 and computed in `dtype`."""
    trainer = contestant.trainer(task.stages(dtype), nn.functional.cross_entropy, None)
    for _ in range(trainer.ready):
        trainer.step(task.images.to(dtype), task.labels)
    return torch.cat([gradient.double().flatten() for gradient in trainer.gradients()])


def batch_norm_updates(contestant: Contestant, task: Task, steps: int = 2) -> float:
    """Return the updates of running statistics per step, for the layer with most."""
    stages = task.stages()
    layers = [layer for stage in stages for layer in stage.modules() if isinstance(layer, nn.BatchNorm2d)]
    trainer = contestant.trainer(stages, nn.functional.cross_entropy, SGD)
    for _ in range(trainer.ready):
        trainer.step(task.images, task.labels)
    before = [int(layer.num_batches_tracked) for layer in layers]
    for _ in range(steps):
        trainer.step(task.images, task.labels)
    return max((int(layer.num_batches_tracked) - b) / steps for layer, b in zip(layers, before, strict=True))


def measure_allocations(contestant: Contestant, setting: PeerSetting) -> tuple[int, int]:
    """Return the peak of allocated bytes, and the bytes held when the last loss is called."""
    with Allocations(torch.device("cpu")) as allocations:

        def mark(logits: Tensor, labels: Tensor) -> Tensor:
            allocations.mark()
            return nn.functional.cross_entropy(logits, labels)

        train(contestant, setting, mark)
    return allocations.peak, allocations.marks[-1]


def train(contestant: Contestant, setting: PeerSetting, loss: Loss = nn.functional.cross_entropy) -> None:
    """Build the network, take steps until all steps are alike, and take another one."""
    task = Task(setting)
    trainer = contestant.trainer(task._stages, loss, SGD)
    for _ in range(trainer.ready + 1):
        trainer.step(task.images, task.labels)


def train_by_name(name: str, setting: PeerSetting) -> None:
    """Train the contestant of this name. A contestant cannot be pickled for another process."""
    train(next(contestant for contestant in CONTESTANTS if contestant.name == name), setting)


def process_growth(contestant: Contestant, setting: PeerSetting) -> int | None:
    """Return the bytes by which a fresh process grows, or None if the system does not report them."""
    small = replace(setting, network="chain2", width=1, size=8, batch=2)
    return growth_of_fresh_process(partial(train_by_name, contestant.name), small, setting)


def correctness(contestant: Contestant, task: Task, reference: Tensor) -> dict[tuple[str, str], float]:
    """Return the errors of the gradient and the BatchNorm updates: (quantity, unit) -> value.

    Args:
        contestant: Implementation to measure.
        task: Network with its micro-batch.
        reference: Gradient of autograd in float64.

    """
    single, double = (gradients(contestant, task, dtype) for dtype in (torch.float32, torch.float64))
    return {
        ("gradient error, float32", "relative"): float((single - reference).norm() / reference.norm()),
        ("gradient error, float64", "relative"): float((double - reference).norm() / reference.norm()),
        ("BatchNorm updates", "a step"): batch_norm_updates(contestant, task),
    }
