"""Test that steps which are recorded and replayed in fixed memory give the numbers of a plain pipeline."""

import contextlib
import copy
import functools
import gc
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from petra_core import NonFiniteError, Pipeline, Stage, merge, methods
from petra_core.devices import captured
from petra_core.devices.captured import CapturedSteps, OverStreams, UnrecordableError
from petra_core.devices.execution import SequentialExecutor
from petra_core.devices.static_buffers import period
from petra_core.inspection import values
from petra_core.inspection.ownership import INSPECTED
from petra_core.ledger import payload
from petra_core.methods import Method
from petra_core.models.revnet import revnet
from petra_core.staleness import Action, Kind, forward_lags
from tests import toys
from tests.compare import assert_bitwise_equal
from tests.fake_cuda import RECORDED, Interpreter, SharedMemoryRecorder, fused, made, memory_of, staggered
from tests.properties import Data

pytestmark = pytest.mark.convolutions

GPU_1 = torch.device("cuda", 1)
MANY = 20  # more steps than any pipeline here needs to be full and updated


def recordings_of(method: Method, k: int) -> int:
    return period(k) if method.pipelined else k


def rehearsals(pipeline: Pipeline) -> int:
    """Return the number of steps of a full pipeline before the first recorded step."""
    k = pipeline.accumulation
    return pipeline.staleness[0] + period(k) if pipeline.method.pipelined else max(INSPECTED, k + 1)


def add_count(m: Any, x: Tensor) -> Tensor:
    """Count evaluations in a buffer, which a reconstruction has to restore."""
    m.count += 1
    return x + m.count


def recorded(pipeline: Pipeline, data: Data) -> CapturedSteps:
    """Return the steps of a pipeline after these micro-batches, at the end of which they are recorded."""
    ticks = CapturedSteps(pipeline, SharedMemoryRecorder())
    for x, y in data:
        ticks.step(x, y)
    assert ticks.recorded
    return ticks


def addresses(ticks: CapturedSteps) -> list[int]:
    pipeline = ticks._pipeline
    pipeline.memory()  # updates the tensors that the workers hold
    tensors = [message for worker in pipeline.workers for message in worker.from_above for message in message.tensors]
    kept = [t for worker in pipeline.workers for part in worker.parts for e in part._memory for t in e.kept]
    return [tensor.data_ptr() for tensor in (*tensors, *kept, *pipeline.model.parameters())]


def merged() -> list[Stage]:
    """Return a network with merged stages: some results of their blocks stay inside the stage."""
    first, *blocks, last = toys.network(8)
    return [first, merge(blocks[:2]), blocks[2], merge(blocks[3:5]), merge([blocks[5], last])]


VECTORS = ((4, 3, 2, 1, 0), (6, 6, 3, 3, 0), (1, 1, 0, 0, 0))


@pytest.mark.parametrize(
    ("stages", "method", "k", "staleness"),
    [
        *((n, methods.PETRA, k, None) for n, k in ((1, 3), (5, 1), (3, 3))),
        *((3, method, k, None) for method, k in zip(RECORDED[1:], (3, 3, 1), strict=True)),
        *(
            (5, method, 2, vector)
            for vector, method in zip(VECTORS, (methods.DSP, methods.PETRA, methods.PETRA), strict=True)
        ),
        (0, methods.PETRA, 6, None),
    ],
    ids=str,
)
def test_captured_steps_match_plain_pipeline(
    stages: int, method: Method, k: int, staleness: tuple[int, ...] | None
) -> None:
    """Captured steps have bitwise the losses, states and evaluations of a plain pipeline. No stages: merged ones."""
    net = toys.network(stages) if stages else merged()
    plain, again = (
        toys.pipeline(net, method, accumulation=k, staleness=staleness, optimizer=fused, seed=3) for _ in range(2)
    )
    recordings = recordings_of(method, k)
    first = rehearsals(plain) + forward_lags(plain.staleness)[-1]  # until the stages have their lags
    data = toys.batches(MANY + first + 2 * recordings + 2)
    toys.train(plain, data[:MANY], drain=False)
    other = copy.deepcopy(plain)
    ticks = CapturedSteps(other, SharedMemoryRecorder())
    staggered(plain)
    for number, (x, y) in enumerate(data[MANY:]):
        rate = 2.0 ** -(4 + number % 3)  # exact in float32, the type of the rate in a recorded tick
        plain.set_learning_rate(rate)
        other.set_learning_rate(rate)
        expected = plain.step(x, y)
        loss = ticks.step(x, y)
        assert ticks.recorded == (number >= first + recordings - 1)
        if number == first + recordings + 1:
            buffers = addresses(ticks)
        assert_bitwise_equal(loss, expected)
        if number >= first:  # the recorded steps, and two that are replayed
            assert_bitwise_equal(comparable(other), comparable(plain))
        if number % 7 == 0:  # an evaluation between steps changes nothing
            assert_bitwise_equal(other.evaluate(x), plain.evaluate(x))
    assert addresses(ticks) == buffers
    assert_bitwise_equal(other.evaluate(data[0][0]), plain.evaluate(data[0][0]))
    assert other.memory().now() == plain.memory().now()
    again.load_state_dict(other.state_dict())
    plain.drain()
    for pipeline in (other, again):  # Python continues from that state, also in a plain pipeline
        pipeline.drain()
        assert_bitwise_equal(dict(pipeline.model.named_parameters()), dict(plain.model.named_parameters()))


def comparable(pipeline: Pipeline) -> dict[str, Any]:
    """Return the state without differences in the form of the optimizer's settings."""
    state = pipeline.state_dict()
    for worker in state["workers"]:
        for group in worker["optimizer"]["param_groups"]:
            group |= {"lr": float(torch.as_tensor(group["lr"], dtype=torch.float32)), "foreach": None}
            group.pop("lr_written", None)
    return state


@pytest.mark.parametrize(("method", "k"), [(methods.PETRA, 1), (methods.DSP, 3), (methods.BACKPROPAGATION, 3)], ids=str)
def test_every_process_warms_up_before_recording(method: Method, k: int) -> None:
    """After a resume the pipeline is full immediately. Its first step was once recorded, without any warm-up."""
    recordings = recordings_of(method, k)
    data = toys.batches(2 * MANY + recordings)
    # Not the optimizer `fused`: the rate 0.05 of toys.sgd is not exact in float32, the type in a recorded update.
    whole, stopped, resumed, plain = (toys.pipeline(toys.network(4), method, accumulation=k, seed=3) for _ in range(4))
    recorders = [SharedMemoryRecorder() for _ in range(3)]
    ticks = CapturedSteps(whole, recorders[0])
    with whole.recording() as recording:
        losses = [ticks.step(x, y) for x, y in data]
    with staggered(plain).recording() as expected:
        toys.train(plain, data, drain=False)
    assert recording == expected
    assert len(recorders[0].recorded) == recordings
    ticks = CapturedSteps(stopped, recorders[1])
    for x, y in data[:MANY]:
        ticks.step(x, y)
    resumed.load_state_dict(stopped.state_dict())
    ticks = CapturedSteps(resumed, recorders[2])
    recorded_before, again = [], []
    for x, y in data[MANY:]:
        recorded_before.append(len(recorders[2].recorded))
        again.append(ticks.step(x, y))
    assert recorded_before.count(0) == rehearsals(resumed) + 1  # counted before each step
    assert ticks.recorded
    assert_bitwise_equal(again, losses[MANY:])
    assert_bitwise_equal(resumed.state_dict(), whole.state_dict())


def written_and_read(operation: Any) -> tuple[set[int], set[int]]:
    """Return the storages that an operation writes and those that it reads or makes views of."""
    func, args, kwargs, _ = operation
    written: set[int] = set()
    read: set[int] = set()
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    for argument in func._schema.arguments:
        writes = argument.alias_info is not None and argument.alias_info.is_write
        tensors = [t for t in tree_leaves(given.get(argument.name)) if isinstance(t, Tensor)]
        (written if writes else read).update(map(memory_of, tensors))
    return written, read


class Noting(SequentialExecutor):
    """An executor that notes the operations of every action of a recording."""

    def __init__(self, recorder: SharedMemoryRecorder) -> None:
        self._recorder = recorder
        self.done: list[tuple[int, Kind, list[Any]]] = []

    def run(self, act: Any, worker: Any, action: Action, sent: Any) -> None:
        operations = self._recorder.recorded[-1].operations
        before = len(operations)
        super().run(act, worker, action, sent)
        self.done.append((worker.index, action.kind, operations[before:]))


Turn = tuple[int, Kind]  # a stage and its kind of action


def ordered(apart: Sequence[bool], staleness: Sequence[int], lags: Sequence[int]) -> set[tuple[Turn, Turn]]:
    """Return the pairs of actions of a step where `OverStreams` makes one wait for the other, directly or not."""
    stages = range(len(apart))
    after = [number + lag for number, lag in zip(staleness, lags, strict=True)]
    pairs = {((j, Kind.RECONSTRUCT), (j, Kind.BACKWARD)) for j in stages}
    pairs |= {((j, kind), (j, Kind.UPDATE)) for j in stages for kind in (Kind.FORWARD, Kind.BACKWARD)}
    pairs |= {((j, Kind.FORWARD), (j, kind)) for j in stages if not apart[j] for kind in Kind if kind != Kind.FORWARD}
    pairs |= {((j - 1, Kind.FORWARD), (j, Kind.FORWARD)) for j in stages[1:] if lags[j] == lags[j - 1]}
    pairs |= {((j + 1, Kind.BACKWARD), (j, Kind.RECONSTRUCT)) for j in stages[:-1] if after[j] == after[j + 1]}
    while more := {(a, d) for a, b in pairs for c, d in pairs if b == c} - pairs:
        pairs |= more
    return pairs


@pytest.mark.parametrize(("k", "staleness"), [(4, None), (1, (3, 2, 2, 1, 1, 0))], ids=str)
@pytest.mark.parametrize("method", [methods.PETRA, methods.DSP], ids=str)
def test_concurrent_actions_share_no_written_memory(method: Method, k: int, staleness: Sequence[int] | None) -> None:
    """Copies to fixed buffers once had to wait for one another and for all stages."""
    recorder = SharedMemoryRecorder()
    executor = Noting(recorder)
    stages = toys.network(6)
    stages[4].function.append(toys.computing(add_count, count=lambda: nn.Buffer(torch.zeros(())))().double())
    # Inspection is off, because it refuses a function that depends on a buffer that it writes.
    pipeline = Pipeline(stages, method, accumulation=k, staleness=staleness, optimizer=fused, inspect=False)
    apart = [worker.forward_apart for worker in pipeline.workers]
    assert apart == [True, True, True, True, False, False]
    ticks = CapturedSteps(pipeline, recorder, executor)
    waits = ordered(apart, pipeline.staleness, pipeline.lags)
    data = iter(toys.batches(100))
    while not ticks.recorded:
        tick, executor.done = executor.done, []
        ticks.step(*next(data))
        touched = [
            ((stage, kind), [set().union(*sets) for sets in zip(*map(written_and_read, operations), strict=True)])
            for stage, kind, operations in executor.done
        ]
        for (one, (written, _)), (other, (also_written, read)) in itertools.permutations(touched, 2):
            if one != other and not {(one, other), (other, one)} & waits:
                assert not written & (also_written | read), f"{one} and {other}"
    assert len(tick) >= 3 * 5 + 2


def copied_bytes(ticks: CapturedSteps, recording: Interpreter) -> int:
    """Return the number of bytes that a recorded step copies to fixed buffers."""
    return sum(
        args[0].nbytes
        for func, args, _, _ in recording.operations
        if func._schema.name == "aten::copy_" and memory_of(args[0]) in ticks._buffers._written_next
    )


@pytest.mark.parametrize(("method", "k"), [(methods.PETRA, 4), (methods.DSP, 1)], ids=str)
def test_step_copies_few_bytes_to_fixed_buffers(method: Method, k: int) -> None:
    """A tick of RevNet-18 once copied all messages and kept inputs after all stages; now it copies a fifth of that."""
    recorder = SharedMemoryRecorder()
    pipeline = toys.pipeline(revnet(18, num_classes=10, width=8), method, accumulation=k, optimizer=fused)
    ticks = CapturedSteps(pipeline, recorder)
    while not ticks.recorded:
        ticks.step(torch.randn(2, 3, 16, 16), torch.randint(0, 10, (2,)))
    copied = sum(copied_bytes(ticks, recording) for recording in recorder.recorded) / ticks.period
    held = pipeline.memory()
    if k > 1:  # the first of the k gradients of a parameter, to which the others are added
        copied -= held.now("parameters") / k
    once = sum(payload(part._memory[0].kept) for w in pipeline.workers for part in w.parts if part._memory)
    assert copied < 0.36 * held.now("messages") + 1.6 * once  # an input that is kept for more than 12 ticks moves twice
    assert copied < 0.22 * held.now("messages", "inputs")


@pytest.mark.parametrize(("method", "seed"), [(methods.PETRA, None), (methods.BACKPROPAGATION, 3)], ids=str)
def test_random_numbers_raise(method: Method, seed: int | None) -> None:
    """With one micro-batch at a time no state is held between steps: dropout was recorded, with wrong gradients."""
    pipeline = toys.pipeline(toys.network(4, dropout=0.5), method, seed=seed)
    recorder = SharedMemoryRecorder()
    ticks = CapturedSteps(pipeline, recorder)
    with pytest.raises(ValueError, match=r"stages \[1, 2\] draw random numbers"):  # noqa: PT012  # after some steps
        for x, y in toys.batches(2 * MANY):
            ticks.step(x, y)
    assert not recorder.recorded
    # The pipeline continues without recordings. No stage lags behind, so that each step has a loss.
    assert all(pipeline.step(x, y) is not None for x, y in toys.batches(3))


def test_other_shapes_and_outside_steps_raise() -> None:
    """Another shape, a step outside the recording and a traced pipeline raise an error."""
    pipeline, data = toys.pipeline(toys.network(3)), toys.batches(2 * MANY)
    ticks = recorded(pipeline, data)
    other = copy.deepcopy(pipeline)
    with pytest.raises(ValueError, match="all that are in flight together must have the same shapes and dtypes"):
        ticks.step(*toys.batches(1, size=3)[0])
    pipeline.step(*data[0])
    left = rf"drained at 0 \(states loaded: 0\), and the last recorded step left it at micro-batch {2 * MANY}, drained"
    with pytest.raises(RuntimeError, match=f"is at micro-batch {2 * MANY + 1}, {left}"):
        ticks.step(*data[0])
    ticks = CapturedSteps(other, SharedMemoryRecorder())
    other.load_state_dict(other.state_dict())  # the static buffers contain the tensors of another state
    with pytest.raises(RuntimeError, match=rf"is at micro-batch {2 * MANY}, drained at 0 \(states loaded: 1\), and"):
        ticks.step(*data[0])
    pipeline.executor = Noting(SharedMemoryRecorder())
    with pytest.raises(ValueError, match="remove before_update"):
        CapturedSteps(pipeline, SharedMemoryRecorder())


def test_deepcopy_has_separate_bookkeeping() -> None:
    """The copy once shared the deferred bookkeeping of repeated steps, which changed the workers of the original."""
    pipeline = made(3, methods.PETRA, 1)
    recorded(pipeline, toys.batches(2 * MANY))
    copied = copy.deepcopy(pipeline)
    for one in (copied, pipeline):
        one.drain()
    assert_bitwise_equal(comparable(copied), comparable(pipeline))


@pytest.mark.parametrize("error", [NonFiniteError, KeyboardInterrupt])
def test_interrupted_step_blocks_state_dict(error: type[BaseException]) -> None:
    """A plain step does the same. The state once had weights that were not finite, or mixed two steps."""
    pipeline, data = toys.pipeline(toys.network(3)), toys.batches(2 * MANY)
    ticks = recorded(pipeline, data)
    if error is KeyboardInterrupt:
        ticks._recordings = dict.fromkeys(range(ticks.period), interrupt_now)
    with pytest.raises(error):  # noqa: PT012  # the step that raises depends on the error
        for x, y in data[:3]:
            ticks.step(x * float("nan"), y)
    with pytest.raises(RuntimeError, match="an exception broke off a step of this pipeline"):
        pipeline.state_dict()


def interrupt_now() -> None:
    raise KeyboardInterrupt


def test_worker_state_is_restored_once_when_read() -> None:
    """Restoring after every repeated step took 0.5 ms, for values that the next step replaces before they are read."""
    pipeline, plain = made(3, methods.PETRA, 3), staggered(made(3, methods.PETRA, 3))
    data = toys.batches(3 * MANY)
    ticks = recorded(pipeline, data[:-MANY])
    toys.train(plain, data[:-MANY], drain=False)
    restored: list[int] = []
    interrupts: list[bool] = []

    def noted(restore: Callable[[], None]) -> None:
        restored.append(pipeline.micro_batches - 1)
        restore()
        if interrupts:
            interrupts.pop()
            raise KeyboardInterrupt

    ticks._snapshots = {n: functools.partial(noted, restore) for n, restore in ticks._snapshots.items()}
    for x, y in data[-MANY:]:
        ticks.step(x, y)
        plain.step(x, y)
    assert not restored
    assert pipeline.memory().now() == plain.memory().now()
    assert_bitwise_equal(comparable(pipeline), comparable(plain))
    assert restored == [len(data) - 1]
    ticks.step(*data[0])
    plain.step(*data[0])
    interrupts.append(True)
    with pytest.raises(KeyboardInterrupt):
        pipeline.evaluate(data[0][0])
    assert_bitwise_equal(pipeline.evaluate(data[0][0]), plain.evaluate(data[0][0]))
    assert_bitwise_equal(comparable(pipeline), comparable(plain))  # the interrupted work is done completely
    pipeline.drain()
    plain.drain()
    assert_bitwise_equal(comparable(pipeline), comparable(plain))


def test_refused_pipeline_has_a_loss_in_each_step() -> None:
    """After a refusal, no stage lags behind."""
    pipeline = made(3, methods.DELAYED_GRADIENTS, 1)
    with pytest.raises(UnrecordableError):
        CapturedSteps(pipeline, SharedMemoryRecorder())
    assert all(pipeline.step(x, y) is not None for x, y in toys.batches(3))


def test_losses_stay_and_non_finite_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the host reads losses in groups; this test does the same on the CPU."""
    monkeypatch.setitem(values.LOOKED_AT_TOGETHER, "cpu", 8)
    pipeline, plain = made(3, methods.PETRA, 1), staggered(made(3, methods.PETRA, 1))
    data = toys.batches(2 * MANY)
    ticks = CapturedSteps(pipeline, SharedMemoryRecorder())
    losses = [(ticks.step(x, y), plain.step(x, y)) for x, y in data]
    assert ticks.recorded
    assert_bitwise_equal(*zip(*losses[-MANY:], strict=True))
    pipeline.check_finite()
    later = [(x * float("nan") if number == 3 else x, y) for number, (x, y) in enumerate(toys.batches(40))]
    with pytest.raises(NonFiniteError, match="this was detected some steps later") as caught:  # noqa: PT012  # as above
        for step, (x, y) in enumerate(later):  # noqa: B007  # read after the loop
            ticks.step(x, y)
    assert caught.value.micro_batch == 2 * MANY + 3
    assert step == 7


class Device:
    """A source of micro-batches in fixed memory, which counts them on the device."""

    def __init__(self, data: Sequence[tuple[Tensor, Tensor]]) -> None:
        self._inputs, self._targets = (torch.stack(tensors) for tensors in zip(*data, strict=True))
        self._next = torch.zeros(1, dtype=torch.int64)

    def batch(self) -> tuple[Tensor, Tensor]:
        x, y = (tensor.index_select(0, self._next)[0] for tensor in (self._inputs, self._targets))
        self._next.add_(1)
        return x, y


@pytest.mark.parametrize("method", RECORDED, ids=str)
def test_step_from_records_source_of_micro_batches(method: Method) -> None:
    """A captured step includes its source of micro-batches and rejects another source."""
    data = toys.batches(3 * MANY)
    plain, other = staggered(made(3, method, 2)), made(3, method, 2)
    ticks, source = CapturedSteps(other, SharedMemoryRecorder()), Device(data)
    for x, y in data:
        assert_bitwise_equal(ticks.step_from(source.batch), plain.step(x, y))
    assert ticks.recorded
    assert_bitwise_equal(comparable(other), comparable(plain))
    for take in (lambda: ticks.step(*data[0]), lambda: ticks.step_from(Device(data).batch)):
        with pytest.raises(ValueError, match="recorded with another source of micro-batches"):
            take()
    other.drain()
    plain.drain()
    assert_bitwise_equal(comparable(other), comparable(plain))


class FakeCuda:
    """A replacement of `torch.cuda` without a GPU. `said` lists what was entered, recorded and awaited."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, empty: bool = False) -> None:
        self.messages: list[str] = []
        self.made: list[FakeStream] = []
        self._empty = empty
        for name in ("device", "stream", "graph"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeStream(self, f"caller on {device}"))
        monkeypatch.setattr(
            torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: self.messages.append("replay"))
        )
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
        monkeypatch.setattr(captured, "get_stream", functools.cache(self.get_stream))

    def get_stream(self, device: torch.device, number: int) -> "FakeStream":
        self.made.append(FakeStream(self, f"stream {number} of {device}", device))
        return self.made[-1]

    @contextlib.contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        self.messages.append(f"on {device}")
        yield
        self.messages.append(f"off {device}")

    @contextlib.contextmanager
    def stream(self, stream: "FakeStream") -> Iterator[None]:
        self.messages.append(f"{stream.name} works")
        yield

    @contextlib.contextmanager
    def graph(self, graph: Any, *, pool: str, stream: "FakeStream", capture_error_mode: str) -> Iterator[None]:
        assert (pool, capture_error_mode) == ("pool", "thread_local")
        self.messages.append(f"capture in {stream.name}{', collecting' if gc.isenabled() else ''}")
        yield
        self.messages.append("captured")
        if self._empty:
            warnings.warn("The CUDA Graph is empty. This usually means that ...", stacklevel=2)


class FakeStream:
    def __init__(self, cuda: FakeCuda, name: str, device: torch.device = GPU_1) -> None:
        self.name, self.device, self._messages = name, device, cuda.messages

    def wait_stream(self, other: "FakeStream") -> None:
        self._messages.append(f"{self.name} waits for {other.name}")

    def record_event(self) -> int:
        number = sum("is here" in messages for messages in self._messages)
        self._messages.append(f"{self.name} is here: {number}")
        return number

    def wait_event(self, number: int) -> None:
        self._messages.append(f"{self.name} waits for {number}")


def full_on(*devices: str, method: Method = methods.PETRA) -> Pipeline:
    """Return a full pipeline whose stages claim to be on these devices in turn; their tensors are on the CPU."""
    pipeline = toys.pipeline(toys.network(4), method)
    toys.train(pipeline, toys.batches(MANY), drain=False)
    for worker in pipeline.workers:
        worker.device = torch.device(devices[worker.index % len(devices)])
    return pipeline


def test_graph_runs_on_device_of_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that was recorded on another current device was empty, and training stopped without an error."""
    cuda = FakeCuda(monkeypatch)
    ticks = captured.cuda(full_on("cuda:1"), streams=2)
    assert [stream.name for stream in cuda.made] == ["stream 1 of cuda:1", "stream 2 of cuda:1"]
    repeat = ticks._record(lambda: cuda.messages.append("work"))
    recorded = ["on cuda:1", "capture in stream 0 of cuda:1", "work", "captured", "off cuda:1"]
    repeated = ["on cuda:1", "replay", "off cuda:1"]
    assert cuda.messages == [*recorded, *repeated]
    repeat()
    assert cuda.messages[len(recorded) :] == [*repeated, *repeated]
    assert gc.isenabled()
    assert [w.device for w in ticks._pipeline.workers] == [GPU_1] * 4


def test_recordings_of_a_device_share_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recordings share streams, because cuBLAS keeps memory for each stream, even after the graph is deleted."""
    cuda = FakeCuda(monkeypatch)
    ticks = captured.cuda(full_on("cuda:1", method=methods.BACKPROPAGATION), streams=4)
    assert type(ticks.executor) is SequentialExecutor  # no two actions can overlap, so forks and joins only cost time
    assert not cuda.made
    for streams in (2, 1, 3):
        captured.cuda(full_on("cuda:1"), streams=streams)._record(lambda: None)
    assert len(cuda.made) == 4
    executor = captured.cuda(full_on("cuda:1")).executor
    assert isinstance(executor, OverStreams)
    assert len(executor.streams) == 2 * 4 - 1  # one for each branch


def test_empty_graph_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's warning about an empty CUDA graph is raised as an error, and the graph is not replayed."""
    cuda = FakeCuda(monkeypatch, empty=True)
    ticks = captured.cuda(full_on("cuda:1"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so that the error is not pytest's, which raises every warning
        with pytest.raises(UserWarning, match="The CUDA Graph is empty"):
            ticks._record(lambda: None)
    assert "replay" not in cuda.messages


def test_forward_overlaps_backward_and_update_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward of a stage use separate streams, and the update waits for the forward."""
    cuda = FakeCuda(monkeypatch)
    head, middle, stem = reversed(toys.pipeline(toys.network(3)).workers)
    streams: Any = [FakeStream(cuda, name) for name in "abcde"]
    executor = OverStreams(streams, (4, 2, 0))
    with captured.fork(executor.streams):
        for worker in (head, middle, stem):
            for kind in [kind for kind in Kind if worker is not head or kind is not Kind.RECONSTRUCT]:
                executor.run(lambda *_: None, worker, Action(kind, 0), [])
    with pytest.raises(ZeroDivisionError), captured.fork(streams[:1]):
        raise ZeroDivisionError
    caller = "caller on cuda:1"
    assert cuda.messages == [
        *(f"{name} waits for {caller}" for name in "abcde"),
        *("a works", "a is here: 0", "a works", "a is here: 1", "a works", "a waits for 0"),  # the head has one branch
        *("b works", "b is here: 2", "c works", "c works", "c is here: 3", "c works", "c waits for 2"),
        *("d works", "d is here: 4", "e works", "e works", "e is here: 5", "e works", "e waits for 4"),
        *(f"{caller} waits for {name}" for name in "abcde"),
        *(f"a waits for {caller}", f"{caller} waits for a"),  # also after an exception
    ]


def test_branch_waits_for_message_of_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream waits for a neighbouring stage only if it needs a message of the same step."""
    cuda = FakeCuda(monkeypatch)
    workers = toys.pipeline(toys.network(3)).workers
    streams: Any = [FakeStream(cuda, name) for name in "abcde"]
    executor = OverStreams(streams, (1, 1, 0))
    with captured.fork(executor.streams):
        for worker in workers:
            executor.run(lambda *_: None, worker, Action(Kind.FORWARD, 0), [])
        for worker in reversed(workers):
            executor.run(lambda *_: None, worker, Action(Kind.BACKWARD, 0), [])
    assert cuda.messages[5:-5] == [
        *("d works", "d is here: 0", "b works", "b waits for 0", "b is here: 1", "a works", "a waits for 1"),
        *("a is here: 2", "a works", "a is here: 3"),
        *("c works", "c is here: 4"),  # the message of an earlier step
        *("e works", "e waits for 4", "e is here: 5"),  # one of this step
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="only a GPU can record a CUDA graph")
@pytest.mark.parametrize("streams", [1, 4, 11])
def test_cuda_graphs_match_plain_pipeline(streams: int) -> None:
    """On a GPU, losses of CUDA graphs equal those of a plain pipeline up to rounding."""
    data = [(x.cuda(), y.cuda()) for x, y in toys.batches(4 * MANY)]
    stages = [stage.cuda() for stage in toys.network(6)]
    plain, other = (toys.pipeline(stages, accumulation=2, optimizer=fused, seed=3) for _ in range(2))
    toys.train(plain, data[:MANY], drain=False)
    toys.train(other, data[:MANY], drain=False)
    ticks = captured.cuda(other, streams=streams)
    plain.stagger()
    for x, y in data[MANY:]:
        torch.testing.assert_close(ticks.step(x, y), plain.step(x, y), rtol=1e-9, atol=0)
    assert ticks.recorded
