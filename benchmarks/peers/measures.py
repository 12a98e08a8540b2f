"""The quantities that are measured of a contestant, each in the same way for all.

    time of a step       seconds; a tick under PETRA
    allocated peak       most bytes of tensors at a moment, of everything from the network on (`benchmarks.allocation`)
    held at the loss     the same count when the loss is called: what is kept for the backward, and the weights
    process peak         growth of a fresh process, as the system sees it
    gradient error       |g - autograd's in float64| / |autograd's in float64| over all parameters, weights held still
    BatchNorm updates    how often a step updates a layer's running statistics: once, unless recomputation does it again

The usual way to ask what is kept for a backward, hooks on autograd's saved tensors, would favour the packages: RevTorch
and memcnn keep tensors beside autograd, where no hook sees them. So all tensors are counted.
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

__all__ = [
    "MEMORY_FORMATS",
    "PeerSetting",
    "Task",
    "allocated",
    "correctness",
    "gradients",
    "process_growth",
]


#: Of weights and images. The suite trains in channels-last; which is faster depends on width, processor and package.
MEMORY_FORMATS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}


@dataclass(frozen=True)
class PeerSetting:
    """The network that is trained, and by how many threads.

    Attributes:
        network: its name (`benchmarks.arguments.network`).
        width: channels of its first stream.
        size: pixels of an image's side.
        batch: images in a micro-batch.
        threads: of the CPU.
        memory_format: of `MEMORY_FORMATS`.

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
    """The network that all train: weights and a micro-batch, the same in every process."""

    def __init__(self, setting: PeerSetting) -> None:
        torch.set_num_threads(setting.threads)
        torch.manual_seed(0)
        layout = MEMORY_FORMATS[setting.memory_format]
        self._stages = [stage.to(memory_format=layout) for stage in network(setting.network, setting.width)]
        self.images = torch.randn(setting.batch, 3, setting.size, setting.size).to(memory_format=layout)
        self.labels = torch.randint(CLASSES, (setting.batch,))

    def stages(self, dtype: torch.dtype = torch.float32) -> list[Stage]:
        """A copy of the network."""
        return [stage.to(dtype) for stage in copy.deepcopy(self._stages)]


def gradients(contestant: Contestant, task: Task, dtype: torch.dtype) -> Tensor:
    """The gradients of all parameters in a row, in float64, computed in `dtype`."""
    trainer = contestant.trainer(task.stages(dtype), nn.functional.cross_entropy, None)
    for _ in range(trainer.ready):
        trainer.step(task.images.to(dtype), task.labels)
    return torch.cat([gradient.double().flatten() for gradient in trainer.gradients()])


def batch_norm_updates(contestant: Contestant, task: Task, steps: int = 2) -> float:
    """Updates of a layer's running statistics in a step, of the layer with most."""
    stages = task.stages()
    layers = [layer for stage in stages for layer in stage.modules() if isinstance(layer, nn.BatchNorm2d)]
    trainer = contestant.trainer(stages, nn.functional.cross_entropy, SGD)
    for _ in range(trainer.ready):
        trainer.step(task.images, task.labels)
    before = [int(layer.num_batches_tracked) for layer in layers]
    for _ in range(steps):
        trainer.step(task.images, task.labels)
    return max((int(layer.num_batches_tracked) - b) / steps for layer, b in zip(layers, before, strict=True))


def allocated(contestant: Contestant, setting: PeerSetting) -> tuple[int, int]:
    """Most bytes that are allocated at a moment, and those held when the last loss is called."""
    with Allocations(torch.device("cpu")) as allocations:

        def marked(logits: Tensor, labels: Tensor) -> Tensor:
            allocations.mark()
            return nn.functional.cross_entropy(logits, labels)

        train(contestant, setting, marked)
    return allocations.peak, allocations.marks[-1]


def train(contestant: Contestant, setting: PeerSetting, loss: Loss = nn.functional.cross_entropy) -> None:
    """Make the network and take steps until one is like the next, and another."""
    task = Task(setting)
    trainer = contestant.trainer(task._stages, loss, SGD)
    for _ in range(trainer.ready + 1):
        trainer.step(task.images, task.labels)


def train_by_name(name: str, setting: PeerSetting) -> None:
    """Train the contestant of that name, which does not travel to another process itself."""
    train(next(contestant for contestant in CONTESTANTS if contestant.name == name), setting)


def process_growth(contestant: Contestant, setting: PeerSetting) -> int | None:
    """Bytes by which a fresh process grows; None where the system does not say."""
    small = replace(setting, network="chain2", width=1, size=8, batch=2)
    return growth_of_fresh_process(partial(train_by_name, contestant.name), small, setting)


def correctness(contestant: Contestant, task: Task, reference: Tensor) -> dict[tuple[str, str], float]:
    """Errors of the gradient and updates of BatchNorm: (quantity, unit) -> value. `reference`: autograd's gradient."""
    single, double = (gradients(contestant, task, dtype) for dtype in (torch.float32, torch.float64))
    return {
        ("gradient error, float32", "relative"): float((single - reference).norm() / reference.norm()),
        ("gradient error, float64", "relative"): float((double - reference).norm() / reference.norm()),
        ("BatchNorm updates", "a step"): batch_norm_updates(contestant, task),
    }
