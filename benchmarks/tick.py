"""Time of a tick of each method against a plain autograd step of the same network, in pairs; bytes held between ticks.

A tick of a full pipeline does the work of one micro-batch at every stage: one forward, one reconstructed graph, one
backward, one update. The plain step does the same work without the reconstruction. In units in which a forward costs 1
and a backward 2, the ratio is 4/3 for PETRA. A forward that keeps no graph is cheaper than one that does, so a lower
ratio is possible. The real cost on this machine is measured as well: the same step,
followed by a second forward of every stage except the head, without a graph. A tick evaluates at least that, so the
ratio of these two to the plain step is the lower bound, and everything above it is overhead of the engine.

With `--against APPROXIMATE_INPUTS` the other side is a tick of that method, which evaluates a reversible stage twice in
its backward: once to invert it and once for the graph. PETRA uses one evaluation for both. In the units above it needs
4/5 of the time if every stage is reversible. The bound is measured as well: a tick of PETRA,
followed by a second evaluation of the residual functions of the reversible stages, without a graph, which is exactly
what PETRA saves.

With `--captured 4` all sides are CUDA graphs (`petra_core.devices.captured`), and the stages of a tick are distributed
over this number of streams. This measures the device without the launch overhead of the host. All stages of a tick of
PETRA may run concurrently, while those of backpropagation wait for one another. So the other is backpropagation in its
best practical form: the whole autograd step as one graph, with one fused update, plain and compiled. With
`--against BACKPROPAGATION` its tick is measured too, in one stream.

With `--compile` the tick consists of compiled functions (`petra_core.devices.compiled`). With `--against PETRA` it is
compared with the same tick without compilation; with `--captured 4` a compiled tick is compared with the plain and
compiled autograd steps. `--compile steps` compiles all operations of a recorded tick
(`petra_core.devices.compiled_steps`).

Both sides use the kernels that cells are trained with (`reproduce.running.execution.deterministic`), in the requested
precision, with images and weights in channels-last format.

Both sides are timed in turn within one process, so that other load slows both. A result is the median of
the ratios of neighbouring timings. Usage with the defaults:

    python -m benchmarks.tick --network revnet18 --width 64 --batch 64 --size 32 --threads 2 --pairs 15
    python -m benchmarks.tick --threads 2 --against APPROXIMATE_INPUTS --record tick-double
    python -m benchmarks.tick --network chain8 --width 8 --batch 32 --size 16 --threads 1 --pairs 25
        --methods BACKPROPAGATION REVERSIBLE_BACKPROPAGATION PETRA --record tick-narrow
    python -m benchmarks.tick --device cuda --captured 4 --against BACKPROPAGATION --record tick-captured
    python -m benchmarks.tick --device cuda --captured 4 --precision tf32 --record tick-captured-tf32
    python -m benchmarks.tick --device cuda --captured 4 --precision tf32 --compile --record tick-captured-tf32-compiled
    python -m benchmarks.tick --device cuda --captured 4 --precision bf16 --batch 16 --record tick-captured-bf16-16
    python -m benchmarks.tick --threads 2 --compile --against PETRA --record tick-compiled
"""

import argparse
import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.arguments import (
    NETWORKS,
    add_device,
    add_precision,
    add_size,
    add_threads,
    as_trained,
    count,
    network,
    network_name,
    paper_method,
    whole_number,
)
from benchmarks.recording import Recorder, about, add_options, command
from petra_core import Pipeline, ReversibleStage, Stage, methods, models
from petra_core.devices import captured, compiled_steps
from petra_core.devices.captured import Record
from petra_core.devices.compiled import compile_functions
from petra_core.methods import Method
from petra_core.prediction.memory import predict
from reproduce.measures.run_options import MODULES, STEPS
from reproduce.records.benchmarks import Benchmark, Comparison
from reproduce.running import devices

TICK, PLAIN, COMPILED = "tick", "autograd step", "compiled autograd step"
#: An autograd step, followed by a forward of all stages except the head without a graph: no tick evaluates less.
PLAIN_AND_FORWARD = f"{PLAIN} and a forward"
#: A tick of PETRA, followed by the residual functions without a graph: the evaluations of a tick that inverts first.
TICK_AND_FUNCTIONS = f"{TICK} and its residual functions"

#: Before a step is recorded, as PyTorch's notes on CUDA graphs recommend.
PLAIN_STEPS = 3
HELD = ("inputs", "stashed_weights", "messages", "graph")


def sgd(parameters: Sequence[nn.Parameter], *, fused: bool | None = None) -> torch.optim.Optimizer:
    """Make the optimizer that both sides use."""
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=fused)


def autocast_context(autocast: torch.dtype | None, device: torch.device) -> torch.autocast:
    """Return the autocast context that the engine uses for every stage; None disables autocast."""
    return torch.autocast(device.type, autocast, enabled=autocast is not None, cache_enabled=False)


def plain_step(
    stages: Sequence[Stage],
    x: Tensor,
    y: Tensor,
    *,
    compiled: bool = False,
    record: Record | None = None,
    autocast: torch.dtype | None = None,
) -> Callable[[], object]:
    """Make an autograd step of the plain model.

    Args:
        stages: Stages of the model.
        x: Images of the micro-batch.
        y: Labels of the micro-batch.
        compiled: Whether the model is compiled as a whole.
        record: Records the step, so that the returned function replays it; None runs it eagerly.
        autocast: Dtype of the forward, or None.

    Returns:
        A function that takes one step.

    """
    model = models.sequential(stages)
    optimizer = sgd(list(model.parameters()), fused=None if record is None else True)
    evaluate = torch.compile(model, dynamic=False) if compiled else model

    def step() -> None:
        with autocast_context(autocast, x.device):
            loss = nn.functional.cross_entropy(evaluate(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    if record is None:
        return step
    for _ in range(PLAIN_STEPS):
        step()
    repeat = record(step)

    def repeat_step(kept: Callable[[], object] = step) -> None:
        del kept  # keeps model and optimizer alive; a recording has only their addresses
        repeat()

    return repeat_step


def forward_again(stages: Sequence[Stage], x: Tensor, autocast: torch.dtype | None = None) -> Callable[[], object]:
    """Return a forward of all stages except the head that keeps nothing, which a tick evaluates and a plain step omits.

    The head is excluded because its forward and backward are in one tick and share their evaluation.
    """
    body = models.sequential(stages[:-1])

    def forward() -> None:
        with torch.no_grad(), autocast_context(autocast, x.device):
            body(x)

    return forward


def functions_again(stages: Sequence[Stage], x: Tensor, autocast: torch.dtype | None = None) -> Callable[[], object]:
    """Return an evaluation of all residual functions without a graph, on the inputs that they get for `x`."""
    given: list[tuple[nn.Module, Tensor]] = []
    functions = [stage.function for stage in stages if isinstance(stage, ReversibleStage)]
    hooks = [
        function.register_forward_pre_hook(lambda module, inputs: given.append((module, inputs[0])))
        for function in functions
    ]
    forward_again(stages, x, autocast)()
    for hook in hooks:
        hook.remove()

    def evaluate() -> None:
        with torch.no_grad(), autocast_context(autocast, x.device):
            for function, inputs in given:
                function(inputs)

    return evaluate


def evaluations(
    calls: Mapping[str, Callable[[], object]],
    method: Method,
    rival: Method | None,
    stages: Sequence[Stage],
    x: Tensor,
    autocast: torch.dtype | None,
) -> dict[str, Callable[[], object]]:
    """Return a bound to measure as well: the side with fewer evaluations, followed by the evaluations that it saves."""
    if rival is None and not method.keeps_graph:
        return {PLAIN_AND_FORWARD: in_turn(calls[PLAIN], forward_again(stages, x, autocast))}
    if method is methods.PETRA and rival is methods.APPROXIMATE_INPUTS:
        return {TICK_AND_FUNCTIONS: in_turn(calls[TICK], functions_again(stages, x, autocast))}
    return {}


def in_turn(*calls: Callable[[], object]) -> Callable[[], object]:
    """Return a function that makes all calls, one after the other."""

    def all_of_them() -> None:
        for call in calls:
            call()

    return all_of_them


def full_pipeline(
    stages: list[Stage],
    method: Method,
    x: Tensor,
    y: Tensor,
    *,
    compiled: bool = False,
    autocast: torch.dtype | None = None,
) -> Pipeline:
    """Return a pipeline in steady state: every stage is busy and the buffers have stopped growing."""
    if compiled:
        compile_functions(stages)
    pipeline = Pipeline(stages, method, optimizer=sgd, seed=0, autocast=autocast)
    for _ in range(method.ticks_to_steady(len(stages), 1)):
        pipeline.step(x, y)
    return pipeline


def add_tick(parser: argparse.ArgumentParser) -> None:
    """Add the options that determine a tick: network, micro-batch, methods, compilation, device and precision."""
    parser.add_argument("--network", type=network_name, default="revnet18", help=NETWORKS)
    add_size(parser, width=64, batch=64, size=32)  # those of the paper for CIFAR
    parser.add_argument(
        "--methods", type=paper_method, nargs="+", default=[methods.PETRA], help="methods to time (default PETRA)"
    )
    add_device(parser)
    add_precision(parser, "bf16")
    parser.add_argument(
        "--compile",
        nargs="?",
        const=MODULES,
        default="",
        choices=[MODULES, STEPS],
        help="compile the modules of the tick's stages (default), or all operations of a recorded tick",
    )


def check_captured(
    parser: argparse.ArgumentParser, options: argparse.Namespace, chosen: Iterable[Method], streams: int
) -> None:
    """End the command with an error if a tick cannot be recorded."""
    for method in chosen:
        if streams and method.pipelined and (method.keeps_graph or method.stashes_weights):
            parser.error(f"--captured: ticks of {method} cannot be recorded; leave it out")
    if streams and not options.device.startswith("cuda"):
        parser.error(f"--captured makes CUDA graphs, and --device is {options.device}: add --device cuda")


def build(options: argparse.Namespace, device: torch.device, memory_format: torch.memory_format) -> list[Stage]:
    """Build the stages of the network that the options name."""
    return [s.to(device).to(memory_format=memory_format) for s in network(options.network, options.width)]


def micro_batch(
    options: argparse.Namespace, device: torch.device, memory_format: torch.memory_format
) -> tuple[Tensor, Tensor]:
    """Return random images and labels."""
    torch.manual_seed(0)
    x = torch.randn(options.batch, 3, options.size, options.size, device=device).to(memory_format=memory_format)
    return x, torch.randint(0, 10, (options.batch,), device=device)


def ticking(pipeline: Pipeline, x: Tensor, y: Tensor, streams: int, *, steps: bool = False) -> Callable[[], object]:
    """Return a function that takes a step of a full pipeline.

    Args:
        pipeline: Full pipeline.
        x: Images of the micro-batch.
        y: Targets of the micro-batch.
        streams: Number of CUDA streams of recorded steps; 0 runs plain steps.
        steps: Whether the operations of recorded steps are compiled.

    Returns:
        A function that takes one step.

    """
    if not streams:
        return partial(pipeline.step, x, y)
    ticks = compiled_steps.cuda(pipeline) if steps else captured.cuda(pipeline, streams=streams)
    while not ticks.recorded:
        ticks.step(x, y)
    return partial(ticks.step, x, y)


def time_call(function: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of one call, including the work of the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begin = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def rounds(
    contestants: Sequence[Callable[[], object]], number: int, device: torch.device
) -> Iterator[tuple[float, ...]]:
    """Yield the seconds of each contestant in neighbouring calls, round by round. Every other round runs backwards."""
    for turn in range(number):
        order = range(len(contestants))
        seconds = {index: time_call(contestants[index], device) for index in (reversed(order) if turn % 2 else order)}
        yield tuple(seconds[index] for index in order)


def record_rounds(
    recorder: Recorder,
    group: str,
    quantity: str,
    calls: Mapping[str, Callable[[], object]],
    number: int,
    device: torch.device,
) -> None:
    """Add the seconds of each contestant, by name, round by round."""
    for seconds in rounds(list(calls.values()), number, device):
        for name, value in zip(calls, seconds, strict=True):
            recorder.add(group, name, quantity, "s", value)


def main(arguments: Sequence[str] | None = None) -> Benchmark:
    """Run the benchmark from the command line and return it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_tick(parser)
    add_threads(parser)
    parser.add_argument("--pairs", type=count, default=15, help="pairs per method (default 15)")
    parser.add_argument(
        "--channels-last", action=argparse.BooleanOptionalAction, default=True, help="memory format of both sides"
    )
    parser.add_argument(
        "--against", type=paper_method, help=f"method whose tick is the other side (default: an {PLAIN})"
    )
    parser.add_argument("--captured", type=whole_number, default=0, metavar="STREAMS", help="all sides as CUDA graphs")
    add_options(parser, "tick")
    options = parser.parse_args(arguments)
    check_captured(parser, options, filter(None, (*options.methods, options.against)), options.captured)
    device = devices.take(options.device)
    with as_trained(parser, options, device):
        return measure(options, device, command("benchmarks.tick", arguments))


def measure(options: argparse.Namespace, device: torch.device, given: str) -> Benchmark:
    """Measure what the options request. `given` is the command line for the record."""
    torch.set_num_threads(options.threads)
    rival: Method | None = options.against
    side = "A compiled tick" if options.compile else "A tick"
    title = f"{side} against an {PLAIN}" if rival is None else f"{side} against one of {rival.title}"
    recorder = Recorder(title, about(__doc__), given, options, device)
    memory_format = torch.channels_last if options.channels_last else torch.contiguous_format
    x, y = micro_batch(options, device, memory_format)
    stages = partial(build, options, device, memory_format)
    setting = f"{options.network} width {options.width}, batch {options.batch}, {options.size} pixels, {memory_format}"
    setting += f", {options.precision}" * (options.precision != "float32")
    print(f"{setting}, {options.threads} threads, torch {torch.__version__}, {options.pairs} pairs")
    autocast = torch.bfloat16 if options.precision == "bf16" else None
    for method in dict.fromkeys(options.methods):
        pipeline = full_pipeline(stages(), method, x, y, compiled=options.compile == MODULES, autocast=autocast)
        others = rivals(stages, rival, x, y, options.captured, autocast)
        recorder.setting["against"] = ", ".join(others)
        calls = {TICK: ticking(pipeline, x, y, options.captured, steps=options.compile == STEPS), **others}
        if not (options.compile or options.captured):
            calls |= evaluations(calls, method, rival, stages(), x, autocast)
        for call in calls.values():
            call()
        group = f"{setting}, {method.title}"
        record_rounds(recorder, group, "time", calls, options.pairs, device)
        held = pipeline.memory().now(*HELD)
        print(f"  {method!s:<28} held between ticks {held / 1e6:.1f} MB")
        recorder.add(group, TICK, "held between ticks", "MB", held / 1e6)
        for other in others:
            recorder.comparisons.append(Comparison(group, "time", TICK, other))
        for limit in {PLAIN_AND_FORWARD, TICK_AND_FUNCTIONS} & calls.keys():
            recorder.comparisons.append(Comparison(group, "time", limit, next(iter(others))))
            recorder.comparisons.append(Comparison(group, "time", TICK, limit))
        del calls, others, pipeline
        gc.collect()
    _print_predicted(stages, x, y, autocast)
    return recorder.finish()


def rivals(
    stages: Callable[[], list[Stage]],
    rival: Method | None,
    x: Tensor,
    y: Tensor,
    streams: int,
    autocast: torch.dtype | None,
) -> dict[str, Callable[[], object]]:
    """Make the other sides by name: a tick of the rival if there is one, else an autograd step; of recordings both."""
    steps: dict[str, Callable[[], object]] = {}
    if rival is not None:
        steps[f"tick of {rival.title}"] = ticking(
            full_pipeline(stages(), rival, x, y, autocast=autocast), x, y, streams
        )
    if streams:
        for name, compiled in ((PLAIN, False), (COMPILED, True)):
            record = captured.recorder(x.device)
            steps[name] = plain_step(stages(), x, y, compiled=compiled, record=record, autocast=autocast)
    elif rival is None:
        steps[PLAIN] = plain_step(stages(), x, y, autocast=autocast)
    return steps


def _print_predicted(stages: Callable[[], list[Stage]], x: Tensor, y: Tensor, autocast: torch.dtype | None) -> None:
    def held(method: Method) -> int:
        predicted = predict(stages(), method, x, y, optimizer=sgd, autocast=autocast)
        return sum(stage.held[kind] for stage in predicted for kind in HELD)

    print("  held between ticks, predicted: " + ", ".join(f"{m} {held(m) / 1e6:.1f} MB" for m in methods.PAPER))


if __name__ == "__main__":
    main()
