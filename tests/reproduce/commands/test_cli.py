"""Test the command line: complete help, errors with suggestions, and a run that a user can follow and stop."""

import dataclasses
import errno
import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from reproduce.cells.kinds import KINDS, ForwardGradientCell
from reproduce.cells.setting import flags_of, settings_of
from reproduce.commands import train
from reproduce.commands.cli import main
from reproduce.commands.options import UserPath
from reproduce.commands.train_options import TrainOptions
from reproduce.grids.selection import Selection
from reproduce.records.record import Record, State, Status
from reproduce.running import runner
from reproduce.running.grid_options import GridOptions
from reproduce.running.progress import EventFiles, GridBar, TrainingBar
from tests.example_cells import SMALL
from tests.processes import call, reproduce, wait_for

QUICK = [
    *("--image-size", "8", "--width", "2", "--batch-size", "128", "--epochs", "2"),
    *("--method", "petra", "-k", "2", "--learning-rate", "0.1"),
]


def test_train_help_lists_every_setting_in_its_group():
    """`train --help` lists an option for every setting of a cell, in groups of a fixed order."""
    text = call("train", "--help").output
    described = dict(settings_of(ForwardGradientCell))
    assert {field.name for field in dataclasses.fields(ForwardGradientCell)} == {*described, "scale"}
    for name, setting in described.items():
        group = text.partition(f"\n{setting.group}:\n")[2].partition("\n\n")[0]
        assert all(flag in group for flag in flags_of(name, setting)), name


@pytest.mark.parametrize("words", [["--k", "1,4"], ["--k=1,4"], ["-k", "1", "-k", "4"], ["--k", "1, 4,"]])
def test_list_option_accepts_commas_and_repetition(words):
    assert main.commands["run"].make_context("", [*words, "smoke"]).params["k"] == ("1", "4")


@pytest.mark.parametrize("kind", [*KINDS.values(), GridOptions, TrainOptions, Selection])
def test_settings_have_help_sentences(kind):
    for name, setting in settings_of(kind).items():
        assert re.fullmatch(r"(?s).+\.", setting.text), f"{kind.__name__} has no sentence on {name} in `Attributes:`"


OLD_SPELLINGS = [
    ("train", "--drops=1,2", "--lr-milestones=1,2"),
    ("train", "--drop-factor 0.5", "--lr-gamma 0.5"),
    ("train", "--forward-weights predicted", "--weight-prediction momentum"),
    ("train", "--forward-weights predicted_linear", "--weight-prediction linear"),
    ("train", "--forward-weights current", "--weight-prediction none"),
    ("train", "--patience 2", "--timeout-minutes 2"),
    ("train", "--restarts 0", "--max-restarts 0"),
    ("run smoke", "--tables table1,table3", "--exhibits table1,table3"),
    ("data prepare cifar10", "--unofficial reason", "--allow-unofficial reason"),
]


@pytest.mark.parametrize(("command", "old", "new"), OLD_SPELLINGS)
def test_old_spelling_works_and_prints_notice(command, old, new, capsys, monkeypatch):
    def values(options):
        words = [*command.split(), *options.split()]
        parsed = main
        while isinstance(parsed, click.Group):
            parsed = parsed.commands[words.pop(0)]
        return parsed.make_context("", words).params, capsys.readouterr().err

    (expected, silence), (actual, notice) = values(new), values(old)
    assert (actual, silence) == (expected, "")
    flags = [re.match(r"[\w-]+", options)[0] for options in (old, new)]
    values_of = {"--weight-prediction": " (none, momentum, linear)"}.get(flags[1], "")
    assert notice == f"NOTE: {flags[0]} is now {flags[1]}{values_of}; the old spelling works until the next release\n"
    monkeypatch.setenv("RANK", "1")
    assert values(old) == (expected, ""), "one of several processes prints the notice"


def test_old_spellings_are_all_tested():
    def old(command):
        yield from (option.old for option in command.params if getattr(option, "old", ""))
        for inner in getattr(command, "commands", {}).values():
            yield from old(inner)

    assert {*old(main)} == {re.match(r"[\w-]+", options)[0] for _, options, _ in OLD_SPELLINGS}


def test_device_option_sets_current_cuda_device(tmp_path, monkeypatch):
    """`train --device cuda:1 --cuda-graphs` once recorded on cuda:0, which had no work."""
    taken = []

    def set_device(device):
        taken.append(str(device))
        raise RuntimeError("far enough")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    for command in ("train", "partition"):
        assert str(call(command, "--device", "cuda:1").exception) == "far enough"
    assert taken == ["cuda:1"] * 2


def test_quantity_above_the_largest_float_is_refused():
    assert "expected a number and" in call("partition", "--memory-limit", f"{'9' * 400}GB", code=2).output


@pytest.mark.parametrize("command", ["train", "partition"])
def test_batch_norm_of_one_value_is_a_wrong_setting(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output = " ".join(call(command, "--batch-size", 1, "--width", 4, code=2).output.split())
    assert "BatchNorm cannot normalise a single value (Expected more than 1 value per channel" in output
    assert "use a larger --batch-size" in output
    assert command == "partition" or "in forward 0 of stage " in output


def test_refused_training_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "cifar10 is not prepared" in call("train", "--dataset", "cifar10").output
    assert not list(tmp_path.iterdir())


def test_run_passes_options_and_prints_the_conclusion(tmp_path, monkeypatch):
    """`run` passes cells and options to `run_grid` and prints its conclusion, of which outputs.txt has all forms."""
    given = []

    def run_grid(cells, options):
        given.append((cells, options))
        return runner.GridOutcome(dict.fromkeys(cells, State(Status.DONE, 4, 4, result={"test_accuracy": 80.0})))

    monkeypatch.setattr("reproduce.running.runner.run_grid", run_grid)
    conditions = ("--only", "kind=training", "--only", "method=petra", "--only", "model=revnet18", "--only", "seed=0")
    conditions += ("--only", "timing=lockstep")
    result = call("run", "smoke", "--records", tmp_path, "--jobs", 3, "--checkpoint-minutes", 2, *conditions)
    [(cells, options)] = given
    assert [cell.accumulation for cell in cells] == [1, 4, 32]
    assert (options.jobs, options.threads, options.checkpoint_minutes, options.retry_failed) == (3, 1, 2.0, False)
    assert f"3 cells of the scale smoke -> {tmp_path} (3 workers with 1 thread each)\n" in result.stderr
    assert "WARNING: 2 cells at k = 1 and 4 did not exceed 90 % test accuracy" in result.output
    assert "digits-revnet18-w8-petra-k4-s0: 80.00 %" in result.output
    assert result.exit_code == 0


def test_train_writes_record_and_refuses_other_cell(tmp_path):
    output, events = tmp_path / "out", tmp_path / "events"
    result = call("train", *QUICK, "--output", output, "--tensorboard", events, code=0)
    lines = result.stderr.splitlines()
    assert lines[0].startswith("digits-revnet18-w2-petra-k2-s0 -> ")
    assert lines[1].startswith("epoch 1/2  loss ")
    assert all(word in lines[2] for word in ("epoch 2/2", "accuracy", "images/s", "00:00 left"))
    record = Record.load(output)
    assert record.cell.scale == "custom"
    assert record.state().status is Status.DONE
    assert f"test accuracy {record.read().result['test_accuracy']:.2f} %" in result.stdout
    assert torch.load(output / "model.pt", weights_only=True)
    EventFiles(events / "of stages").epoch({"epoch": 1, "loss": 2.5, "measured": {"cosine": [0.1, 0.2]}, "best": None})
    accumulator = EventAccumulator(str(events / "of stages"))
    accumulator.Reload()
    assert accumulator.Tags()["scalars"] == ["loss"]
    accumulator = EventAccumulator(str(events))
    accumulator.Reload()
    accuracies = [event.value for event in accumulator.Scalars("test_accuracy")]
    assert accuracies == pytest.approx([line["test_accuracy"] for line in record.read().metrics])
    assert "finished already" not in result.output
    before = {file.name: file.read_bytes() for file in output.iterdir()}
    nothing = ("--trace", tmp_path / "trace.json", "--tensorboard", tmp_path / "more")
    result = call("train", *QUICK, "--output", output, *nothing, code=0)
    assert "finished already: nothing was run, so --trace and --tensorboard had no effect" in result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"out", "events"}
    assert "no longer exists" not in result.stderr
    (output / "model.pt").rename(tmp_path / "model.pt")
    assert "model.pt no longer exists; to get it, " in call("train", *QUICK, "--output", output).stderr
    (tmp_path / "model.pt").rename(output / "model.pt")
    result = call("train", *QUICK, "--seed", 5, "--output", output, code=1)
    assert "another cell: seed 0, not 5" in result.output
    assert {file.name: file.read_bytes() for file in output.iterdir()} == before
    result = call("train", *QUICK, "--learning-rate", "1e18", "--output", tmp_path / "diverged", code=1)
    assert "diverged" in result.output
    assert "micro-batch" in result.output
    assert (tmp_path / "diverged" / "result.json").exists()


def test_name_of_a_published_system_is_a_method_of_a_cell():
    named = dataclasses.replace(train.DEFAULTS, method="PIPEDREAM", scale="custom")
    assert (named.method, named.timing) == ("DELAYED_GRADIENTS", "1f1b")


@pytest.mark.slow
def test_sigint_saves_mid_epoch_and_exits_130(tmp_path, start):
    """SIGINT in the middle of an epoch saves a checkpoint and exits with 130."""
    arguments = ("train", *QUICK, "--epochs", "500", "--output", str(tmp_path))
    process = start(reproduce, *arguments)
    wait_for(lambda: (tmp_path / "metrics.jsonl").exists())
    process.send_signal(signal.SIGINT)
    output = process.stderr(130)
    assert "saved, and the same command resumes from there" in output
    assert "Traceback" not in output
    record = Record.load(tmp_path)
    assert record.state().status is Status.PARTIAL
    assert record.checkpoint.exists()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_training_bar_shows_progress_on_terminal():
    """On a terminal, the bar contains the epoch, loss, accuracy, images per second and remaining time."""
    stream = Terminal()
    bar = TrainingBar(SMALL, stream)
    bar.tick(1, 33, None)
    bar.epoch({"epoch": 1, "train_loss": 1.5, "test_accuracy": 50.0, "images_per_second": 1000.0})
    bar.epoch({"epoch": 1, "train_loss": None, "test_accuracy": 50.0, "images_per_second": 1000.0})
    bar._bar.mininterval = 0
    for done in range(2, 20):
        bar.tick(done, 33, torch.tensor(1.25))
    bar.close()
    text = stream.getvalue()
    assert "epoch 1/3  loss 1.5000  accuracy 50.00 %" in text
    assert "epoch 1/3  loss none yet" in text
    last = text.split("\r")[-1]
    assert "epoch 2/3, 50.00 %" in last
    assert "loss 1.2500" in last
    assert "images/s" in last
    assert "<" in last  # tqdm's elapsed<left


@pytest.mark.parametrize("terminal", [False, True])
def test_grid_bar_prints_results_of_this_run(terminal):
    """The progress of a grid prints one line per result of this run, and draws a bar only on a terminal."""
    stream = Terminal() if terminal else io.StringIO()
    bar = GridBar(4, stream)
    bar.finish("old", "95 %", worker=None)
    bar.show(0, "one", 0.5)
    bar.finish("one", "96 %", worker=0)
    bar.show(1, "two", 0.25)
    bar.finish("two", "diverged (epoch 1 of 3)", worker=1)
    bar.close()
    text = stream.getvalue()
    assert "[2/4] one: 96 %" in text
    assert "[3/4] two: diverged (epoch 1 of 3)" in text
    assert "old" not in text
    assert ("\r" in text) is terminal


def test_equal_learning_rates_have_one_identity():
    """The derived rate is that of the same number in decimal digits."""

    def identity(**changes):
        return train.cell_by_hand({"drops": (), **changes}).identity

    for size in ({"batch_size": batch_size, "accumulation": k} for batch_size in range(1, 100) for k in (1, 3)):
        rate = float(f"{0.1 * size['batch_size'] * size['accumulation'] / 256:.13g}")
        assert identity(**size) == identity(**size, learning_rate=rate)
    assert identity(batch_size=12, accumulation=1, learning_rate=0.00468) != identity(batch_size=12, accumulation=1)


def test_home_folder_is_expanded_in_paths(tmp_path, monkeypatch):
    """A folder called `~` invites `rm -r ~`."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert call("run", "smoke", "--dry-run", "--records=~/there").exit_code == 0
    assert not (tmp_path / "~").exists()
    nobody = call("data", "list", "--data-root=~no-user-of-this-name/there", code=2)
    assert "the home folder of a user that does not exist" in nobody.stderr


@pytest.mark.parametrize("command", ["records merge", "train --dataset digits --output"])
@pytest.mark.parametrize("inside", [False, True], ids=["a closed folder", "a folder within it"])
def test_unreadable_path_exits_2_and_is_named(tmp_path, monkeypatch, command, inside):
    """Some systems raise PermissionError when a closed folder is examined, which once was a traceback."""
    stat, access, closed = os.stat, os.access, tmp_path / "closed"
    closed.mkdir()

    def look(path, **options):
        if isinstance(path, str | Path) and closed in Path(path).parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", look)
    monkeypatch.setattr(os, "access", lambda path, mode, **options: path != closed and access(path, mode, **options))
    done = call(*command.split(), closed / "in" if inside else closed, code=2)
    assert re.search(r"no permission to read '.*closed.*': let this user read it", " ".join(done.output.split()))


def test_all_path_options_are_user_paths():
    """Then tests of one path hold for all of them."""

    def paths(command):
        for parameter in command.params:
            if isinstance(parameter.type, click.Path):
                yield command.name, parameter.name, type(parameter.type)
        for inner in getattr(command, "commands", {}).values():
            yield from paths(inner)

    found = list(paths(main))
    assert len(found) > 8
    assert {kind for *_, kind in found} == {UserPath}


def test_ctrl_c_ends_every_command_with_its_code(monkeypatch, tmp_path):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("reproduce.commands.records.scan", interrupted)
    assert call("records", "list", "--records", tmp_path).exit_code == 128 + signal.SIGINT


def test_too_long_path_is_refused():
    outcome = call("train", "--output", "x" * 300, code=2)
    assert "Error: --output: [Errno 36] File name too long: 'xxx" in outcome.output


@pytest.mark.parametrize("command", ["run smoke --records", "train --output"])
def test_link_to_a_missing_folder_is_refused(tmp_path, monkeypatch, command):
    """A link to a disk that is not mounted once gave a traceback for every cell."""
    monkeypatch.setattr(runner, "run_grid", lambda *_: pytest.fail("the folder is accepted"))
    (tmp_path / "disk").symlink_to("missing")
    done = call(*command.split(), tmp_path / "disk" / "in", code=2)
    assert "(No such file or directory); choose another folder" in " ".join(done.output.split())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the full device of Linux")
def test_output_to_full_disk_ends_with_message(tmp_path):
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "reproduce", "records", "list", "--records", str(tmp_path)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "Error: no room to complete this command (No space left on device); free some space and give the same command "
        "again\n",
    )


def test_help_works_in_ascii_locale(monkeypatch):
    """`run --help` succeeds when the output encoding is ASCII."""
    done = subprocess.run(
        [sys.executable, "-m", "reproduce", "run", "--help"],
        env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"--exhibits" in done.stdout
