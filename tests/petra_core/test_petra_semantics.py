"""Test the engine against the paper's equations step by step, and the reference against simpler results.

A `Case` combines everything that may change a training, and `check` compares it with the reference, whatever the
combination. A new kind of training is a new case.
"""

import bisect
import collections
import concurrent.futures
import dataclasses
import functools
import itertools
import math
import queue
import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from petra_core import Pipeline, checkpoint, delay, methods
from petra_core.delay import CORRECTIONS
from petra_core.messages import Channel, Message
from petra_core.methods import Method
from petra_core.optimizers import sgd
from petra_core.shares import stage_ranges
from petra_core.staleness import Action, Kind
from petra_core.update_rule import UpdateRule
from petra_core.worker import Backward
from tests import toys
from tests.compare import assert_bitwise_equal, assert_close
from tests.delay_by_hand import DECAY, MOMENTUM, RATE, SETTINGS, TOLERANCE, ByHand, Drift, DriftByHand, decay_of
from tests.properties import HELD_BETWEEN_STEPS
from tests.reference import RULES, ReferencePart, ReferenceRun, Sgd, entries, simulate, step_length
from tests.reference_networks import batches, network, pipeline_of, plain, random_vector


def flat(weights: list[dict[str, Tensor]]) -> list[Tensor]:
    """Return the tensors of all parts of a stage or network."""
    return [tensor for of_part in weights for tensor in of_part.values()]


def weights_of(pipeline: Pipeline) -> list[list[dict[str, Tensor]]]:
    return [[dict(p.function.named_parameters()) for p in stage.parts()] for stage in pipeline.stages]


def statistics_of(pipeline: Pipeline) -> list[list[dict[str, Tensor]]]:
    return [[dict(p.function.named_buffers()) for p in stage.parts()] for stage in pipeline.stages]


# --- the oracle --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
    """A training.

    Attributes:
        method: The method.
        pattern: The network (`network`).
        k: Number of backwards per update.
        staleness: Staleness of each stage; None for the default.
        rules: Rules for delay. With any, the learning rate is constant, as their equations by hand expect.
        nesterov: Whether the momentum is Nesterov's.
        dropout: Probability of dropout in the stem and in reversible parts.
        autocast: Dtype of mixed precision, from float32 weights; None for float64.
        count: Number of micro-batches.
        drains: Numbers of micro-batches after which the pipeline is drained.
        stop: Number of micro-batches after which the state is saved and loaded by another pipeline; 0 for never.
        partition: Number of stages of each rank; empty for one process.
        inspect: Whether the engine inspects the stages.

    """

    method: Method
    pattern: str
    k: int = 1
    staleness: tuple[int, ...] | None = None
    rules: Sequence[UpdateRule] = ()
    nesterov: bool = True
    dropout: float = 0.0
    autocast: torch.dtype | None = None
    count: int = 18
    drains: tuple[int, ...] = ()
    stop: int = 0
    partition: tuple[int, ...] = ()
    inspect: bool = False

    def __str__(self) -> str:
        differing = [f.name for f in dataclasses.fields(self)[3:] if getattr(self, f.name) != f.default]
        values = [
            f"{name}={', '.join(map(str, self.rules)) if name == 'rules' else getattr(self, name)}"
            for name in differing
        ]
        return ", ".join([str(self.method), self.pattern, f"k={self.k}", *values])

    @property
    def expected_staleness(self) -> tuple[int, ...]:
        """Staleness of each stage, by default 2(J - 1 - j) if micro-batches follow one another."""
        stages = len(self.pattern.split())
        return self.staleness or tuple(2 * (stages - 1 - j) * self.method.pipelined for j in range(stages))

    @property
    def enters(self) -> list[int]:
        """Step in which each micro-batch enters: a drain takes as many steps as the first stage is late."""
        return [m + self.expected_staleness[0] * sum(drain <= m for drain in self.drains) for m in range(self.count)]

    def rate(self, micro_batch: int, stage: int) -> float:
        """Return the learning rate of a stage from the step in which a micro-batch enters."""
        return RATE if self.rules else RATE * (1 + micro_batch % 5) / (1 + stage % 2)

    def data(self) -> list[tuple[Tensor, Tensor]]:
        return [(x.float() if self.autocast else x, y) for x, y in batches(self.count)]

    def network(self) -> list[list[ReferencePart]]:
        stages = network(self.pattern, dropout=self.dropout)
        if self.autocast:
            for part in itertools.chain(*stages):
                part.module.float()
        return stages

    def by_reference(self) -> ReferenceRun:
        """Return all values of the training by the reference."""
        stages, enters = self.network(), self.enters
        length, about = step_length(stages), ByHand(nesterov=self.nesterov, delay=self.rules)
        if any(isinstance(rule, Drift) for rule in self.rules):
            about = DriftByHand()
        about.lag = int(self.method is methods.PIPEDREAM_2BW)

        def rate(tick: int) -> float:
            step, rest = divmod(tick, length)
            return self.rate(bisect.bisect(enters, step) - 1, 2 * len(stages) - rest)

        rule, optimizer, data = RULES[self.method.name], Sgd(rate, MOMENTUM, self.nesterov, decay_of), self.data()
        torch.manual_seed(11)
        with torch.autocast("cpu", self.autocast, enabled=self.autocast is not None, cache_enabled=False):
            return simulate(stages, rule, self.k, optimizer, data, enters, about, self.expected_staleness)

    def pipeline(self, **settings: Any) -> Pipeline:
        """Return the engine's pipeline."""
        return pipeline_of(
            self.network(),
            self.method,
            self.k,
            optimizer=sgd(RATE, momentum=MOMENTUM, nesterov=self.nesterov, weight_decay=DECAY),
            staleness=self.staleness,
            delay=self.rules,
            autocast=self.autocast,
            # The reference draws from the global generator.
            **{"seed": None if self.dropout else 7, "inspect": False} | settings,
        )

    def train(
        self, p: Pipeline, look: Callable[[int, Tensor | None], object] = lambda m, loss: None, start: int = 0
    ) -> None:
        """Train to the end, and call `look` with the number and the loss of each micro-batch after its step.

        FFCV and loaders with pinned memory write the next micro-batch to the memory of this one.
        """
        data = self.data()
        if not start:
            torch.manual_seed(11)  # as before the training of the reference
        for m, (x, y) in enumerate(data[start:], start):
            if m in self.drains:
                p.drain()
            p.set_learning_rate(lambda j, m=m: self.rate(m, j))
            before = x.clone()
            loss = p.step(x, y)
            assert_bitwise_equal(x, before)
            x.fill_(math.nan), y.zero_()
            look(m, loss)
        p.drain()


def check(case: Case, folder: Path) -> None:
    """Compare the engine's training with that of the reference, after a resume and over several ranks bitwise."""
    alone, state = assert_equals_reference(case)
    if case.stop:
        checkpoint.save(folder / "state.pt", state)  # the training has continued meanwhile
        loaded = checkpoint.load(folder / "state.pt")
        resumed = case.pipeline()
        toys.train(resumed, case.data()[-3:], drain=False)  # earlier work of the pipeline must leave no trace
        resumed.load_state_dict(loaded)
        case.train(resumed, start=case.stop)
        assert_bitwise_equal(loaded, state)
        assert_bitwise_equal(resumed.state_dict(), alone.state_dict())
        assert resumed.memory().now() == alone.memory().now()
    if case.partition:
        if case.dropout:
            alone = case.pipeline(seed=7)
            case.train(alone)
        middle, end = train_over_ranks(case)
        assert_bitwise_equal(end, dict(enumerate(alone.state_dict()["workers"])))
        if case.stop and not case.dropout:
            assert_bitwise_equal(middle, dict(enumerate(state["workers"])))


def assert_equals_reference(case: Case) -> tuple[Pipeline, dict[str, Any]]:
    """Compare weights, statistics and losses after every step, and what every backward reads and returns.

    Returns:
        The pipeline after its training, and its state after `stop` micro-batches.

    """
    state: dict[str, Any] = {}
    tolerance = 1e-4 if case.autocast else TOLERANCE
    history, seen = case.by_reference(), []
    generator = torch.get_rng_state()

    def after_backward(b: Backward) -> None:
        seen.append((b.stage, b.micro_batch))
        assert_close(list(b.gradients.values()), flat(history.gradients[b.stage, b.micro_batch]), tolerance)
        assert (b.inputs is not None) == has_whole_input(case.method, case.pattern.split()[b.stage])
        if b.inputs is not None:
            assert_close(b.inputs, history.reconstructed[b.micro_batch, b.stage, 0], tolerance)

    p = case.pipeline(after_backward=after_backward, inspect=case.inspect)
    enters, length = case.enters, step_length(p.stages)

    def compare(m: int, loss: Tensor | None) -> None:
        end = (enters[m] + 1) * length
        assert_close(weights_of(p), history.weights[end], tolerance)
        assert_close(statistics_of(p), history.statistics[end], tolerance)
        assert_close(loss, history.losses[m], tolerance)
        assert not loss.requires_grad
        since = max((drain for drain in case.drains if drain <= m), default=0)
        assert p.in_flight == min(m + 1 - since, case.expected_staleness[0])
        if m + 1 == case.stop:
            state.update(p.state_dict())

    case.train(p, compare)
    assert_close(weights_of(p), history.weights[-1], tolerance)
    assert_bitwise_equal(torch.get_rng_state(), generator)
    assert sorted(seen) == [(j, m) for j in range(len(p.stages)) for m in range(case.count)]
    assert p.observed_staleness == case.expected_staleness
    assert [worker.version for worker in p.workers] == [case.count // case.k] * len(p.stages)
    assert p.in_flight == 0
    assert case.method.double_buffered or p.memory().now(*HELD_BETWEEN_STEPS) == 0
    return p, state


def has_whole_input(method: Method, stage: str) -> bool:
    """Return whether the hook gets a stage's input: reconstructed, stashed by a buffered part, or at the head."""
    return method.reconstructs or stage == "h" or (stage[0] == "b" and not method.keeps_graph)


#: Actions that need a message from below, and from above.
KINDS = {False: (Kind.FORWARD,), True: (Kind.RECONSTRUCT, Kind.BACKWARD)}


class ThreadChannel(Channel):
    """A channel between the pipelines of several threads, of which only the one with the baton computes."""

    def __init__(self, partition: tuple[int, ...], rank: int, queues: Mapping[Any, Any], baton: threading.Lock) -> None:
        super().__init__(stage_ranges(partition, sum(partition))[rank], sum(partition))
        self._queues, self._baton = queues, baton  # of messages, by the receiving stage and whether from above
        self._expected: dict[bool, deque[int]] = {False: deque(), True: deque()}
        self.compared: Mapping[str, Any] = {}

    def check_settings(self, settings: Mapping[str, Any], *_: object) -> None:
        self.compared = settings

    def expect(self, forward: int | None, backward: int | None) -> None:
        for from_above, number in ((False, forward), (True, backward)):
            if number is not None:
                self._expected[from_above].append(number)

    def send(self, stage: int, message: Message) -> None:
        self._queues[stage, stage < self.stages.start].put(message)

    def collect(self, stage: int, action: Action | None) -> list[Message]:
        kind, last = (None, math.inf) if action is None else action
        messages = []
        for from_above, end in ((False, self.stages.start), (True, self.stages.stop - 1)):
            expected = self._expected[from_above]
            while stage == end and kind in (None, *KINDS[from_above]) and expected and expected[0] <= last:
                self._baton.release()
                try:
                    messages.append(self._queues[stage, from_above].get(timeout=60))
                finally:
                    self._baton.acquire()
                expected.popleft()
        return messages


def train_over_ranks(case: Case) -> tuple[dict[int, Any], dict[int, Any]]:
    """Train with a thread for each rank; return the state of each stage after `stop` micro-batches and at the end."""
    queues: Mapping[Any, queue.SimpleQueue[Message]] = defaultdict(queue.SimpleQueue)
    baton = threading.Lock()

    def train(rank: int) -> tuple[dict[int, Any], dict[int, Any]]:
        def states() -> dict[int, Any]:
            workers = p.state_dict()["workers"]
            return {index: workers[index] for index in channel.stages}

        middle: dict[int, Any] = {}
        with baton:
            channel = ThreadChannel(case.partition, rank, queues, baton)
            p = case.pipeline(seed=7, channel=channel)
            assert channel.compared["accumulation"] == case.k
            new = p.state_dict()
            toys.train(p, case.data()[-3:], drain=False)  # earlier work and its messages must leave no trace
            p.load_state_dict(new)
            with pytest.raises(ValueError, match=r"stagger\(\) is for one process"):
                p.stagger()
            with mock.patch.object(p.executor, "waiting", wraps=p.executor.waiting) as waiting:
                case.train(p, lambda m, loss: middle.update(states()) if m + 1 == case.stop else None)
            assert {step for _, step in (call.args for call in waiting.mock_calls)} == set(range(case.count))
            return middle, states()

    ranks = range(len(case.partition))
    with concurrent.futures.ThreadPoolExecutor(len(ranks)) as pool:
        middles, ends = zip(*pool.map(train, ranks), strict=True)
    return dict(collections.ChainMap(*middles)), dict(collections.ChainMap(*ends))


def in_lockstep() -> list[Case]:
    """Return the methods of the paper on all kinds of networks, with a drain, and without staleness."""
    cases = [
        # Without reversible stages, each method that reconstructs does the same as one that does not.
        *(Case(method, *(("b b h", 1) if method.reconstructs else ("b h", 2))) for method in methods.PAPER),
        *(Case(method, "b r r b r h", 3, inspect=True) for method in methods.PAPER),
        *(Case(method, "br rr brr rh", 4) for method in methods.PAPER),
    ]
    cases = [dataclasses.replace(case, drains=(12,), count=16) for case in cases]
    return cases + [Case(method, "br r b h", 2, (0,) * 4, count=12) for method in methods.PAPER if method.pipelined]


def with_rules() -> list[Case]:
    """Return every rule for delay: applied every step and every third, to single and merged stages, and resumed."""
    whole: dict[str, Any] = {"pattern": "b r r h", "k": 1, "count": 15, "partition": (2, 2)}
    merged = {"pattern": "br brr rh", "k": 3, "nesterov": False, "dropout": 0.2, "count": 13, "stop": 8}
    buffered = [[], *([rule()] for rule in CORRECTIONS.values() if rule is not delay.Average)]
    return [
        *(Case(method, rules=rules, **(merged if n % 2 else whole)) for n, (method, rules) in enumerate(SETTINGS)),
        *(
            Case(methods.PIPEDREAM_2BW, "b r h", 4, rules=rules, count=16, stop=11, partition=(1, 1, 1))
            for rules in buffered
        ),
        *(Case(methods.PIPEDREAM_2BW, "b r h", 5, rules=rules, count=15, dropout=0.2) for rules in buffered[::2]),
    ]


def alone() -> list[Case]:
    """Return networks of one stage, which no rule for delay changes, and every method in mixed precision."""
    cases = [Case(method, "h", 2, rules=rules, count=6) for method, rules in SETTINGS if method is methods.PETRA]
    dtypes = itertools.cycle((torch.bfloat16, torch.float16))
    return cases + [
        Case(method, "b r r b h", 4, autocast=dtype, count=12, inspect=True)
        for method, dtype in zip(methods.PAPER, dtypes, strict=False)
    ]


def drawn(method: Method, seed: int) -> Case:
    """Draw everything that the method allows."""
    generator = random.Random(f"{method} {seed}")
    stages = generator.randint(2, 5)
    words = [generator.choice(("b", "br")), *generator.choices(("b", "r", "r", "rr", "br"), k=stages - 2)]
    vector = random_vector(generator, stages) if method.pipelined else (0,) * stages
    k = max(generator.randint(1, 4), vector[0] if method.double_buffered else 1)
    count = 2 * vector[0] + 3 * k + 2
    cut = generator.randint(1, stages - 1)
    return Case(
        method,
        " ".join([*words, generator.choice(("h", "rh"))]),
        k,
        vector,
        generator.choice([[], *(rules for other, rules in SETTINGS if other is method)]),
        dropout=generator.choice((0.0, 0.3)),
        count=count,
        drains=(vector[0] + generator.randint(1, 2 * k),),
        stop=generator.randint(1, count - 1),
        partition=() if method.overlapped else (cut, stages - cut),
        inspect=not seed,
    )


CASES = [*in_lockstep(), *with_rules(), *alone(), *(drawn(method, seed) for method in methods.ALL for seed in range(3))]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_training_equals_reference(case: Case, tmp_path: Path) -> None:
    """Every combination of settings trains as the equations of the paper and of the rules."""
    check(case, tmp_path)


# --- the reference -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", methods.PAPER, ids=str)
def test_reference_by_staleness_equals_ticks_of_the_paper(method: Method) -> None:
    """The staleness vector of lockstep gives the losses, gradients and weights of the paper's ticks."""
    rule = RULES[method.name]
    pattern, k = ("br rr brr rh", 1) if rule.reconstructs else ("b r r b r h", 3)
    stages = network(pattern)
    optimizer = Sgd(lambda tick: RATE, MOMENTUM, nesterov=True, weight_decay=decay_of)
    data = batches(16)
    ticks = simulate(stages, rule, k, optimizer, data, entries(rule, len(stages), len(data)))
    vector = Case(method, pattern).expected_staleness
    steps = simulate(stages, rule, k, optimizer, data, range(len(data)), staleness=vector)
    for name in ("losses", "gradients", "inputs", "reconstructed"):
        assert_close(getattr(steps, name), getattr(ticks, name), TOLERANCE)
    assert_close(steps.weights[-1], ticks.weights[-1], TOLERANCE)


def test_reference_for_delayed_gradients_equals_autograd():
    """With stashed inputs and weights, gradients are those of the network with each stage's weights at its forward."""
    stages, data = network("b r r r h"), batches(12)
    history = simulate(stages, RULES["DELAYED_GRADIENTS"], 1, Sgd(lambda tick: 0.2), data, range(12))
    model = plain(stages)
    names = [name for name, _ in model.named_parameters()]
    for m, (x, y) in enumerate(data):
        seen = [tensor for j in range(len(stages)) for tensor in flat(history.weights[m + j][j])]
        leaves = [tensor.clone().requires_grad_() for tensor in seen]
        loss = F.cross_entropy(functional_call(model, dict(zip(names, leaves, strict=True)), (x,)), y)
        gradients = [tensor for j in range(len(stages)) for tensor in flat(history.gradients[j, m])]
        assert_close(gradients, torch.autograd.grad(loss, leaves), TOLERANCE)


# --- other properties --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", methods.PAPER, ids=str)
def test_in_place_gradient_change_affects_only_the_update(method):
    """Clipping does this. With `Shift`, a gradient could share memory with the message in flight to the stage below."""

    def double(stage_index: int, version: int, stage: nn.Module) -> None:
        for parameter in stage.parameters():
            parameter.grad.mul_(2)

    stages, data, rule = network("b r r b r h", norm=False), batches(12), RULES[method.name]
    history = simulate(stages, rule, 1, Sgd(lambda tick: 0.1), data, entries(rule, len(stages), len(data)))
    half = functools.partial(torch.optim.SGD, lr=0.05)
    pipeline = pipeline_of(stages, method, 1, optimizer=half, before_update=double, inspect=False)
    toys.train(pipeline, data)
    assert_close(weights_of(pipeline), history.weights[-1], TOLERANCE)
