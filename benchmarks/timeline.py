"""The timeline model against the engine: predicted and measured time of a micro-batch, over one and two processes.

Every round measures the costs of all stages and the link between the processes. From these the model
(`reproduce.modelling.simulation`) predicts each method's time for a micro-batch, and then the engine runs the method.
The result is the median over the rounds of predicted over measured time.

Two processes on one machine slow each other down through shared memory and caches. So stage costs are measured under
the conditions in which the stage will run: by both processes concurrently for a method that keeps both busy, and by one
while the other sleeps for a method that passes one micro-batch at a time. A process measures its stages in turn, as in
training, so that no stage finds its weights in the cache. The link is timed by ping-pong with a message of the size
between the processes and with an empty one. Usage with the defaults of the project's claim:

    python -m benchmarks.timeline --networks chain10 revnet18 --width 32 --batch 16 --rounds 7
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.arguments import add_networks, add_quick, count, parse_quick, positive
from benchmarks.pipelining import PipeliningSetting, best_cut
from benchmarks.recording import Recorder, about, add_options, command
from benchmarks.teams import BenchmarkTeam, Serve
from petra_core import Pipeline, methods
from petra_core.methods import Method
from petra_core.prediction.measuring import StageAlone, TurnSeconds
from petra_core.prediction.partition import Cost
from reproduce.distributed.processes import gather_json
from reproduce.distributed.tracing import gather_events, make_timeline, tracing
from reproduce.drawing.timeline import Event, Timeline
from reproduce.modelling.simulation import Link, make_schedule, simulate
from reproduce.records.benchmarks import Benchmark, Comparison

TITLE = "The timeline model against the engine"
METHODS = (methods.PETRA, methods.REVERSIBLE_BACKPROPAGATION, methods.BACKPROPAGATION)
PROCESSES = (1, 2)
QUANTITY, MEASURED, PREDICTED = "time of a micro-batch", "measured", "predicted"
PINGS = 10  # round trips
DRAWN = 4  # duration of a drawing in micro-batches


def serving(rank: int, setting: PipeliningSetting, turns: int, partition: tuple[int, ...]) -> Serve:
    """Serve requests in each process: measure the costs of stages and link, over `turns` timings, and train."""
    first = sum(partition[:rank])
    own_stages = range(first, first + partition[rank])
    images, labels = setting.data()
    stages_alone = {method: setting.stages_alone(method, own_stages) for method in METHODS}
    pipelines = {method: setting.pipeline(method, partition) for method in METHODS}

    def costs(method: Method) -> list[Cost]:
        """Return the costs of the stages of this process."""
        dist.barrier()
        rounds: list[list[TurnSeconds]] = []
        for process in range(len(partition) if not method.pipelined else 1):
            if method.pipelined or process == rank:
                rounds = [_turns(stages_alone[method], method) for _ in range(turns + 1)][1:]
            if not method.pipelined:
                dist.barrier()
        per_stage = zip(stages_alone[method], zip(*rounds, strict=True), strict=True)
        # Means include other load of the machine, as does the engine's total time.
        return [stage.cost(timed, statistics.fmean) for stage, timed in per_stage]

    def train(method: Method, micro_batches: int) -> float:
        return seconds_together(pipelines[method], images, labels, micro_batches)

    def trace(method: Method, micro_batches: int) -> Timeline:
        """Return the timeline of all processes."""
        with tracing(pipelines[method], rank) as trace_here:
            train(method, micro_batches)
        return make_timeline(gather_events(trace_here, gather_json))

    orders: dict[str, Callable[..., Any]] = {"costs": costs, "train": train, "trace": trace, "ping": ping}
    return lambda order, *arguments: orders[order](*arguments)


def _turns(stages: Sequence[StageAlone], method: Method) -> list[TurnSeconds]:
    """Time one turn of every stage, in the order of a tick, or of a pass if one micro-batch passes at a time.

    In a pass all forwards come before the first backward, which therefore does not find the results of its forward in a
    cache. The engine runs in this order, and plain backpropagation, whose graphs are large, is slower for it.
    """
    if method.pipelined:
        return [stage.turn() for stage in stages]
    forwards = [stage.forward() for stage in stages]
    backwards = [stage.backward() for stage in reversed(stages)]
    return [TurnSeconds(forward, *rest) for forward, rest in zip(forwards, reversed(backwards), strict=True)]


def seconds_together(pipeline: Pipeline, images: Tensor, labels: Tensor, micro_batches: int) -> float:
    """Return the seconds that a pipeline takes for a number of micro-batches. All processes start together."""
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(micro_batches):
        pipeline.step(images, labels)
    seconds = time.perf_counter() - begin
    dist.barrier()
    return seconds


def ping(size: int) -> float:
    """Return the median one-way seconds of a message of `size` bytes between ranks 0 and 1: half of a round trip."""
    rank, message = dist.get_rank(), torch.empty(max(size // 4, 1))
    times = []
    for _ in range(PINGS + 1):
        begin = time.perf_counter()
        for sender in (0, 1):
            if rank == sender:
                dist.send(message, 1 - rank)
            else:
                dist.recv(message, 1 - rank)
        times.append((time.perf_counter() - begin) / 2)
    return statistics.median(times[1:])


def _link(team: BenchmarkTeam, size: int) -> Link:
    latency = max(team.ask("ping", 0))
    return Link(latency, size / max(max(team.ask("ping", size)) - latency, 1e-9))


def predict_timeline(
    method: Method, costs: Sequence[Cost], partition: Sequence[int], link: Link
) -> tuple[Timeline, float]:
    """Return the predicted run with k = 1, and its seconds per micro-batch in steady state.

    The run ends with backwards only, which are faster, so its last micro-batches are excluded.
    """
    filling = 2 * len(costs) if method.pipelined else 2
    model = simulate(make_schedule(method, partition, 3 * filling), costs, link)
    return model, model.seconds_per_micro_batch(skip=filling, drop=filling)


def window(whole: Timeline, seconds: float) -> Timeline:
    """Return the events that begin within `seconds` around the middle of a timeline, with times from 0."""
    middle = (min(event.begin for event in whole.events) + max(event.end for event in whole.events)) / 2
    begin = middle - seconds / 2
    within = [event for event in whole.events if begin <= event.begin < begin + seconds]
    return Timeline(tuple(Event(e.device, e.name, e.begin - begin, e.end - begin) for e in within), whole.devices)


def validate(setting: PipeliningSetting, turns: int, rounds: int, seconds: float, recorder: Recorder) -> None:
    """Compare model and engine for all methods on one network, over one process and over two."""
    cut = best_cut(setting, methods.PETRA)
    for processes in PROCESSES:
        partition = cut if processes == 2 else (sum(cut),)
        with BenchmarkTeam(processes, serving, setting, turns, partition) as team:
            _over(team, setting, partition, rounds, seconds, recorder)


def _over(
    team: BenchmarkTeam,
    setting: PipeliningSetting,
    partition: tuple[int, ...],
    rounds: int,
    seconds: float,
    recorder: Recorder,
) -> None:
    stages = sum(partition)
    for method in METHODS:
        team.ask("train", method, 2 * stages if method.pipelined else 2)  # warm up and fill
    count = {method: max(2, round(seconds / max(team.ask("train", method, 2)) * 2)) for method in METHODS}
    drawn: dict[Method, tuple[Timeline, float]] = {}
    for number in range(rounds):
        for method in METHODS:
            costs = [cost for stage_costs in team.ask("costs", method) for cost in stage_costs]
            border = partition[0]
            link = _link(team, costs[border].down) if len(partition) > 1 else Link()
            model, predicted = predict_timeline(method, costs, partition, link)
            measured = max(team.ask("train", method, count[method])) / count[method]
            group = _group(setting, method, partition)
            recorder.add(group, PREDICTED, QUANTITY, "s", predicted)
            recorder.add(group, MEASURED, QUANTITY, "s", measured)
            drawn[method] = model, measured
        print(f"  {setting.network}, P = {len(partition)}, round {number + 1} of {rounds}", flush=True)
    for method in METHODS:
        group = _group(setting, method, partition)
        recorder.comparisons.append(Comparison(group, QUANTITY, PREDICTED, MEASURED))
        if len(partition) > 1:
            model, measured = drawn[method]
            real = team.ask("trace", method, 3 * DRAWN)[0]
            recorder.timelines[f"{group}, modelled"] = window(model, DRAWN * measured)
            recorder.timelines[f"{group}, measured"] = window(real, DRAWN * measured)
    if len(partition) > 1:
        recorder.notes.append(
            f"{setting.network}: {' + '.join(map(str, partition))} stages over {len(partition)} processes; the link of "
            f"the last round has a latency of {1e6 * link.latency:.0f} µs and {link.bandwidth / 1e9:.2f} GB/s."
        )


def _group(setting: PipeliningSetting, method: Method, partition: Sequence[int]) -> str:
    return f"{setting.network}, width {setting.width}, {method}, P = {len(partition)}"


def main(arguments: Sequence[str] | None = None) -> Benchmark:
    """Run the benchmark from the command line and return it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_networks(parser)
    parser.add_argument("--turns", type=count, default=7, help="timings of every stage per round (default 7)")
    parser.add_argument("--rounds", type=count, default=7, help="rounds; each measures every method once (default 7)")
    parser.add_argument("--seconds", type=positive, default=2, help="seconds per method and round (default 2)")
    add_quick(parser)
    add_options(parser, "timeline")
    options = parse_quick(parser, arguments)

    torch.set_num_threads(1)
    recorder = Recorder(TITLE, about(__doc__), command("benchmarks.timeline", arguments), options)
    for name in options.networks:
        validate(
            PipeliningSetting(name, options.width, options.batch, options.size, micro_batches=1),
            options.turns,
            options.rounds,
            options.seconds,
            recorder,
        )
    return recorder.finish()


if __name__ == "__main__":
    main()
