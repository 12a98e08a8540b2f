"""What is drawn as executed was executed, and is what the generator predicts."""

from pathlib import Path

import pytest

from petra_core import methods
from petra_core.drawing.__main__ import main
from petra_core.drawing.execution import executed
from petra_core.schedule import generate


def test_what_ran_is_what_was_planned() -> None:
    for method in (methods.PETRA, methods.PAREPROP):
        assert executed(method, 4, 7, 2) == generate(method, 4, 7, 2)
    for stages, micro_batches in ((1, 7), (4, 0)):
        with pytest.raises(ValueError, match="at least 2 stages and 1 micro-batch"):
            executed(methods.PETRA, stages, micro_batches)


def test_command_draws_what_it_is_asked_for_and_refuses_what_cannot_be_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "schedule.svg"
    for wrong in (["--method", "petr"], ["--stages", "1"], ["--highlight", "9"], ["-k", "0"]):
        with pytest.raises(SystemExit):
            main([str(file), *wrong])
        assert "error: " in capsys.readouterr().err
        assert not file.exists()
    with pytest.raises(SystemExit):
        main([str(tmp_path / "missing" / "schedule.svg")])
    assert f"{tmp_path / 'missing' / 'schedule.svg'} cannot be written: No such file" in capsys.readouterr().err
    for micro_batches in (7, 1):  # the second, whose way is traced, or the only one
        some = ["--micro-batches", str(micro_batches)]
        main([str(file), "--method", "dsp", "--stages", "3", "-k", "2", *some])
        assert "J = 3, k = 2" in file.read_text("utf-8")
