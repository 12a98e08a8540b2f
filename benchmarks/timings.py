"""Speed of PETRA at smaller staleness: asynchronous 1F1B against lockstep, on two processes, in pairs.

Staleness changes what is computed, but not how much. Under asynchronous 1F1B the same stages have half of the staleness
of lockstep. If the blocks of a process are merged into one stage, staleness is 1 in the first process and 0 in the
second. The price is a lower tolerance to latency. So three pipelines over the same two processes and the same cut are
timed in turn, in rounds. Each stays full between its turns, and ratios are taken within a round:

    lockstep             staleness 2(J - 1 - j) of J blocks
    asynchronous 1F1B    staleness J - 1 - j
    one stage a process  staleness (1, 0): nothing hides the round trip between the processes, so two messages for
                         each micro-batch take time

A tick is the time of a micro-batch in lockstep. A message is timed by ping-pong with the size of the largest message
between the processes. Usage with the defaults:

    python -m benchmarks.timings --networks chain10 revnet18 --width 32 --batch 16 --rounds 7
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.arguments import add_networks, add_quick, count, parse_quick, positive
from benchmarks.pipelining import PROCESSES, Cut, PipeliningSetting, best_cut
from benchmarks.recording import Recorder, about, add_options, command
from benchmarks.teams import BenchmarkTeam, Serve
from benchmarks.timeline import ping, seconds_together
from petra_core import methods, staleness
from petra_core.ledger import payload
from petra_core.tape import as_streams, as_value
from reproduce.records.benchmarks import Benchmark, Comparison

TITLE = "PETRA in lockstep and at asynchronous 1F1B"
QUANTITY = "time of a micro-batch"
LOCKSTEP, ONE_F_ONE_B, MERGED = "lockstep", "asynchronous 1F1B", "asynchronous 1F1B, one stage a process"


def vectors(cut: Cut) -> dict[str, tuple[int, ...]]:
    """Return the staleness of each block for each timing."""
    blocks = sum(cut)
    return {
        LOCKSTEP: staleness.lockstep(blocks),
        ONE_F_ONE_B: staleness.one_f_one_b(blocks),
        MERGED: staleness.per_device(cut),
    }


def serving(rank: int, setting: PipeliningSetting, cut: Cut) -> Serve:
    """Build the pipelines of all timings in one process, full and ready to be timed."""
    images, labels = setting.data()
    pipelines = {name: setting.pipeline(methods.PETRA, cut, staleness=vector) for name, vector in vectors(cut).items()}

    def train(name: str, micro_batches: int) -> float:
        return seconds_together(pipelines[name], images, labels, micro_batches)

    orders: dict[str, Callable[..., Any]] = {"train": train, "ping": ping}
    return lambda order, *arguments: orders[order](*arguments)


def message_bytes(setting: PipeliningSetting, cut: Cut) -> int:
    """Return the bytes of a downward message: the gradient, and the input if the stage below is invertible."""
    images, _ = setting.data()
    streams = as_streams(images)
    with torch.no_grad():
        stages = setting.stages()[: cut[0]]
        for stage in stages:
            streams = as_streams(stage(as_value(streams)))
    return payload(streams) * (2 if stages[-1].invertible else 1)


def compare(setting: PipeliningSetting, rounds: int, seconds: float, recorder: Recorder) -> None:
    """Measure all timings on one network."""
    group = f"{setting.network}, width {setting.width}, P = {PROCESSES}"
    cut, names = best_cut(setting, methods.PETRA), (LOCKSTEP, ONE_F_ONE_B, MERGED)
    size = message_bytes(setting, cut)
    messages, ticks = [], []
    with BenchmarkTeam(PROCESSES, serving, setting, cut) as team:
        for name in names:
            team.ask("train", name, 2 * vectors(cut)[name][0] + 2)  # fill and warm up
        micro_batches = max(2, round(2 * seconds / max(team.ask("train", LOCKSTEP, 2))))
        for number in range(rounds):
            for name in names:
                measured = max(team.ask("train", name, micro_batches)) / micro_batches
                recorder.add(group, name, QUANTITY, "s", measured)
                if name == LOCKSTEP:
                    ticks.append(measured)
            messages.append(max(team.ask("ping", size)))
            print(f"  {setting.network}, round {number + 1} of {rounds}", flush=True)
    travelling = 2 * statistics.median(messages) / statistics.median(ticks)
    recorder.comparisons += [
        Comparison(group, QUANTITY, ONE_F_ONE_B, LOCKSTEP),
        Comparison(group, QUANTITY, MERGED, LOCKSTEP),
    ]
    recorder.notes.append(
        f"{group}: {' + '.join(map(str, cut))} blocks; a message of {size / 1e6:.2f} MB takes "
        f"{1e6 * statistics.median(messages):.0f} µs, two of them {travelling:.1%} of a tick."
    )


def main(arguments: Sequence[str] | None = None) -> Benchmark:
    """Run the benchmark from the command line and return it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_networks(parser)
    parser.add_argument("--rounds", type=count, default=7, help="rounds; each measures every timing once (default 7)")
    parser.add_argument("--seconds", type=positive, default=2, help="seconds per timing and round (default 2)")
    add_quick(parser)
    add_options(parser, "timings")
    options = parse_quick(parser, arguments)

    torch.set_num_threads(1)
    recorder = Recorder(TITLE, about(__doc__), command("benchmarks.timings", arguments), options)
    for name in options.networks:
        setting = PipeliningSetting(name, options.width, options.batch, options.size, micro_batches=1)
        compare(setting, options.rounds, options.seconds, recorder)
    return recorder.finish()


if __name__ == "__main__":
    main()
