"""Train RevNet-18 on CIFAR-10 with PETRA in a custom training loop, without `reproduce`.

python examples/train_cifar.py --data DIR      DIR contains cifar-10-batches-py, as torchvision unpacks it
python examples/train_cifar.py                 without the data: synthetic images, one colour for each class
"""

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torchvision import datasets, transforms

from petra_core import Pipeline, checkpoint, methods, models
from petra_core.optimizers import sgd


def images(data: Path | None, batch_size: int, *, train: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of one epoch of CIFAR-10 or, without `data`, synthetic images without end."""
    if data is None:
        colours = torch.randn(10, 3, 1, 1, generator=torch.Generator().manual_seed(0))
        while True:
            labels = torch.randint(10, (batch_size,))
            yield colours[labels] + 0.5 * torch.randn(batch_size, 3, 32, 32), labels
    plain = [transforms.ToTensor(), transforms.Normalize((0.491, 0.482, 0.447), (0.247, 0.243, 0.262))]
    augmented = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), *plain]
    dataset = datasets.CIFAR10(str(data), train=train, transform=transforms.Compose(augmented if train else plain))
    yield from torch.utils.data.DataLoader(dataset, batch_size, shuffle=train, drop_last=train)


def accuracy(pipeline: Pipeline, batches: Iterator[tuple[Tensor, Tensor]], device: torch.device) -> float:
    """Return the fraction of images that are classified correctly."""
    right = total = 0
    for x, y in batches:
        logits = pipeline.evaluate(x.to(device))
        assert isinstance(logits, Tensor)
        right += int((logits.argmax(1).cpu() == y).sum())
        total += len(y)
    return right / total


def main(arguments: list[str] | None = None) -> float:
    """Train, evaluate and save a checkpoint after every epoch, and return the final test accuracy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of cifar-10-batches-py; synthetic images without it")
    parser.add_argument("--method", default="PETRA", help="one of petra_core.methods")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=782, help="micro-batches of an epoch at most")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("-k", "--accumulation", type=int, default=4, help="micro-batches of an update")
    parser.add_argument("--width", type=int, default=16, help="channels of the first stage; the paper's are 64")
    parser.add_argument("--checkpoint", type=Path, help="file to resume from, if it is there, and to save to")
    given = parser.parse_args(arguments)

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    stages = models.revnet(18, num_classes=10, stem="cifar", width=given.width)
    pipeline = Pipeline(
        [stage.to(device) for stage in stages],
        methods.by_name(given.method),
        accumulation=given.accumulation,
        optimizer=sgd(0.1, weight_decay=5e-4),
        autocast=torch.bfloat16 if device.type == "cuda" else None,
        seed=0,
    )
    if given.checkpoint is not None and given.checkpoint.exists():
        pipeline.load_state_dict(checkpoint.load(given.checkpoint))
    length = given.epochs * given.steps
    base = 0.1 * given.batch_size * given.accumulation / 256  # as in the paper: proportional to samples per update
    warmup, drops = length // 20, (length // 2, length * 3 // 4)
    test_accuracy = 0.0
    for epoch in range(pipeline.micro_batches // given.steps, given.epochs):
        losses = []
        for x, y in itertools.islice(images(given.data, given.batch_size, train=True), given.steps):
            number = pipeline.micro_batches
            dropped = base * 0.1 ** sum(number >= drop for drop in drops)
            pipeline.set_learning_rate(base * number / warmup if number < warmup else dropped)
            losses.append(pipeline.step(x.to(device), y.to(device)))
        if given.checkpoint is not None:
            checkpoint.save(given.checkpoint, pipeline.state_dict())  # with the micro-batches in flight
        if epoch + 1 == given.epochs:
            pipeline.drain()  # train on the micro-batches in flight
        test = itertools.islice(images(given.data, given.batch_size, train=False), 157)
        test_accuracy = accuracy(pipeline, test if given.data else itertools.islice(test, 16), device)
        mean = torch.stack([loss for loss in losses if loss is not None]).mean().item()
        print(f"epoch {epoch + 1}: mean loss {mean:.3f}, test accuracy {test_accuracy:.1%}")
    return test_accuracy


if __name__ == "__main__":
    main()
