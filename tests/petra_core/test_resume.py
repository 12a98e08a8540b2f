"""Test property 4: a run that stops with a full pipeline and resumes in a new process is bitwise uninterrupted.

`test_petra_semantics` stops under every method and rule; here are other layouts, generators and processes.
"""

import contextlib
import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from petra_core import CheckpointError, Pipeline, checkpoint, merge, methods
from petra_core.methods import Method
from tests import toys
from tests.compare import assert_bitwise_equal
from tests.processes import Command

pytestmark = pytest.mark.convolutions


def fresh(method: Method, k: int, *, seed: int | None = 7) -> Pipeline:
    net = toys.network(6, dropout=0.2)
    return toys.pipeline([net[0], merge(net[1:3]), *net[3:]], method, accumulation=k, seed=seed)


def test_resume_keeps_strides_of_messages(tmp_path: Path) -> None:
    """Autograd returned views of a concatenation's gradient. Their copies had other strides, so other kernels ran."""

    def make() -> Pipeline:
        net = [stage.to(memory_format=torch.channels_last) for stage in toys.network(6)]
        return toys.pipeline(net, accumulation=2, seed=7)

    data = [(x.contiguous(memory_format=torch.channels_last), y) for x, y in toys.batches(20)]
    undisturbed = make()
    toys.train(undisturbed, data[:13], drain=False)
    checkpoint.save(tmp_path / "state.pt", undisturbed.state_dict())
    resumed = make()
    resumed.load_state_dict(checkpoint.load(tmp_path / "state.pt"))
    for one, other in zip(undisturbed.workers, resumed.workers, strict=True):
        for inbox, copy_of_it in ((one.from_below, other.from_below), (one.from_above, other.from_above)):
            for message, copied in zip(inbox, copy_of_it, strict=True):
                tensors, copies = ((*(m.streams or ()), *(m.gradients or ())) for m in (message, copied))
                assert [tensor.stride() for tensor in tensors] == [tensor.stride() for tensor in copies]
    assert toys.train(resumed, data[13:]) == toys.train(undisturbed, data[13:])
    assert_bitwise_equal(resumed.state_dict(), undisturbed.state_dict())


def go_on(folder: Path) -> None:
    pipeline = fresh(methods.DELAYED_GRADIENTS, 2)
    pipeline.load_state_dict(checkpoint.load(folder / "state.pt"))
    toys.train(pipeline, toys.batches(16)[7:])
    checkpoint.save(folder / "end.pt", pipeline.state_dict())


@pytest.mark.slow
def test_resume_in_a_new_process(tmp_path: Path) -> None:
    """A new process resumes bitwise from a checkpoint file with micro-batches in flight."""
    data = toys.batches(16)
    undisturbed = fresh(methods.DELAYED_GRADIENTS, 2)
    toys.train(undisturbed, data)
    stopped = fresh(methods.DELAYED_GRADIENTS, 2)
    toys.train(stopped, data[:7], drain=False)
    checkpoint.save(tmp_path / "state.pt", stopped.state_dict())
    with contextlib.closing(Command(go_on, tmp_path)) as process:
        assert process.stderr() == ""
        assert process.returncode == 0
    assert_bitwise_equal(checkpoint.load(tmp_path / "end.pt"), undisturbed.state_dict())


def as_from_a_gpu(state: dict[str, Any]) -> dict[str, Any]:
    """Add the state of a CUDA generator wherever random numbers may have been drawn."""
    device = torch.zeros(16, dtype=torch.uint8)
    if state["random"] is not None:
        state["random"].append((*state["random"][0], device))
    for worker in state["workers"]:
        worker["random"] = worker["random"] and (*worker["random"], device)
        for part in worker["parts"]:
            for entry in part["memory"]:
                entry["random"] = entry["random"] and (*entry["random"], device)
    return state


@pytest.mark.parametrize("seed", [None, 7])
def test_gpu_state_resumes_on_cpu_without_drawn_numbers(seed: int | None) -> None:
    """A GPU's state resumes bitwise on the CPU unless micro-batches in flight have drawn random numbers."""
    data = toys.batches(16)
    undisturbed, stopped, resumed = (toys.pipeline(toys.network(6), seed=seed) for _ in range(3))
    expected = toys.train(undisturbed, data)
    losses = toys.train(stopped, data[:9], drain=False)
    resumed.load_state_dict(as_from_a_gpu(stopped.state_dict()))
    assert losses + toys.train(resumed, data[9:]) == expected
    assert_bitwise_equal(resumed.state_dict(), undisturbed.state_dict())
    drawing = fresh(methods.PETRA, 1)
    toys.train(drawing, data[:9], drain=False)
    message = "stage 1 does not fit.*drawn random numbers .* on another type of device, and cpu cannot"
    with pytest.raises(CheckpointError, match=message):
        fresh(methods.PETRA, 1).load_state_dict(as_from_a_gpu(drawing.state_dict()))


def test_state_dict_is_a_copy() -> None:
    """Further training of the saved or the loaded pipeline does not change the state."""
    p = fresh(methods.PETRA, 3)
    data = toys.batches(10)
    toys.train(p, data[:6], drain=False)
    state = p.state_dict()
    kept = copy.deepcopy(state)
    toys.train(p, data[6:], drain=False)
    assert_bitwise_equal(state, kept)
    other = fresh(methods.PETRA, 3)
    other.load_state_dict(state)
    toys.train(other, data[6:], drain=False)
    assert_bitwise_equal(state, kept)
    assert_bitwise_equal(other.state_dict(), p.state_dict())


def test_resumed_pipeline_checks_micro_batch_shapes() -> None:
    p, resumed = fresh(methods.PETRA, 1), fresh(methods.PETRA, 1)
    (x, y), _ = data = toys.batches(2)
    toys.train(p, data, drain=False)
    resumed.load_state_dict(p.state_dict())
    with pytest.raises(ValueError, match=r"micro-batch 2 has shapes .*drop_last=True"):
        resumed.step(x[:2], y[:2])
