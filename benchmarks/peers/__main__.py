"""Time, memory, gradients and BatchNorm updates of every contestant on the same chain, side by side.

The same chain of reversible blocks, with the same weights and micro-batch, is trained by other implementations and by
ours. Allocated: bytes of all tensors, parameters and optimizer included; held at the loss: the same, when the loss is
called. Gradient error: relative to autograd's in float64, over all parameters, the weights held still. BatchNorm
updates: of a layer's running statistics in a step, the layer with most. A step of PETRA is a tick on one device.

Usage, with the defaults, in the environment that `nox -s peers` makes:

    python -m benchmarks.peers --threads 2 --record
"""

import argparse
import importlib.metadata
import importlib.util
import sys
from collections.abc import Sequence

import torch
from torch import nn

from benchmarks.arguments import count
from benchmarks.peers.contestants import CONTESTANTS, Contestant
from benchmarks.peers.measures import OPTIMIZER, Chain, gradients, once, timed
from benchmarks.recording import Recorder, about, add_options, command
from reproduce.benchmark_records import Benchmark, Comparison

GROUP = "chain"
NOT_INSTALLED = "not installed"


def state(contestant: Contestant) -> str:
    """The version that is there."""
    if contestant.package is None:
        return "this project" if contestant.ours else f"torch {torch.__version__}"
    if importlib.util.find_spec(contestant.package) is None:
        return NOT_INSTALLED
    return importlib.metadata.version(contestant.package)


def main(arguments: Sequence[str] | None = None) -> Benchmark:
    """Run from the command line; returns the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=count, default=8, help="reversible blocks, an even number (default 8)")
    parser.add_argument("--width", type=count, default=32, help="channels of a stream (default 32)")
    parser.add_argument("--pixels", type=count, default=16, help="of an image's side (default 16)")
    parser.add_argument("--batch", type=count, default=32, help="images in a micro-batch (default 32)")
    parser.add_argument("--threads", type=count, default=torch.get_num_threads(), help="CPU threads (default torch's)")
    parser.add_argument("--rounds", type=count, default=9, help="rounds of times (default 9)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one round: does it run?")
    add_options(parser, "peers")
    options = parser.parse_args(arguments)
    if options.quick:
        options.depth, options.width, options.pixels, options.batch, options.rounds = 2, 2, 4, 2, 1
    if options.depth < 2 or options.depth % 2:
        parser.error(f"--depth is {options.depth}, expected an even number: the packages couple blocks in pairs")

    chain = Chain(options)
    recorder = Recorder("Peers", about(__doc__), command("benchmarks.peers", arguments), options)
    recorder.setting["contestants"] = "; ".join(contestant.name for contestant in CONTESTANTS)
    reference = gradients(CONTESTANTS[0], chain, torch.float64)
    trainers = {}
    for contestant in CONTESTANTS:
        recorder.setting[contestant.name] = state(contestant)
        if recorder.setting[contestant.name] == NOT_INSTALLED:
            continue
        try:
            found = once(contestant, chain, reference, options)
            trainer = contestant.trainer(chain.stages(), nn.functional.cross_entropy, OPTIMIZER)
            for _ in range(trainer.ready):
                trainer.step(chain.images, chain.labels)
        except Exception as error:  # whatever a package raises is its result
            if contestant.package is None:
                raise
            recorder.setting[contestant.name] += f": failed with {type(error).__name__}: {error}"
            continue
        trainers[contestant.name] = trainer
        for (quantity, unit), value in found.items():
            recorder.add(GROUP, contestant.name, quantity, unit, value)
        print("  " + contestant.name + ": " + ", ".join(f"{q} {value:.4g}" for (q, _), value in found.items()))
    for _ in range(options.rounds):
        for name, trainer in trainers.items():
            recorder.add(GROUP, name, "time of a step", "s", timed(trainer, chain))
    for name in list(trainers)[1:]:
        for quantity in ("time of a step", "allocated peak"):
            recorder.comparisons.append(Comparison(GROUP, quantity, name, CONTESTANTS[0].name))
    return recorder.finish()


if __name__ == "__main__":
    main()
    sys.exit(0)
