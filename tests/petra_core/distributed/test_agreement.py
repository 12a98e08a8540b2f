"""Test that disagreeing ranks raise an error with both values everywhere, and that a trained network is gathered."""

import dataclasses
import itertools
import json
import re
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from petra_core import Pipeline, methods
from petra_core.delay import PredictedWeights, Rate
from petra_core.distributed import ProcessChannel, process_channel
from petra_core.distributed.agreement import (
    _plain,
    describe_micro_batch,
    describe_optimizer,
    describe_stages,
    differences,
)
from petra_core.distributed.groups import ChannelError
from petra_core.methods import Method
from petra_core.models import sequential
from petra_core.stages import Stage
from tests import toys
from tests.compare import assert_bitwise_equal
from tests.processes import in_processes

PROMPT = 60.0  # seconds; less than the timeout of the group, so that a hang fails
Settings = dict[str, Any]


def adamw(learning_rate: float) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.AdamW(parameters, lr=learning_rate)


def frozen(stages: list[Stage]) -> list[Stage]:
    for parameter in stages[1].parameters():
        parameter.requires_grad_(False)
    return stages


def wide(stages: list[Stage]) -> list[Stage]:
    return [*stages[:-1], toys.head(7).double()]


def single(stages: list[Stage]) -> list[Stage]:
    return [stage.float() for stage in stages]


#: Settings of rank 1 that differ from those of rank 0, and the error on both ranks.
OTHERWISE: dict[str, tuple[Settings, str]] = {
    "method": ({"method": methods.DSP}, "method.name is 'PETRA' on rank 0 and 'DSP' on rank 1"),
    "one at a time": ({"method": methods.BACKPROPAGATION}, "'PETRA' on rank 0 and 'BACKPROPAGATION' on rank 1"),
    "a setting of the method": (
        {"method": dataclasses.replace(methods.PETRA, inputs=methods.Inputs.STASH)},
        "method.inputs is 'reconstruction' on rank 0 and 'stash' on rank 1",
    ),
    "k": ({"accumulation": 4}, "accumulation is 2 on rank 0 and 4 on rank 1"),
    "correction": ({"delay": [Rate(5.0)]}, "delay is 'uncorrected' on rank 0 and "),
    "forward weights": ({"delay": [PredictedWeights()]}, "delay is 'uncorrected' on rank 0 and "),
    "class of the optimizer": ({"optimizer": adamw(0.05)}, "optimizer.class is 'SGD' on rank 0 and 'AdamW' on rank 1"),
    "learning rate": (
        {"optimizer": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)},
        "optimizer.groups[0].lr is 0.05 on rank 0 and 0.1 on rank 1",
    ),
    "no optimizer": ({"optimizer": None}, "optimizer is {'class': 'SGD'"),
    "autocast": ({"autocast": torch.bfloat16}, "autocast is None on rank 0 and 'torch.bfloat16' on rank 1"),
    "seed": ({"seed": 8}, "seed is 7 on rank 0 and 8 on rank 1"),
    "dtype": (
        {"change": single},
        "stages[0].parameters[0][1] is 'torch.float64' on rank 0 and 'torch.float32' on rank 1",
    ),
    "shape": ({"change": wide}, "stages[4].parameters[0][0][1] is 8 on rank 0 and 14 on rank 1"),
    "frozen parameters": (
        {"change": frozen},
        "stages[1].parameters[0][2] is 'trained' on rank 0 and 'frozen' on rank 1",
    ),
}


def pipeline(channel: ProcessChannel, change: Callable[[list[Stage]], list[Stage]] = list, **settings: Any) -> Pipeline:
    usual = {"method": methods.PETRA, "accumulation": 2, "optimizer": toys.sgd, "seed": 7}
    return Pipeline(toys.of_process(change(toys.network(5)), channel), channel=channel, **{**usual, **settings})


def refuse_settings(rank: int) -> None:
    channel = ProcessChannel((2, 3))
    for name, (otherwise, message) in OTHERWISE.items():
        begin = time.monotonic()
        with pytest.raises(ValueError, match=r"the ranks of this pipeline do not agree.*same arguments") as caught:
            pipeline(channel, **otherwise if rank else {})
        assert message in str(caught.value), (name, str(caught.value))
        assert time.monotonic() - begin < PROMPT, name
    both = {"accumulation": 4, "seed": 8} if rank else {}
    with pytest.raises(ValueError, match="accumulation is 2 on rank 0 and 4 on rank 1; seed is 7 on rank 0 and 8 on"):
        pipeline(channel, **both)
    net = toys.network(5)
    shared = net[1].function[0].weight.requires_grad_(False)
    net[2].function[0].weight = shared
    shared += rank
    with pytest.raises(ValueError, match=r"agree: residual\.0\.weight of stage 1 is .* on rank 0 and .* on rank 1"):
        Pipeline(net, methods.PETRA, optimizer=toys.sgd, seed=7, channel=channel)
    toys.train(pipeline(channel), toys.batches(3))  # agreeing ranks can still train
    channel.close()
    for mine, theirs in (((2, 3), (3, 2)), ((2, 3), (2, 4)), ((2, 3), (5,)), ((2, 3), (1, 2, 2))):
        found = "partition" if len(theirs) != 2 else "partition["
        begin = time.monotonic()
        with pytest.raises(ValueError, match=rf"{re.escape(found)}.* on rank 0 and .* on rank 1. Make the channel"):
            ProcessChannel(theirs if rank else mine)
        assert time.monotonic() - begin < PROMPT


@pytest.mark.slow
def test_differing_settings_raise_on_both_ranks() -> None:
    """A setting that differs between two ranks raises a ValueError with both values on both ranks."""
    in_processes(2, refuse_settings)


def shuffled(seed: int, samples: int = 48) -> DataLoader[tuple[Tensor, ...]]:
    """Return an ordinary loader, which is shuffled by torch's global generator."""
    data = TensorDataset(*toys.batches(1, size=samples)[0])
    torch.manual_seed(seed)
    return DataLoader(data, batch_size=4, shuffle=True)


def refuse_data(rank: int) -> None:
    begin = time.monotonic()
    channel = ProcessChannel((2, 3))
    p = pipeline(channel)
    states = [p.state_dict()]
    for x, y in shuffled(0):
        p.step(x, y)  # with the same seed on both ranks
    states.append(p.state_dict())
    p.load_state_dict(states[rank])
    with pytest.raises(ValueError, match=r"number of micro-batches is 0 on rank 0 and 12 on rank 1.*of the same"):
        p.step(x, y)
    states = [pipeline(ProcessChannel((2, 3)), seed=seed).state_dict() for seed in (7, 8)]
    p = pipeline(ProcessChannel((2, 3)))
    p.load_state_dict(states[rank])
    with pytest.raises(ValueError, match=r"run is '\w+' on rank 0 and '\w+' on rank 1.*of one run"):
        p.step(x, y)
    p = pipeline(ProcessChannel((2, 3)))
    message = (
        r"micro-batch 0.inputs\[0\] is 'torch.float64 \[4, 3, 6, 6\] with SHA-256 \w{12}' on rank 0 and "
        r"'torch.float64 \[4, 3, 6, 6\] with SHA-256 \w{12}' on rank 1. Give every rank the same micro-batches"
    )
    with pytest.raises(ValueError, match=message):
        p.step(*next(iter(shuffled(rank))))
    assert p.micro_batches == 0
    [(x, y)] = toys.batches(1)
    with pytest.raises(ValueError, match=r"micro-batch 0.target is 'torch.int64 \[4\].* on rank 0 and .* on rank 1"):
        p.step(x, y.roll(rank))
    with pytest.raises(ValueError, match=r"micro-batch 0.inputs.* \[4, 3, 6, 6\].* \[3, 3, 6, 6\]"):
        p.step(x[rank:], y)  # a smaller last micro-batch on one rank
    p.step(x, y.clone())
    p.set_learning_rate(0.1 if rank else 0.05)  # as a schedule does that reads losses, which only one rank has
    with pytest.raises(
        ValueError, match=r"learning rate is 0.05 on rank 0 and 0.1 on rank 1.*broadcast the learning rate"
    ):
        p.step(x, y)
    assert time.monotonic() - begin < PROMPT


@pytest.mark.slow
def test_differing_micro_batches_or_rates_raise() -> None:
    """Ranks with different micro-batches, rates or loaded states raise ValueError at the first such step."""
    in_processes(2, refuse_data)


def drain_apart(rank: int) -> None:
    """Let rank 0 drain while rank 1 takes a further step, and let both close after different numbers of steps."""
    data = toys.batches(10)

    def prepared(steps: int, **settings: Any) -> Pipeline:
        p = Pipeline(toys.network(3), methods.PETRA, seed=7, channel=ProcessChannel((2, 1), **settings))
        toys.train(p, data[:steps], drain=False)
        return p

    p = prepared(3)
    with pytest.raises(ValueError, match="call is 'drain or close' on rank 0 and 'step' on rank 1"):
        p.step(*data[3]) if rank else p.drain()
    p = prepared(10 - rank)
    with pytest.raises(ValueError, match=r"steps taken is 10 on rank 0 and 9 on rank 1. Make the same calls"):
        p.channel.close()
    p = prepared(9, timeout=timedelta(seconds=5))
    with pytest.raises(ChannelError, match="lost"):  # rank 1 once took the dummy message of `close` for a micro-batch
        p.step(*data[9]) if rank else p.drain()
    torch.distributed.barrier()  # rank 0 has the store through which the others connect


@pytest.mark.slow
def test_drain_on_one_rank_raises_on_both_ranks() -> None:
    """If one rank drains while the other takes a step, both raise an error."""
    in_processes(2, drain_apart)


def compare_now_and_then(rank: int) -> None:
    compared: list[list[str]] = []
    agree = process_channel.agree

    def noted(group: Any, values: dict[str, Any], remedy: str) -> None:
        compared.append(list(values))
        agree(group, values, remedy)

    data = toys.batches(40)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_channel, "agree", noted)
        p = pipeline(ProcessChannel((2, 2, 1), compare_every=16))
        del compared[:]
        for x, y in data:
            p.step(x, y if rank != 1 else torch.zeros_like(y))  # rank 1 has no end and needs no data
    at = [int(value.split()[1]) for values in compared for value in values if value.startswith("micro-batch")]
    assert len(compared) == 10
    assert at == ([*range(8), 16, 32] if rank != 1 else [])
    p = pipeline(ProcessChannel((2, 2, 1), compare_every=10))
    for m, (x, y) in enumerate(data[:20]):
        p.step(x, y.roll(int(rank == 2 and m > 10)))
    with pytest.raises(ValueError, match=r"micro-batch 20.target is .* on rank 0 and .* on rank 2"):
        p.step(data[20][0], data[20][1].roll(int(rank == 2)))
    p = pipeline(ProcessChannel((2, 2, 1), compare_every=None))
    for x, y in data[:9]:
        p.step(x, y.roll(rank))
    torch.distributed.barrier()  # rank 0 has the store through which the others connect


@pytest.mark.slow
def test_only_end_ranks_compare_micro_batches() -> None:
    """First and last rank compare the first 8 micro-batches and later one in `compare_every`."""
    in_processes(3, compare_now_and_then)


def lose(rank: int) -> None:
    channel = ProcessChannel((2, 3), timeout=timedelta(seconds=3))
    if rank == 0:
        with pytest.raises(ChannelError, match="rank 0 lost another rank while comparing values"):
            pipeline(channel)


@pytest.mark.slow
def test_missing_pipeline_on_other_rank_times_out() -> None:
    """If another rank makes no pipeline, ChannelError is raised after the timeout."""
    in_processes(2, lose)


def gather(rank: int, partition: tuple[int, ...], which: tuple[Method, ...]) -> None:
    count = sum(partition)
    for method in which:
        alone = toys.pipeline_of_process(count, method, 2, None)
        channel = ProcessChannel(partition)
        shared = toys.pipeline_of_process(count, method, 2, channel)
        for p in (alone, shared):
            toys.train(p, toys.batches(2 * count + 3), drain=False)  # full
        state, expected = shared.gather(), alone.model.state_dict()
        assert list(state) == list(expected)
        assert_bitwise_equal(state, dict(expected))
        assert all(state[name].stride() == tensor.stride() for name, tensor in expected.items())
        assert_bitwise_equal(alone.gather(), dict(expected))
        first, last = channel.stages[0], channel.stages[-1]
        with pytest.raises(RuntimeError, match=rf"trains stages {first} to {last} of {count}.*Call gather\(\)"):
            _ = shared.model
        whole = sequential(toys.merged_network(count))  # as another program would build it
        whole.load_state_dict(state)
        test = toys.batches(1, seed=5)[0][0]
        assert_bitwise_equal(whole.eval()(test).detach(), shared.evaluate(test))
        before = {name: tensor.clone() for name, tensor in state.items()}
        for p in (alone, shared):
            toys.train(p, toys.batches(4, seed=3))
        assert_bitwise_equal(state, before)  # it is a copy
        assert_bitwise_equal(shared.gather(), dict(alone.model.state_dict()))
        channel.close()


@pytest.mark.slow
def test_gathered_state_equals_one_process_bitwise() -> None:
    in_processes(3, gather, (2, 3, 1), (methods.PETRA, methods.DELAYED_GRADIENTS, methods.BACKPROPAGATION))


def test_gather_in_one_process_copies_model_state() -> None:
    """In one process, `gather` copies the model's state and rejects entries that are not tensors."""
    p = toys.pipeline(toys.network(5))
    state = p.gather()
    assert_bitwise_equal(state, dict(p.model.state_dict()))
    assert not {t.data_ptr() for t in state.values()} & {t.data_ptr() for t in p.model.state_dict().values()}

    class Counting(nn.Identity):
        def get_extra_state(self) -> int:
            return 3

    stages = toys.network(5)
    stages[0] = type(stages[0])(nn.Sequential(Counting(), stages[0].function))
    with pytest.raises(TypeError, match=r"0.module.0._extra_state is a int, and only tensors can be gathered"):
        toys.pipeline(stages).gather()


def test_differences_name_place_and_values() -> None:
    """`differences` gives the place and both values of the first difference in each entry."""
    rows: list[dict[str, Any]] = [
        {"k": 2, "staleness": [6, 4, 2, 0], "delay": {"rule": "rate", "value": 1.0}, "cut": [3, 2], "data": "a"},
        {"k": 2, "staleness": [6, 4, 3, 0], "delay": {"rule": "rate"}, "cut": [5]},
        {"k": 4, "staleness": [6, 4, 2, 0], "delay": {"rule": "rate", "value": 1.0}, "cut": [3, 2], "data": "b"},
    ]
    assert list(differences(rows)) == [
        ("k", (0, 2), (2, 4)),
        ("staleness[2]", (0, 2), (1, 3)),
        ("delay.value", (0, 1.0), (1, "nothing")),
        ("cut", (0, [3, 2]), (1, [5])),
        ("data", (0, "a"), (2, "b")),
    ]
    assert list(differences(rows[:1] * 3)) == []


def test_descriptions_are_equal_in_all_processes() -> None:
    """Descriptions are plain JSON without addresses and do not depend on the device of a stage."""
    values = {
        "method": methods.PETRA,
        "range": range(2),
        "tensor": torch.tensor([1.5, 2.0]),
        "function": lambda: None,
        "device": torch.device("cpu"),
        3: {torch.float64: None},
    }
    plain = json.loads(json.dumps(_plain(values)))
    assert plain == _plain(values)
    assert plain["method"]["weights"] == "current"
    assert plain["function"] == "function"  # without its address
    assert plain["3"] == {"torch.float64": None}
    net = toys.network(5)
    assert describe_stages(net, range(0)) == describe_stages([stage.to("meta") for stage in net], range(0))


def test_optimizer_factories_are_compared_by_result() -> None:
    """A factory is described by the class and settings of the optimizer that it makes."""

    def optimizer(factory: Callable[..., Any] | None) -> Any:
        return _plain(describe_optimizer(factory))

    made = optimizer(toys.sgd)["optimizer"]
    assert made["class"] == "SGD"
    assert (made["groups"][0]["lr"], made["groups"][0]["momentum"]) == (0.05, 0.9)
    assert optimizer(None) == {"optimizer": None}
    tensor_rate = optimizer(lambda p: torch.optim.SGD(p, lr=torch.tensor(0.5)))
    assert tensor_rate["optimizer"]["groups"][0]["lr"] == 0.5

    def by_size(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return adamw(0.1)(parameters) if sum(p.numel() for p in parameters) > 100 else toys.sgd(parameters)

    assert optimizer(by_size) == optimizer(by_size)  # regardless of the stages of a rank
    numbers = itertools.count()
    counting = [optimizer(lambda p: torch.optim.SGD(p, lr=1.0 + next(numbers))) for _ in range(2)]
    assert counting[0] != counting[1]  # a rate that depends on the number of calls differs between processes
    rates: dict[int, float] = {}
    assert optimizer(lambda p: torch.optim.SGD(p, lr=rates[id(p[0])])) == {}


def test_micro_batch_description_covers_bits_not_layout() -> None:
    """The description of a micro-batch depends on every bit and the dtype, and not on the memory layout."""
    x = torch.randn(2, 3, 4, 4)
    same = describe_micro_batch((x,), x)
    assert describe_micro_batch((x.to(memory_format=torch.channels_last),), x) == same
    assert describe_micro_batch((x.clone(),), x.clone()) == same
    other = x.clone()
    other.view(torch.int32)[1, 2, 3, 3] ^= 1
    assert describe_micro_batch((other,), x) != same
    assert describe_micro_batch((x.view(torch.int32),), x) != same
    for value in (torch.tensor(3), torch.tensor([True, False]), torch.zeros(0), torch.randn(3).to(torch.bfloat16)):
        assert describe_micro_batch((value,), None)["inputs"] == describe_micro_batch((value.clone(),), None)["inputs"]
    conjugate = torch.randn(3, dtype=torch.complex64).conj()
    assert describe_micro_batch((conjugate,), None) == describe_micro_batch((conjugate.resolve_conj().clone(),), None)
