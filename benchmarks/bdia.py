"""Memory and time of a step of a ViT, a RevViT and a BDIA-ViT of the published size (arXiv 2407.09093).

Six blocks of 512 channels, micro-batches of 128 images of 32 pixels, AdamW: the size at which 1570.6, 572.7 and
693.4 MB were published (second-hand). Plain backpropagation keeps every graph; both others reconstruct, BDIA with one
bit kept for every value. Memory is the allocator's peak over two steps, the network and temporaries included; side bits
are those that the engine accounts for, all stages. Time is taken in turn, round by round. Usage, with the defaults:

    python -m benchmarks.bdia --batch 128 --threads 2 --rounds 5 --record
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial

import torch

from benchmarks import steps
from benchmarks.arguments import add_device, count
from benchmarks.recording import Recorder, about, add_options, command
from petra_core import Pipeline
from petra_core.optimizers import adamw
from reproduce.cells import catalogue, networks
from reproduce.grids.plans import bdia
from reproduce.grids.plans.bdia import TransformerContestant
from reproduce.records.benchmarks import SIDE_BITS, Benchmark
from reproduce.running import devices
from reproduce.running.execution import deterministic

GROUP = "published size"


def stepping(
    contestant: TransformerContestant, batch: int, device: torch.device
) -> tuple[Pipeline, Callable[[], object]]:
    """A pipeline after its first step, which makes what only that makes, and a function that does one more."""
    cell = bdia.as_published(contestant)
    classes = catalogue.by_name(cell.dataset).num_classes
    torch.manual_seed(0)
    with torch.device(device):
        stages = networks.build(cell, classes)
        images = torch.randn(batch, 3, cell.image_size, cell.image_size)
        labels = torch.randint(classes, (batch,))
    pipeline = Pipeline(stages, contestant.method, optimizer=adamw(cell.learning_rate), seed=0)
    step = partial(pipeline.step, images, labels)
    step()
    return pipeline, step


def measure(recorder: Recorder, batch: int, device: torch.device, rounds: int) -> None:
    """Measure the bytes of each, then their seconds."""
    for contestant in bdia.PUBLISHED:
        report = stepping(contestant, batch, device)[0].memory()
        recorder.add(GROUP, contestant.title, SIDE_BITS, "B", sum(stage.peak["side_bits"] for stage in report.stages))

    def maker(contestant: TransformerContestant) -> steps.Maker:
        return lambda: stepping(contestant, batch, device)[1]

    steps.measure(recorder, GROUP, {c.title: maker(c) for c in bdia.PUBLISHED}, device, rounds)


def main(arguments: Sequence[str] | None = None) -> Benchmark:
    """Run from the command line; returns the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=count, default=128, help="images of a micro-batch (default 128)")
    parser.add_argument("--rounds", type=count, default=5, help="times of each (default 5)")
    parser.add_argument("--threads", type=count, default=2, help="CPU threads (default 2)")
    add_device(parser)
    add_options(parser, "bdia")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    device = devices.take(options.device)
    recorder = Recorder("BDIA", about(__doc__), command("benchmarks.bdia", arguments), options, device)
    with deterministic(device):  # the kernels with which cells are trained
        measure(recorder, options.batch, device, options.rounds)
        return recorder.finish()


if __name__ == "__main__":
    main()
