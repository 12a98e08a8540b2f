"""Test that the examples run, learn, and train as plain PyTorch does."""

import copy
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from petra_core import Pipeline, methods
from petra_core.methods import Method
from petra_core.models import sequential
from tests import toys
from tests.compare import assert_close
from tests.conftest import ROOT


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples" / f"{name}.py"))


@pytest.mark.parametrize("method", methods.PAPER, ids=str)
def test_the_own_network_trains_as_plain_training(method: Method) -> None:
    """Train with one micro-batch at a time, in float64."""
    own = example("own_network")
    torch.manual_seed(0)
    stages = [stage.double() for stage in own["network"]()]
    p = Pipeline(copy.deepcopy(stages), method, optimizer=toys.sgd)
    model = sequential(stages)
    optimizer = toys.sgd(list(model.parameters()))
    for _ in range(2):
        (image, time), noise = own["batch"](2)
        inputs, target = (image.double(), time.double()), noise.double()
        loss = F.mse_loss(model(inputs), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert_close(p.step(inputs, target), loss.detach())
        p.drain()
    assert_close(dict(sequential(p.stages).state_dict()), dict(model.state_dict()))


def test_the_own_network_is_checked_and_learns(capsys: pytest.CaptureFixture[str]) -> None:
    losses = example("own_network")["main"]("PETRA", 40)
    assert "nothing found" in capsys.readouterr().out
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])


def test_cifar_without_the_data_is_learnt_and_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main, file = example("train_cifar")["main"], tmp_path / "state.pt"
    settings = ["--steps", "25", "--batch-size", "8", "-k", "1", "--width", "4", "--checkpoint", str(file)]
    main([*settings, "--epochs", "1"])
    accuracy = main([*settings, "--epochs", "3"])
    said = capsys.readouterr().out
    assert said.count("epoch 1:") == 1
    assert said.count("epoch 3:") == 1
    assert accuracy > 0.2  # chance is 0.1
