"""Test property 4: a run that stops with a full pipeline and resumes in a new process is bitwise uninterrupted.

`test_petra_semantics` stops under every method and rule; here are other layouts, generators and processes.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from petra_core import CheckpointError, Pipeline, checkpoint, merge, methods
from petra_core.methods import Method
from tests import toys
from tests.compare import assert_bitwise_equal

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
                assert [t.stride() for t in message.tensors] == [t.stride() for t in copied.tensors]
    assert toys.train(resumed, data[13:]) == toys.train(undisturbed, data[13:])
    assert_bitwise_equal(resumed.state_dict(), undisturbed.state_dict())


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
