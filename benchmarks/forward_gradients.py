"""Memory and time of a step by forward gradients, compared with backpropagation of the same network, and with PETRA.

The network is ResNet-18 in 8 blocks at the paper's width (arXiv 2306.06968), with the auxiliary CNNs of its command
line. PETRA trains RevNet-18 of the same width. Its step is a tick of the full pipeline, with all stages in this
process. Memory is the allocator's peak, including the network and temporaries. Times are measured in turn, round by
round. Usage with the defaults:

    python -m benchmarks.forward_gradients --batch 32 --width 64 --threads 2 --rounds 5 --record
"""

import argparse
from collections.abc import Sequence
from functools import partial

import torch

from benchmarks import steps
from benchmarks.arguments import CLASSES, add_device, count
from benchmarks.recording import Recorder, about, add_options, command
from benchmarks.tick import full_pipeline, sgd
from petra_core import Stage, methods, models
from petra_core.methods import Method
from reproduce.forward_gradients.blocks import auxiliary as auxiliary_networks
from reproduce.forward_gradients.blocks import local_resnet
from reproduce.forward_gradients.settings import ForwardGradient
from reproduce.forward_gradients.training import ForwardGradients
from reproduce.grids.plans.forward_gradients import WAYS
from reproduce.measures.context import MEMORY_FORMAT, to_memory_format
from reproduce.records.benchmarks import Benchmark
from reproduce.running import devices
from reproduce.running.execution import deterministic

GROUP, BLOCKS, PIXELS = "ResNet-18 in 8 blocks", 8, 32


def makers(batch: int, width: int, device: torch.device) -> dict[str, steps.Maker]:
    """Return the makers of the contestants by name, backpropagation first."""
    images = to_memory_format(torch.randn(batch, 3, PIXELS, PIXELS, device=device))
    labels = torch.arange(batch, device=device) % CLASSES

    def build_stages(stages: Sequence[Stage]) -> list[Stage]:
        return [stage.to(device).to(memory_format=MEMORY_FORMAT) for stage in stages]

    def local() -> list[Stage]:
        torch.manual_seed(0)
        return build_stages(local_resnet(BLOCKS, num_classes=CLASSES, width=width))

    def reversible() -> list[Stage]:
        torch.manual_seed(0)
        return build_stages(models.revnet(18, num_classes=CLASSES, width=width, stem="cifar"))

    def make_pipeline_step(method: Method) -> steps.Step:
        stages = local() if method is methods.BACKPROPAGATION else reversible()
        return partial(full_pipeline(stages, method, images, labels).step, images, labels)

    def forward(way: ForwardGradient) -> steps.Step:
        stages = local()
        auxiliary = auxiliary_networks("cnn", BLOCKS, num_classes=CLASSES, width=width)
        training = ForwardGradients(stages, way, auxiliary=auxiliary, optimizer=sgd, seed=0)
        training.step(images, labels)  # the first step counts bytes
        return partial(training.step, images, labels)

    return {
        methods.BACKPROPAGATION.title: partial(make_pipeline_step, methods.BACKPROPAGATION),
        **{str(way): partial(forward, way) for way in WAYS},
        methods.PETRA.title: partial(make_pipeline_step, methods.PETRA),
    }


def main(arguments: Sequence[str] | None = None) -> Benchmark:
    """Run the benchmark from the command line and return it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=count, default=32, help="images per batch (default 32)")
    parser.add_argument("--width", type=count, default=64, help="channels of the first blocks (default 64)")
    parser.add_argument("--rounds", type=count, default=5, help="timed steps of each method (default 5)")
    parser.add_argument("--threads", type=count, default=2, help="CPU threads (default 2)")
    add_device(parser)
    add_options(parser, "forward-gradients")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    device = devices.take(options.device)
    title, text = "Forward gradients", about(__doc__)
    recorder = Recorder(title, text, command("benchmarks.forward_gradients", arguments), options, device)
    with deterministic(device):  # the kernels that cells are trained with
        steps.measure(recorder, GROUP, makers(options.batch, options.width, device), device, options.rounds)
        return recorder.finish()


if __name__ == "__main__":
    main()
