"""Compare training methods on one network: loss, accuracy, staleness and predicted memory, on handwritten digits.

python examples/compare_methods.py
python examples/compare_methods.py --methods BACKPROPAGATION PETRA -k 1 4 16 --learning-rate 0.05
"""

import argparse
import itertools

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from petra_core import BufferedStage, HeadStage, NonFiniteError, Pipeline, ReversibleStage, Stage, methods, prediction
from petra_core.models import ConcatStreams, DuplicateStreams
from petra_core.optimizers import sgd
from petra_core.staleness import one_f_one_b

WIDTH, BATCH = 32, 16


def network(seed: int) -> list[Stage]:
    """Return a reversible perceptron in six stages, with the same weights for every method."""
    torch.manual_seed(seed)
    functions = [nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(4)]
    stem = BufferedStage(nn.Sequential(nn.Linear(64, WIDTH), DuplicateStreams()))
    head = HeadStage(nn.Sequential(ConcatStreams(), nn.Linear(2 * WIDTH, 10)))
    return [stem, *map(ReversibleStage, functions), head]


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training images, training labels, test images and test labels."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    train, test = order[:1440], order[1440:]
    return x[train], y[train], x[test], y[test]


def main(arguments: list[str] | None = None) -> dict[tuple[str, int], float | None]:
    """Train with every method at every k, print a table, and return the test accuracies (None if a run diverged)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=[method.name for method in methods.PAPER], metavar="METHOD")
    parser.add_argument("-k", "--accumulation", nargs="+", type=int, default=[1, 4], help="micro-batches of an update")
    parser.add_argument("--learning-rate", type=float, default=0.005, help="at k = 1; in proportion to k")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--half", action="store_true", help="asynchronous 1F1B: half the staleness of lockstep")
    given = parser.parse_args(arguments)
    x, y, x_test, y_test = digits()
    steps = given.epochs * (len(y) // BATCH)
    accuracies: dict[tuple[str, int], float | None] = {}
    print(f"{'method':<28} k  staleness  memory, kB  loss of the last epoch  test accuracy")
    for name, k in itertools.product(given.methods, given.accumulation):
        method, stages = methods.by_name(name), network(0)
        staleness = one_f_one_b(len(stages)) if given.half and method.pipelined else None
        optimizer = sgd(0.1, weight_decay=1e-4)
        held = prediction.predict(
            *(stages, method, x[:BATCH], y[:BATCH]), accumulation=k, staleness=staleness, optimizer=optimizer
        )
        pipeline = Pipeline(stages, method, accumulation=k, staleness=staleness, optimizer=optimizer, seed=0)
        order = torch.Generator().manual_seed(0)
        losses: list[Tensor] = []
        accuracy = None
        try:
            while len(losses) < steps:
                for chosen in torch.randperm(len(y), generator=order).split(BATCH)[: len(y) // BATCH]:
                    warm_up = min(1.0, (len(losses) + 1) / (steps / 4))
                    pipeline.set_learning_rate(given.learning_rate * k * warm_up)
                    loss = pipeline.step(x[chosen], y[chosen])
                    assert loss is not None  # a single process always has the loss
                    losses.append(loss)
            pipeline.drain()
            pipeline.check_finite()
            logits = pipeline.evaluate(x_test)
            assert isinstance(logits, Tensor)
            accuracy = (logits.argmax(1) == y_test).float().mean().item()
            result = f"{torch.stack(losses[-steps // given.epochs :]).mean().item():>22.3f}  {accuracy:>13.1%}"
        except NonFiniteError as error:
            result = f"not finite in micro-batch {error.micro_batch}"
        accuracies[method.name, k] = accuracy
        kilobytes = sum(stage.total for stage in held) / 1000
        print(f"{method.name:<28} {k:<2} {pipeline.staleness[0]:>9} {kilobytes:>11,.0f} {result}")
    return accuracies


if __name__ == "__main__":
    main()
