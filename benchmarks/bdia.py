"""Memory and time of a step of a ViT, a RevViT and a BDIA-ViT of the published size (arXiv 2407.09093).

The networks have six blocks of 512 channels and train on micro-batches of 128 images of 32 pixels with AdamW. For this
size 1570.6, 572.7 and 693.4 MB were published (quoted from a secondary source). Plain backpropagation keeps every
graph. The other two reconstruct their inputs; BDIA keeps one bit per value to do so exactly. Memory is the allocator's
peak over two steps, including the network and temporaries. Side bits are counted by the engine, over all stages. Times
are measured in turn, round by round. Usage with the defaults:

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
    """Return a pipeline after its first step, which creates all lazy state, and a function that makes another step."""
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
    """Measure the bytes of each contestant, then the seconds."""
    for contestant in bdia.PUBLISHED:
        report = stepping(contestant, batch, device)[0].memory()
        recorder.add(GROUP, contestant.title, SIDE_BITS, "B", sum(stage.peak["side_bits"] for stage in report.stages))

    def maker(contestant: TransformerContestant) -> steps.Maker:
        return lambda: stepping(contestant, batch, device)[1]

    steps.measure(recorder, GROUP, {c.title: maker(c) for c in bdia.PUBLISHED}, device, rounds)


def main(arguments: Sequence[str] | None = None) -> Benchmark:
    """Run the benchmark from the command line and return it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=count, default=128, help="images per micro-batch (default 128)")
    parser.add_argument("--rounds", type=count, default=5, help="timed steps of each network (default 5)")
    parser.add_argument("--threads", type=count, default=2, help="CPU threads (default 2)")
    add_device(parser)
    add_options(parser, "bdia")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    device = devices.take(options.device)
    recorder = Recorder("BDIA", about(__doc__), command("benchmarks.bdia", arguments), options, device)
    with deterministic(device):  # the kernels that cells are trained with
        measure(recorder, options.batch, device, options.rounds)
        return recorder.finish()


if __name__ == "__main__":
    main()
