"""Test that the examples run, learn, and train as plain PyTorch does."""

import contextlib
import os
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from petra_core import methods
from petra_core.methods import Method
from petra_core.models import sequential
from tests.conftest import ROOT
from tests.processes import FORKED, PATIENCE, free_port
from tests.properties import assert_trains_as_plain_training


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples" / f"{name}.py"))


@pytest.mark.parametrize("method", methods.PAPER, ids=str)
def test_own_network_trains_as_plain_pytorch(method: Method) -> None:
    """Train with one micro-batch at a time, in float64."""
    own = example("own_network")
    torch.manual_seed(0)
    stages = [stage.double() for stage in own["network"]()]
    data = [((image.double(), time.double()), y.double()) for (image, time), y in (own["batch"](2) for _ in range(2))]
    assert_trains_as_plain_training(stages, method, 1, data)


def test_own_network_passes_check_and_learns(capsys: pytest.CaptureFixture[str]) -> None:
    """The check of own_network finds nothing, and its loss falls by more than 10 %."""
    losses = example("own_network")["main"]("PETRA", 40)
    assert "nothing found" in capsys.readouterr().out
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])


def test_train_cifar_learns_and_resumes_without_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without CIFAR-10, train_cifar resumes from its checkpoint and reaches twice the accuracy of chance."""
    main, file = example("train_cifar")["main"], tmp_path / "state.pt"
    settings = ["--steps", "25", "--batch-size", "8", "-k", "1", "--width", "4", "--checkpoint", str(file)]
    main([*settings, "--epochs", "1"])
    accuracy = main([*settings, "--epochs", "3"])
    output = capsys.readouterr().out
    assert output.count("epoch 1:") == 1
    assert output.count("epoch 3:") == 1
    assert accuracy > 0.2  # chance is 0.1


def ranked(rank: int, port: int, output: str, arguments: list[str]) -> None:
    """Run the example as torchrun does, and let it print to a file."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with Path(f"{output}-{rank}").open("w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
        assert example("two_processes")["main"](arguments) > 0.5  # chance is 0.25


def test_two_processes_train_export_and_stop_early(tmp_path: Path) -> None:
    """Both ranks stop early, and the exported model has the printed test accuracy."""
    file, output = tmp_path / "model.pt", str(tmp_path / "said")
    arguments, port = ["--epochs", "4", "--loss", "1.3", "--model", str(file)], free_port()
    processes = [FORKED.Process(target=ranked, args=(rank, port, output, arguments)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE)
    assert [process.exitcode for process in processes] == [0, 0]
    text = Path(f"{output}-0").read_text(encoding="utf-8")
    assert "epoch 1: partition (" in text
    assert "epoch 4:" not in text  # stopped early, on both
    own = example("two_processes")
    model = sequential(own["network"]())
    model.load_state_dict(torch.load(file, weights_only=True))
    x, y = own["samples"](256, 2)
    assert f"test accuracy {(model(x).argmax(1) == y).float().mean().item():.1%}" in text


def test_compare_methods_reports_divergence(capsys: pytest.CaptureFixture[str]) -> None:
    """compare_methods returns the accuracy of each method, or None if the run diverged."""
    main = example("compare_methods")["main"]
    found = main(["--methods", "BACKPROPAGATION", "petra", "-k", "1", "--epochs", "1", "--half"])
    assert found.keys() == {("BACKPROPAGATION", 1), ("PETRA", 1)}
    assert found["BACKPROPAGATION", 1] > 0.5  # chance is 0.1
    assert main(["--methods", "petra", "-k", "2", "--epochs", "1", "--learning-rate", "1e4"]) == {("PETRA", 2): None}
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 5
    assert rows[2].split()[:3] == ["PETRA", "1", "5"]
    assert "not finite in micro-batch" in rows[4]
