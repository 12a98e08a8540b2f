"""What is measured of a contestant, each quantity in the same way for all.

    time of a step       seconds; a tick under PETRA
    allocated peak       most bytes of tensors at a moment, of everything from the network on (`benchmarks.allocation`)
    held at the loss     the same count when the loss is called: what is kept for the backward, and the weights
    process peak         growth of a fresh process, as the system sees it
    gradient error       |g - autograd's in float64| / |autograd's in float64| over all parameters, weights held still
    BatchNorm updates    how often a step updates a layer's running statistics: once, unless recomputation does it again

The usual way to ask what is kept for a backward, hooks on autograd's saved tensors, would favour the packages: RevTorch
and memcnn keep tensors beside autograd, where no hook sees them. So all tensors are counted.

This module exports OPTIMIZER, Chain, gradients, once, timed.
"""

import argparse
import copy
import time

import torch
from torch import Tensor, nn

from benchmarks.allocation import Allocations, in_fresh_process
from benchmarks.peers.contestants import CONTESTANTS, Contestant, Loss, Trainer
from petra_core import Stage, models
from petra_core.recipe import sgd
from reproduce.measures.machine_memory import Witness

__all__ = ["OPTIMIZER", "Chain", "gradients", "once", "timed"]

OPTIMIZER = sgd(1e-4, momentum=0.9, nesterov=True, weight_decay=5e-4)


class Chain:
    """The network that all train: weights and a micro-batch, the same in every process.

    Args:
        options: depth (even), width, pixels, batch, threads.

    """

    def __init__(self, options: argparse.Namespace) -> None:
        torch.set_num_threads(options.threads)
        torch.manual_seed(0)
        self._stages = models.chain(options.depth, num_classes=10, channels=options.width)
        self.images = torch.randn(options.batch, 3, options.pixels, options.pixels)
        self.labels = torch.randint(10, (options.batch,))

    def stages(self, dtype: torch.dtype = torch.float32) -> list[Stage]:
        """A copy of the network."""
        return [stage.to(dtype) for stage in copy.deepcopy(self._stages)]


def gradients(contestant: Contestant, chain: Chain, dtype: torch.dtype) -> Tensor:
    """Of all parameters in a row, in float64, computed in `dtype`."""
    trainer = contestant.trainer(chain.stages(dtype), nn.functional.cross_entropy, None)
    for _ in range(trainer.ready):
        trainer.step(chain.images.to(dtype), chain.labels)
    return torch.cat([gradient.double().flatten() for gradient in trainer.gradients()])


def batch_norm_updates(contestant: Contestant, chain: Chain, steps: int = 2) -> float:
    """Updates of running statistics in a step, of the layer with most."""
    stages = chain.stages()
    layers = [layer for stage in stages for layer in stage.modules() if isinstance(layer, nn.BatchNorm2d)]
    trainer = contestant.trainer(stages, nn.functional.cross_entropy, OPTIMIZER)
    for _ in range(trainer.ready):
        trainer.step(chain.images, chain.labels)
    before = [int(layer.num_batches_tracked) for layer in layers]
    for _ in range(steps):
        trainer.step(chain.images, chain.labels)
    return max((int(layer.num_batches_tracked) - b) / steps for layer, b in zip(layers, before, strict=True))


def allocated(contestant: Contestant, options: argparse.Namespace) -> tuple[int, int]:
    """Most bytes at a moment, and those held when the last loss is called."""
    with Allocations(torch.device("cpu")) as allocations:

        def marked(logits: Tensor, labels: Tensor) -> Tensor:
            allocations.mark()
            return nn.functional.cross_entropy(logits, labels)

        train(contestant, options, marked)
    return allocations.peak, allocations.marks[-1]


def train(contestant: Contestant, options: argparse.Namespace, loss: Loss = nn.functional.cross_entropy) -> None:
    """Make the network and take steps until one is like the next, and another."""
    chain = Chain(options)
    trainer = contestant.trainer(chain._stages, loss, OPTIMIZER)
    for _ in range(trainer.ready + 1):
        trainer.step(chain.images, chain.labels)


def process_peak(name: str, options: argparse.Namespace) -> int | None:
    """By how much the process grows; None where the system does not say. To be called in a fresh process."""
    contestant = next(contestant for contestant in CONTESTANTS if contestant.name == name)
    # What the first step of a process loads and allocates, whatever it trains, is no matter of the contestant.
    train(contestant, argparse.Namespace(depth=2, width=1, pixels=4, batch=2, threads=options.threads))
    witness = Witness(torch.device("cpu"))
    train(contestant, options)
    said = witness.report()
    return None if said is None else int(said["peak"])


def once(
    contestant: Contestant, chain: Chain, reference: Tensor, options: argparse.Namespace
) -> dict[tuple[str, str], float]:
    """All but the time: (quantity, unit) -> value."""
    single, double = (gradients(contestant, chain, dtype) for dtype in (torch.float32, torch.float64))
    peak, at_loss = allocated(contestant, options)
    grown = in_fresh_process(process_peak, contestant.name, options)
    found = {
        ("gradient error, float32", "relative"): float((single - reference).norm() / reference.norm()),
        ("gradient error, float64", "relative"): float((double - reference).norm() / reference.norm()),
        ("BatchNorm updates", "a step"): batch_norm_updates(contestant, chain),
        ("allocated peak", "B"): peak,
        ("held at the loss", "B"): at_loss,
    }
    return found if grown is None else {**found, ("process peak", "B"): max(0, grown)}


def timed(trainer: Trainer, chain: Chain) -> float:
    """Seconds of a step."""
    begin = time.perf_counter()
    trainer.step(chain.images, chain.labels)
    return time.perf_counter() - begin
