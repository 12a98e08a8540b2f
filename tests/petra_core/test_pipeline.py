"""Test the pipeline: the order of losses, the use of the caller's memory, and errors for bad input."""

import copy
import itertools
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from petra_core import BufferedStage, CheckpointError, NonFiniteError, Pipeline, Stage, methods
from petra_core.inspection.values import PendingLosses
from petra_core.messages import Channel
from petra_core.methods import Method
from petra_core.tape import as_streams, as_value
from petra_core.update_rule import UpdateRule
from petra_core.worker import devices_of
from tests import toys
from tests.compare import assert_bitwise_equal
from tests.delay_by_hand import Drift
from tests.properties import program

pytestmark = pytest.mark.convolutions


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_evaluation_uses_next_forward_weights_and_keeps_nothing(method: Method) -> None:
    """The head returns the network's output, without the loss."""
    p, alone = (toys.pipeline(toys.network(4, norm=False), method, accumulation=8) for _ in range(2))
    value, later = torch.randn(4, 3, 6, 6, dtype=torch.float64), toys.batches(20, seed=2)
    before = copy.deepcopy(p.stages)
    assert toys.train(p, later[:14], drain=False) == toys.train(alone, later[:14], drain=False)
    assert [worker.version for worker in p.workers] == [1] * 4
    for number, (stage, worker) in enumerate(zip(p.stages, p.workers, strict=True)):
        used = before[number] if method.double_buffered else stage  # the version before the only update
        with torch.no_grad():
            expected = used(value)
        assert_bitwise_equal(as_value(worker.evaluate(as_streams(value), p.micro_batches)), expected)
        value = expected
    assert toys.train(p, later[14:]) == toys.train(alone, later[14:])


def test_evaluation_repeats_draws_and_restores_generators() -> None:
    p = toys.pipeline(toys.network(4, dropout=0.5), methods.PETRA, seed=7)
    toys.train(p, toys.batches(6), drain=False)
    value, state = p.workers[0].evaluate((toys.batches(1)[0][0],), 6), torch.get_rng_state()
    first = p.workers[1].evaluate(value, 6)
    assert_bitwise_equal(p.workers[1].evaluate(value, 6), first)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("method", [*methods.PAPER, methods.PAREPROP], ids=str)
@pytest.mark.parametrize(("stages", "k"), [(4, 1), (3, 2)])
def test_recorded_actions_equal_program(method: Method, stages: int, k: int) -> None:
    """The recorded actions of every stage equal those that `program` lists."""
    p = toys.pipeline(toys.network(stages), method, accumulation=k)
    with p.recording() as recording:
        toys.train(p, toys.batches(9))
    toys.train(p, toys.batches(2))  # outside the context manager
    for stage in range(stages):
        executed = [action for index, action in recording if index == stage]
        assert executed == list(program(method, p.staleness, stage, 9, k))
    assert p.micro_batches == 11


def test_frozen_parameters_stay_without_gradient_bytes() -> None:
    """Frozen parameters do not change and take no memory for gradients."""
    net = toys.network(5)
    for parameter in net[2].parameters():
        parameter.requires_grad_(False)
    for method in methods.PAPER:
        p = toys.pipeline(net, method)
        toys.train(p, toys.batches(12))
        assert_bitwise_equal(dict(p.stages[2].named_parameters()), dict(net[2].named_parameters()))
        assert p.memory().stages[2].peak["gradients"] == 0
        assert not torch.equal(p.stages[1].state_dict()["residual.0.weight"], net[1].state_dict()["residual.0.weight"])


@pytest.mark.parametrize(
    ("method", "rules"),
    [(methods.PETRA, [Drift()]), (methods.DSP, []), (methods.BACKPROPAGATION, [])],
    ids=["PETRA with a rule", "DSP", "BACKPROPAGATION"],
)
def test_copies_of_pipeline_train_identically(method: Method, rules: list[UpdateRule]) -> None:
    """Deep and pickled copies of a pipeline have bitwise the losses and states of the original in later steps."""
    data = toys.batches(12)
    p = Pipeline(toys.network(4), method, optimizer=toys.sgd, seed=7, delay=rules)
    toys.train(p, data[:6], drain=False)
    copies = [copy.deepcopy(p), pickle.loads(pickle.dumps(p))]
    losses = toys.train(p, data[6:])
    for copied in copies:
        assert toys.train(copied, data[6:]) == losses
        assert_bitwise_equal(copied.state_dict(), p.state_dict())


# Bad input


def broken(data: list[Any], *stages: int, value: str) -> tuple[Pipeline, dict[str, Any]]:
    """Return a full pipeline with `value` in a weight of each of these stages, and its state before that."""
    p = toys.pipeline(toys.network(6), methods.PETRA)
    toys.train(p, data[:12], drain=False)
    p.check_finite()
    good = p.state_dict()
    with torch.no_grad():
        for stage in stages:
            next(p.stages[stage].parameters()).fill_(float(value))
    return p, good


def test_non_finite_error_names_stage_and_micro_batch() -> None:
    data = toys.batches(24)
    p, good = broken(data, 2, value="inf")
    with pytest.raises(NonFiniteError, match=r"micro-batch 1\d is nan; .* stage 2 \(parameter residual\.0") as caught:
        toys.train(p, data[12:], drain=False)
    assert caught.value.stage == 2
    assert f"after {p.workers[2].version} updates" in str(caught.value)
    assert 9 < caught.value.micro_batch < 16
    with pytest.raises(RuntimeError, match="load a checkpoint"):
        p.step(*data[0])
    p.load_state_dict(good)
    assert len(toys.train(p, data[12:])) == 12
    # Broken weights are found before they affect a loss.
    p, _ = broken(data, 1, 3, value="nan")
    with pytest.raises(
        NonFiniteError, match=r"of stage 3 is not finite after \d+ updates and micro-batch 11"
    ) as caught:
        p.check_finite()
    assert (caught.value.stage, caught.value.micro_batch) == (3, 11)
    # A NaN in an image is found at stage 0, because all weights are finite.
    p, _ = broken(data, value="nan")
    with pytest.raises(NonFiniteError) as caught:
        toys.train(p, [(data[12][0] * float("nan"), data[12][1]), *data[13:]])
    assert (caught.value.stage, caught.value.micro_batch) == (0, 12)
    # A variance overflows with a finite mean after updates at too high a rate.
    p = toys.pipeline(toys.network(6), methods.PETRA)
    p.set_learning_rate(1e10)
    with pytest.raises(NonFiniteError, match=r"running_var is not finite, after \d+ updates\); lower the"):
        toys.train(p, data)


def test_state_accepts_infinite_mask_and_refuses_nan() -> None:
    """The state was refused although `check_finite` accepted the pipeline."""
    net = toys.network(3)
    net[1].function.register_buffer("mask", torch.tensor([0.0, -math.inf]))
    net[1].function.frozen = nn.Parameter(torch.tensor([0.0, -math.inf]), requires_grad=False)
    p = toys.pipeline(net)
    toys.train(p, toys.batches(3), drain=False)
    resumed = toys.pipeline(net)
    resumed.load_state_dict(p.state_dict())
    assert_bitwise_equal(resumed.state_dict(), p.state_dict())
    p.stages[1].function.mask[0] = math.nan
    with pytest.raises(NonFiniteError, match=r"buffer residual\.mask of stage 1 is not finite after 1 updates"):
        p.state_dict()


@pytest.mark.parametrize("look", [Pipeline.drain, Pipeline.state_dict, Pipeline.check_finite])
def test_late_non_finite_loss_names_no_stage(
    look: Callable[[Pipeline], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU reports the loss late; by then the head's weights are broken too."""
    data = toys.batches(24)
    p, _ = broken(data, 2, value="inf")
    monkeypatch.setattr(PendingLosses, "add", lambda losses, *given, **_: losses._waiting.append(given))
    toys.train(p, data[12:], drain=False)
    with pytest.raises(NonFiniteError, match=r"micro-batch 1\d is nan; .* it originated is unknown") as caught:
        look(p)
    assert caught.value.stage is None
    assert 9 < caught.value.micro_batch < 16
    with pytest.raises(RuntimeError, match="load a checkpoint"):
        p.step(*data[0])


def test_stage_without_tensors_uses_device_of_neighbour() -> None:
    """A stage without tensors is on the device of a neighbour, or on the CPU if no stage has tensors."""
    bare, here = BufferedStage(nn.Flatten()), toys.stem(2)
    elsewhere = toys.stem(2).to("meta")
    device_types = [device.type for device in devices_of([bare, elsewhere, bare, bare, here, bare])]
    assert device_types == ["meta", "meta", "meta", "meta", "cpu", "cpu"]
    assert [device.type for device in devices_of([bare])] == ["cpu"]


def test_interrupted_step_requires_a_load() -> None:
    """After an exception in a step, the next step once kept the old inputs with new targets."""
    calls = itertools.count()

    def interrupt(index: int, version: int, stage: Stage) -> None:
        if next(calls) == 7:
            raise KeyboardInterrupt

    data = toys.batches(9)
    p = toys.pipeline(toys.network(4), before_update=interrupt)
    p.step(*data[0])
    state = p.state_dict()
    with pytest.raises(KeyboardInterrupt):
        toys.train(p, data)
    for read in (p.state_dict, p.gather, p.check_finite, lambda: p.evaluate(data[0][0])):
        with pytest.raises(RuntimeError, match="broke off a step"):
            read()
    with pytest.raises(RuntimeError, match="broke off a step"):
        p.step(*data[0])
    p.load_state_dict(state)
    toys.train(p, data)


def test_broken_pipeline_over_processes_loads_no_state() -> None:
    """Messages of the broken step could arrive later, and Gloo ends a process that gets one of another size."""
    part = toys.pipeline(toys.network(4), seed=7, channel=Channel(range(2), 4))
    state = part.state_dict()
    part.stages[1].function.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        part.step(*toys.batches(1)[0])
    with pytest.raises(RuntimeError, match="over several processes into a new pipeline"):
        part.load_state_dict(state)


@pytest.mark.parametrize("method", [methods.PETRA, methods.DELAYED_GRADIENTS], ids=str)
@pytest.mark.parametrize("context", [torch.inference_mode, parametrize.cached])
def test_gradients_in_flight_are_not_lost_in_other_contexts(context: Callable[[], Any], method: Method) -> None:
    """In such a context a drain or a load raises; it once lost every gradient in flight without an error."""
    p, expected = (toys.pipeline(toys.network(4), method) for _ in range(2))
    for pipeline in (p, expected):
        toys.train(pipeline, toys.batches(6), drain=False)
    state = p.state_dict()
    for call in (p.drain, lambda: p.load_state_dict(state)):
        with context(), pytest.raises(RuntimeError, match=r"drain\(\) and load_state_dict\(\) outside of it"):
            call()
    for pipeline in (p, expected):
        pipeline.drain()
    assert_bitwise_equal(p.state_dict(), expected.state_dict())


def test_drained_state_of_staggered_pipeline_loads_over_processes() -> None:
    """After a drain no stage lags behind stage 0, so the state fits a process that owns some of the stages."""
    p = toys.pipeline(toys.network(4), seed=7)
    p.stagger()
    toys.train(p, toys.batches(5), drain=False)
    part = toys.pipeline(toys.network(4), seed=7, channel=Channel(range(2), 4))
    with pytest.raises(CheckpointError, match="between recorded steps"):
        part.load_state_dict(p.state_dict())
    p.drain()
    part.load_state_dict(p.state_dict())
    assert_bitwise_equal(part.state_dict()["workers"][:2], p.state_dict()["workers"][:2])


@pytest.mark.parametrize("entry", ["behind", "micro_batches", "drained", "shapes"])
def test_incomplete_state_raises_checkpoint_error(entry: str) -> None:
    p = toys.pipeline(toys.network(3))
    state = p.state_dict()
    with pytest.raises(CheckpointError, match="the state of stage 0 does not fit"):
        p.load_state_dict({**state, "workers": [{**worker, "parts": None} for worker in state["workers"]]})
    del state[entry]
    with pytest.raises(CheckpointError, match=f"it has no '{entry}' entry"):
        p.load_state_dict(state)
