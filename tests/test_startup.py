"""Test that help, refusals and plans import nothing that draws or trains, since those imports are slow."""

import json
import subprocess
import sys

from tests.conftest import ROOT

#: Command lines, each with the exit code and a part of the output. None of them trains, draws or reads a data set.
COMMANDS = {
    "--help": (0, "train one network"),
    "train --help": (0, "forward gradients:"),
    "data prepare --help": (0, "--download"),
    "data list": (0, "sha-256"),
    "data check cifar11": (2, "did you mean"),
    "records list --records nowhere": (2, "there is no folder nowhere"),
    "run nosuch": (2, "'nosuch' is not one of 'smoke'"),
    "run smoke --exhibits tabel1": (2, "did you mean table1"),
    "run smoke --cuda-graphs 4": (2, "needs a cuda device"),
    "train --model revvit_tiny --image-size 10": (2, "image_size must be 8 to 256 in steps of 8"),
    "train --device gpu --processes 2": (2, "there is no device 'gpu'"),
    "partition --dataset cifar11": (2, "there is no data set 'cifar11'"),
    "run smoke --dry-run --records nowhere": (0, "the time of all of them is unknown"),
}
HEAVY = ("torch", "numpy", "scipy", "matplotlib", "pandas", "sklearn", "torchvision", "jinja2", "PIL")

#: Runs commands as `python -m reproduce` does, one after the other. Imported modules stay imported.
SCRIPT = """
import contextlib, io, json, runpy, sys
commands, heavy = json.load(sys.stdin)
for command in commands:
    sys.argv = ["reproduce", *command.split()]
    said, code = io.StringIO(), 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            runpy.run_module("reproduce", run_name="__main__")
        except SystemExit as end:
            code = end.code
    print(json.dumps([command, code, said.getvalue(), sorted(set(heavy) & set(sys.modules))]), flush=True)
"""


def test_light_commands_import_no_heavy_packages():
    """Commands that neither train nor draw do not import torch, matplotlib or other slow packages."""
    asked = json.dumps([list(COMMANDS), HEAVY])
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, input=asked, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [command for command, *_ in answers] == list(COMMANDS)
    for command, code, output, imported in answers:
        expected, words = COMMANDS[command]
        assert (command, code, imported) == (command, expected, [])
        assert words in output.lower(), command
