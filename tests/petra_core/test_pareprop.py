"""Test PaReprop: gradients bitwise as in reversible backpropagation, and reconstructions concurrent with backwards."""

import copy
import functools
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from petra_core import BufferedStage, HeadStage, NonFiniteError, Pipeline, ReversibleStage, Stage, methods, models
from petra_core.devices import overlapped
from petra_core.devices.execution import Sent, SequentialExecutor
from petra_core.devices.overlapped import OverlappedExecutor
from petra_core.methods import PAREPROP, REVERSIBLE_BACKPROPAGATION
from petra_core.staleness import Action, Kind
from petra_core.worker import Worker
from tests import toys, transformers
from tests.compare import assert_bitwise_equal
from tests.properties import Data

pytestmark = pytest.mark.convolutions


def mixed(kinds: str) -> list[Stage]:
    """Return reversible (R) and buffered (B) stages in the order of `kinds`, between a stem and a head."""
    torch.manual_seed(0)
    channels = 2
    net: list[Stage] = [toys.stem(channels)]
    for kind in kinds:
        net.append(ReversibleStage(toys.residual(channels)) if kind == "R" else BufferedStage(toys.Down(channels)))
        channels *= 1 + (kind == "B")
    return [stage.double() for stage in (*net, toys.head(channels))]


def trained(net: Sequence[Stage], method: methods.Method, data: Data, **options: Any) -> Any:
    torch.manual_seed(3)
    p = Pipeline(copy.deepcopy(list(net)), method, accumulation=2, optimizer=toys.sgd, inspect=False, **options)
    return toys.train(p, data), toys.weights(p), torch.get_rng_state()


#: A public implementation has wrong gradients at odd depths from 3. Letters stand for stages between stem and head.
NETWORKS: dict[str, Callable[[], tuple[list[Stage], Data]]] = {
    **{f"{n} stages": lambda n=n: (toys.network(n), toys.batches(4)) for n in (1, 2, 3, 4, 5, 12)},
    **{kinds: lambda kinds=kinds: (mixed(kinds), toys.batches(4)) for kinds in ("RRRB", "BRRB", "RBBRR")},
    "merged stages": lambda: (models.group(toys.network(6), (3, 2, 1)), toys.batches(4)),
    **{
        family: lambda family=family: (transformers.random_network(family), transformers.batches(family, 4))
        for family in ("RevViT", "RevSwin", "RevMViT", "RevRoBERTa")
    },
}


@pytest.mark.parametrize(
    ("network", "seed"), [*((network, 5) for network in NETWORKS), ("RevViT", None), ("5 stages", None)]
)
def test_training_equals_reversible_backpropagation(network: str, seed: int | None) -> None:
    """Losses and weights are bitwise equal; masks are replayed, and the global generator ends in the same state."""
    net, data = NETWORKS[network]()
    expected = trained(net, REVERSIBLE_BACKPROPAGATION, data, seed=seed)
    assert_bitwise_equal(trained(net, PAREPROP, data, seed=seed), expected)


def calling(call: Callable[[], object]) -> nn.Module:
    """Return a convolution that calls a function after every evaluation."""

    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.f(x)
        call()
        return y

    return toys.computing(forward)(nn.Conv2d(2, 2, 1))


def pipeline_with(call: Callable[[], object], head: HeadStage) -> Pipeline:
    net = [toys.stem(2), ReversibleStage(calling(call)), head]
    # Inspection is off, because its evaluations would be counted as calls.
    return Pipeline([stage.double() for stage in net], PAREPROP, optimizer=toys.sgd, inspect=False)


def test_worker_thread_uses_current_num_threads() -> None:
    """A thread keeps the number of threads of its first computation; later changes in torch do not affect it."""
    seen: list[tuple[bool, int]] = []
    main = threading.main_thread()
    p = pipeline_with(lambda: seen.append((threading.current_thread() is main, torch.get_num_threads())), toys.head(2))
    for threads in (1, 2, 1):  # 1 is the number at the beginning of every test
        torch.set_num_threads(threads)
        toys.train(p, toys.batches(1))
    assert seen == [(in_main, threads) for threads in (1, 2, 1) for in_main in (True, False)]


class Meeting(nn.Module):
    """A residual function whose backward and the reconstruction of the stage below wait for each other."""

    def __init__(self, here: threading.Barrier | None, below: threading.Barrier | None) -> None:
        super().__init__()
        self.function = toys.residual(2)
        self.here, self.below = here, below

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and self.here is not None:
            self.here.wait(20)
        y: Tensor = self.function(x)
        if y.requires_grad and self.below is not None:
            y.register_hook(self._meet)
        return y

    def _meet(self, gradient: Tensor) -> None:
        assert self.below is not None
        self.below.wait(20)


def test_reconstruction_overlaps_backward_above() -> None:
    """A reconstruction runs concurrently with the backward of the stage above."""
    barriers = [threading.Barrier(2) for _ in range(3)]
    blocks = [Meeting(above, below) for below, above in pairwise([None, *barriers, None])]
    net = [stage.double() for stage in (toys.stem(2), *map(ReversibleStage, blocks), toys.head(2))]
    p = Pipeline(net, PAREPROP, optimizer=toys.sgd, seed=0, inspect=False)  # an inspection would wait without end
    toys.train(p, toys.batches(2))
    assert not any(barrier.broken for barrier in barriers)


def test_worker_thread_error_names_stage_and_micro_batch() -> None:
    """An error in the worker thread is raised in the caller with the stage and micro-batch as a note."""

    def fail() -> None:
        if torch.is_grad_enabled():  # in the reconstruction
            raise RuntimeError("out of luck")

    p, ((x, y),) = pipeline_with(fail, toys.head(2)), toys.batches(1)
    with pytest.raises(RuntimeError, match="out of luck") as caught:
        p.step(x, y)
    assert caught.value.__notes__ == ["in reconstruct 0 of stage 1"]
    with pytest.raises(RuntimeError, match="broke off a step"):
        p.step(x, y)


def test_error_waits_for_concurrent_reconstruction() -> None:
    """The head's loss is not finite while the stage below reconstructs. No thread may still run after the error."""
    entered, finished = threading.Event(), threading.Event()

    def slowly() -> None:
        if torch.is_grad_enabled():
            entered.set()
            threading.Event().wait(0.05)
            finished.set()

    def loss(output: Tensor, target: Tensor) -> Tensor:
        assert entered.wait(20)
        return output.sum() / 0

    with pytest.raises(NonFiniteError):
        pipeline_with(slowly, HeadStage(toys.head(2).module, loss)).step(*toys.batches(1)[0])
    assert finished.is_set()


class FakeStream:
    """A replacement of a CUDA stream that logs its waits."""

    log: ClassVar[list[str]] = []

    def __init__(self, name: str) -> None:
        self.name = name

    def wait_stream(self, other: "FakeStream") -> None:
        self.log.append(f"{self.name} waits for {other.name}")


def test_gpu_neighbours_use_two_synchronised_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls to `torch.cuda` are checked, so no GPU is needed."""
    names, current = iter("AB"), [FakeStream("caller")]
    log = FakeStream.log = []

    class Entered:
        def __init__(self, stream: FakeStream) -> None:
            self.stream = stream

        def __enter__(self) -> None:
            current.append(self.stream)

        def __exit__(self, *error: object) -> None:
            current.pop()

    monkeypatch.setattr(overlapped, "get_stream", functools.cache(overlapped.get_stream.__wrapped__))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream(next(names)))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current[-1])
    monkeypatch.setattr(torch.cuda, "stream", Entered)

    def act(worker: Worker, action: Action, _: Sent) -> None:
        log.append(f"{action} of {worker.index} in {current[-1].name}")

    for stage in (2, 1):  # R of a stage and B of the stage above
        side = OverlappedExecutor()  # as of another pipeline, with the same streams
        with side.together():
            for index, kind in ((stage, Kind.RECONSTRUCT), (stage + 1, Kind.BACKWARD)):
                worker = Worker.__new__(Worker)
                worker.index, worker.device = index, torch.device("cuda", 0)
                side.run(act, worker, Action(kind, 0), [])
    begin, end = ["A waits for caller", "B waits for caller"], ["caller waits for A", "caller waits for B"]
    assert log == [*begin, "R0 of 2 in A", "B0 of 3 in B", *end, *begin, "R0 of 1 in B", "B0 of 2 in A", *end]


def test_other_methods_are_sequential() -> None:
    assert {type(toys.pipeline(toys.network(3), method).executor) for method in methods.PAPER} == {SequentialExecutor}


def test_reconstruction_with_dropout_runs_in_main_thread() -> None:
    """All random numbers come from one generator, which the concurrent backward of the head could advance."""
    seen: list[bool] = []
    seeing = calling(lambda: seen.append(threading.current_thread() is threading.main_thread()))
    block = nn.Sequential(seeing, nn.Dropout(0.5))
    net = [stage.double() for stage in (toys.stem(2), ReversibleStage(block), toys.head(2))]
    p = Pipeline(net, PAREPROP, optimizer=toys.sgd, inspect=False)  # an inspection would add calls
    toys.train(p, toys.batches(1))
    assert seen == [True, True]
