"""Train one network over two processes in a custom loop: partition, early stopping, evaluation and export.

torchrun --nproc-per-node 2 examples/two_processes.py --model model.pt
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from petra_core import BufferedStage, Clip, HeadStage, Pipeline, ReversibleStage, Stage, methods, models, prediction
from petra_core.distributed import ProcessChannel
from petra_core.models import ConcatStreams, DuplicateStreams
from petra_core.optimizers import sgd

WIDTH, CLASSES = 16, 4


def network() -> list[Stage]:
    """Return a multilayer perceptron in six stages."""
    functions = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)) for _ in range(4)]
    stem = BufferedStage(nn.Sequential(nn.Linear(8, WIDTH), DuplicateStreams()))
    head = HeadStage(nn.Sequential(ConcatStreams(), nn.Linear(2 * WIDTH, CLASSES)))
    return [stem, *map(ReversibleStage, functions), head]


def samples(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw points around one centre for each class."""
    centres = torch.randn(CLASSES, 8, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return centres[labels] + 0.5 * torch.randn(count, 8, generator=generator), labels


def main(arguments: list[str] | None = None) -> float:
    """Train until the loss is low, and return the test accuracy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20, help="passes over the data at most")
    parser.add_argument("--loss", type=float, default=0.3, help="mean loss of an epoch at which training stops")
    parser.add_argument("--model", type=Path, help="file for the trained weights")
    given = parser.parse_args(arguments)
    dist.init_process_group("gloo")  # torchrun sets the rank and the address
    rank, last = dist.get_rank(), dist.get_world_size() - 1

    torch.manual_seed(0)  # every rank builds the whole network with the same weights
    stages = network()
    # Times differ between ranks, so one rank measures and the others receive the result.
    partition: list[tuple[int, ...] | None] = [None]
    if rank == 0:
        partition[0] = prediction.balance(stages, methods.PETRA, *samples(32, 1), last + 1).sizes
    dist.broadcast_object_list(partition)
    assert partition[0] is not None
    channel = ProcessChannel(partition[0])
    pipeline = Pipeline(
        stages,
        methods.PETRA,
        accumulation=2,
        optimizer=sgd(0.05, weight_decay=1e-4),
        clip=Clip(1.0, per_stage=True),
        seed=0,
        channel=channel,
    )
    # The first rank uses the inputs, the last rank the targets: the order must be the same everywhere.
    order = torch.Generator().manual_seed(0)
    loader = DataLoader(TensorDataset(*samples(512, 1)), 32, shuffle=True, drop_last=True, generator=order)
    for epoch in range(given.epochs):
        losses = [pipeline.step(x, y) for x, y in loader]  # None on ranks without the head
        mean = torch.stack([loss for loss in losses if loss is not None]).mean() if rank == last else torch.zeros(())
        dist.broadcast(mean, last)  # all ranks must make the same decision
        if rank == 0:
            print(f"epoch {epoch + 1}: partition {partition[0]}, mean loss {mean.item():.3f}")
        if mean < given.loss:
            break
    pipeline.drain()

    x, y = samples(256, 2)
    logits = pipeline.evaluate(x)  # collective; every rank gets the output
    assert isinstance(logits, Tensor)
    accuracy = (logits.argmax(1) == y).float().mean().item()
    weights = pipeline.gather()  # collective; the stages of other ranks are not trained here
    if rank == 0:
        print(f"test accuracy {accuracy:.1%}")
        if given.model is not None:
            plain = models.sequential(network())
            plain.load_state_dict(weights)
            torch.save(plain.state_dict(), given.model)
    channel.close()
    dist.destroy_process_group()
    return accuracy


if __name__ == "__main__":
    main()
