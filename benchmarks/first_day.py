"""The first day on a GPU, in one command: is it right, how fast is it, what does it hold, and training for the rest.

Nothing is measured here. Every step is a command of this suite, in a process and with a time of its own, and most
valuable is first:

    correctness   the first step that fails ends the day, with what that means: no number after it could be trusted
    map           a tick of PETRA against the fastest rival, over batch, width and precision, from the middle outwards
    memory        PETRA's peak against the sum of its parts, and the peak of every method along the batch
    pareprop      PaReprop at published sizes
    training      in all the time that is left, on CIFAR-10 at the paper's width: RevNet-18 under PETRA and
                  backpropagation for 20 and 80 epochs, then cells of Table 2, of 300, in the table's order

The same command goes on after any stop, a kill too: steps that have ended stay, one that was cut off begins again, and
training goes on from its checkpoint. --minutes counts all calls together. Where a machine is lent for ten minutes at a
time, --call-minutes 9.5 ends a call in order: a step that would not fit in it waits for the next one, and cells are
trained until then.

In the folder --output are then records/ (cells and benchmarks), checks/ (records of the correctness steps), logs/ (what
every step said), summary.txt, and first-day.tar.gz with all of it, which `python -m reproduce records merge` takes. No
file in it is above 16 MB and all are below 60 MB together; what is left out for that, such as checkpoints of wide
networks, is named in the summary and stays in the folder.

Usage; the second line rehearses a small day on a CPU, in a minute or two:

    python -m benchmarks.first_day --minutes 28 --output DIR --source DIR-OF-CIFAR-10
    python -m benchmarks.first_day --device cpu --scale smoke --output DIR
"""

import argparse
import contextlib
import ctypes
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.arguments import count as count_of
from benchmarks.arguments import positive, whole_number
from benchmarks.recording import line
from petra_core.files import replacing
from reproduce.records import benchmarks, locks, provenance
from reproduce.records.benchmarks import Benchmark
from reproduce.records.record import scan
from reproduce.records.storage import write_atomically, write_json
from reproduce.running import devices
from reproduce.running.interrupts import Interrupt
from reproduce.words import count

ROOT = Path(__file__).resolve().parents[1]
ARCHIVE = "first-day.tar.gz"
FILE_LIMIT, ARCHIVE_LIMIT = 16_000_000, 60_000_000  # bytes, of files as they are: the archive is compressed
PACKED = ("records", "checks", "logs")
#: Of all minutes, what a section may take: none begins a step beyond it. Those that are not here take what they need.
SHARES = {"map": 0.25, "memory": 0.07, "pareprop": 0.15}
SECTIONS = ("correctness", *SHARES, "training")
GRACE = 30.0  # seconds in which a process that was told to stop saves and ends; then it is killed
WORTHWHILE = 60.0  # seconds: in less, training would hardly begin
POLL = 0.2
PR_SET_PDEATHSIG = 1  # of prctl(2)

# The map: the values of each axis from the most to the least interesting.
BATCHES, WIDTHS, PRECISIONS = (64, 16, 128, 32), (64, 16), ("tf32", "bf16", "float32")
PAREPROP = ("revvit_small", "revswin_tiny", "revmvit_base", "revvit_base", "revswin_small", "revswin_base")


class Command(NamedTuple):
    """A command line, of which `python` is this Python.

    Attributes:
        line: as one would type it.
        until: told to stop, as by Ctrl-C, as soon as this file is there.
        never: words that it must not say.

    """

    line: Sequence[str]
    until: Path | None = None
    never: str = ""


@dataclass(frozen=True)
class Step:
    """Commands that are one step of a section: it has passed if each ends with 0, or does not where it was stopped."""

    section: str
    name: str
    seconds: float  # at most
    commands: Sequence[Command]
    meaning: str = ""  # of a failure, if it ends the day

    @property
    def needed(self) -> bool:
        """Whether a failure ends the day."""
        return bool(self.meaning)


class StepResult(NamedTuple):
    """What came of a step: `said` is empty if it has passed, else what went wrong."""

    seconds: float
    said: str


# --- what is to be done


def python(*words: object) -> list[str]:
    """The command line of a module, with all words as text."""
    return ["python", "-m", *map(str, words)]


def plan(options: argparse.Namespace) -> list[Step]:
    """All steps of the chosen sections but the training itself, in order."""
    every = [*data(options), *correctness(options), *the_map(options), *memory(options), *pareprop(options)]
    return [step for step in every if step.section in options.only]


def data(options: argparse.Namespace) -> Iterator[Step]:
    """CIFAR-10 from its published files: at once, since it is told in seconds whether they are there."""
    if options.source is not None:
        where = ["--source", options.source, "--data-root", options.output / "data"]
        unofficial = ["--unofficial", options.unofficial] if options.unofficial else []
        line = python("reproduce", "data", "prepare", "cifar10", *where, *unofficial)
        meaning = "CIFAR-10 cannot be read, and no cell could be trained: see to --source, or leave it out."
        yield Step("training", "data", 120, [Command(line)], meaning)


def correctness(options: argparse.Namespace) -> Iterator[Step]:
    """Whether results can be trusted."""
    small, streams, on = options.scale == "smoke", options.cuda_graphs, ["--device", options.device]
    folder = options.output / "checks"
    if streams:
        tests = python("pytest", "-q", "-p", "no:cacheprovider", "tests/petra_core/devices/test_captured.py")
        yield Step(
            "correctness",
            "graphs",
            150,
            [Command([*tests, "-k", "cuda_graphs"])],
            "A recorded step does not compute what a plain one does, so nothing with CUDA graphs can be trusted "
            "(unless pytest is not installed: then nothing is known). --cuda-graphs 0 goes on without them.",
        )
    some = ["--methods", "petra"] if small else []
    cells = ["smoke", "--tables", "accuracy", "--models", "revnet18", "--k", 1, *some, "--jobs", 2, *on]
    yield Step(
        "correctness",
        "methods",
        240,
        # What it must not say is the warning of cells that are not as good as their scale expects.
        [Command(python("reproduce", "run", *cells, "--records", folder / "methods"), never="% test accuracy:")],
        "A method cannot be trained on this device with deterministic kernels, or learns too little there.",
    )
    wide = ["--width", 64, "--batch-size", 64, "--image-size", 32, "--epochs", 8]  # of 22 micro-batches
    narrow = ["--width", 2 if small else 8, "--epochs", 8]
    for name, way in (("resume", []), ("resume-graphs", ["--cuda-graphs", streams])):
        if name == "resume" or streams:
            train = python("reproduce", "train", *(narrow if small else wide), *way, *on, "--output")
            whole, pieces = (folder / name / part for part in ("whole", "pieces"))
            yield Step(
                "correctness",
                name,
                300,
                [
                    Command([*train, str(whole)]),
                    Command([*train, str(pieces)], until=pieces / "metrics.jsonl"),
                    Command([*train, str(pieces)]),
                    same_model(whole, pieces),
                ],
                "A training that was stopped and went on has not the weights of one that was not: a kernel is not "
                "deterministic, or something is not in the checkpoint. What is recorded could not be had again.",
            )
    if options.device != "cpu":
        moved = folder / "moved"
        train = python("reproduce", "train", *narrow, "--output", moved, "--device")
        yield Step(
            "correctness",
            "moved",
            120,
            [Command([*train, "cpu"], until=moved / "metrics.jsonl"), Command([*train, options.device])],
            "A training that began on the CPU cannot go on on this device.",
        )
    folders = {method: folder / "overlap" / method for method in ("pareprop", "reversible_backpropagation")}
    trained = [
        Command(python("reproduce", "train", "--method", method, *narrow, *on, "--output", run_folder))
        for method, run_folder in folders.items()
    ]
    yield Step(
        "correctness",
        "overlap",
        150,
        [*trained, same_model(*folders.values())],
        "PaReprop has not the weights of reversible backpropagation: what it does side by side does not wait where it "
        "must, and its speed would be worth nothing.",
    )


def same_model(one: Path, other: Path) -> Command:
    """A command that ends with 0 if two trained models are the same to the bit."""
    compare = "import filecmp, sys; sys.exit(0 if filecmp.cmp(*sys.argv[1:], shallow=False) else 'the models differ')"
    return Command(["python", "-c", compare, str(one / "model.pt"), str(other / "model.pt")])


def the_map(options: argparse.Namespace) -> Iterator[Step]:
    """A tick of PETRA against the fastest rival at every place, those near the middle first."""
    small = options.scale == "smoke"
    axes: tuple[Sequence[Any], ...] = ((2,), (2,), ("float32", "bf16")) if small else (BATCHES, WIDTHS, PRECISIONS)
    network = ["--network", "chain2", "--size", 8, "--pairs", 3] if small else ["--pairs", 30]
    captured = ["--captured", options.cuda_graphs] if options.cuda_graphs else []
    for place in sorted(itertools.product(*map(range, map(len, axes))), key=sum):
        batch, width, precision = (axis[index] for axis, index in zip(axes, place, strict=True))
        if precision == "tf32" and options.device == "cpu":
            continue
        where = ["--width", width, "--batch", batch, "--precision", precision]
        name = f"tick-w{width}-b{batch}-{precision}"
        yield _benchmark(options, "map", "tick", name, *network, *where, *captured)
        if place == (0, 0, 0) and captured:  # the fastest rival is compiled: what if PETRA is too?
            yield _benchmark(options, "map", "tick", f"{name}-compiled", *network, *where, *captured, "--compile")


def memory(options: argparse.Namespace) -> Iterator[Step]:
    """PETRA's peak against its parts, and the peaks of all methods along the batch."""
    wide = ["--width", 64, "--size", 32, "--batch", 64, "--batches", 64, 256, 1024]
    size = ["--quick"] if options.scale == "smoke" else wide
    yield _benchmark(options, "memory", "memory", "memory", "--parts", "aim", "batch", *size)


def pareprop(options: argparse.Namespace) -> Iterator[Step]:
    """PaReprop beside reversible and plain backpropagation, network by network."""
    small = options.scale == "smoke"
    published = ["--size", 224, "--batches", 16, 64, "--budget", 70_000]
    size = ["--size", 16, "--batches", 2, "--budget", 10, "--rounds", 2] if small else published
    for network in ("revvit_micro",) if small else PAREPROP:
        name = f"pareprop-{network.replace('_', '-')}"
        yield _benchmark(options, "pareprop", "pareprop", name, "--networks", network, *size)


def _benchmark(options: argparse.Namespace, section: str, script: str, name: str, *words: object) -> Step:
    """A step that leaves a record, under a name that says on what it was measured."""
    device = re.sub(r"[^a-z0-9]+", "-", options.device_name.lower()).strip("-")
    kept = ["--device", options.device, "--record", f"{name}-{device}", "--records", options.output / "records"]
    return Step(section, name, 180, [Command(python(f"benchmarks.{script}", *words, *kept))])


def training(options: argparse.Namespace) -> list[Command]:
    """Cells, short ones first; none where they are not wanted or have no data."""
    if "training" not in options.only or (options.scale == "day" and options.source is None):
        return []
    grids = [["smoke", "--tables", "accuracy", "--models", "revnet18", "--methods", "petra", "--k", 1]]
    if options.scale == "day":
        short = ["paper", "--tables", "length", "--only", "epochs=20,80"]
        table2 = ["paper", "--tables", "table2", "--datasets", "cifar10", "--models", "revnet18,resnet18"]
        on = ["--loader", "memory", "--precision", options.precision, "--data-root", options.output / "data"]
        grids = [[*short, *on], [*table2, *on]]
    how = ["--device", options.device, "--jobs", options.jobs, "--cuda-graphs", options.cuda_graphs]
    how += ["--records", options.output / "records"]
    return [Command(python("reproduce", "run", *cells, *how)) for cells in grids]


# --- doing it


class CallEnded(Exception):  # noqa: N818  # an order that was carried out, not an error
    """The call has to end."""


class Day:
    """A day that may have begun in an earlier call: its folder, its time, and what came of its steps.

    Raises:
        ValueError: the folder has another day, of another scale or device.

    """

    def __init__(self, options: argparse.Namespace, interrupt: Interrupt) -> None:
        self.output: Path = options.output
        self._interrupt = interrupt
        self._file = self.output / "state.json"
        self._of = {"scale": options.scale, "device": options.device}
        state = json.loads(self._file.read_text()) if self._file.exists() else {"of": self._of, "spent": 0, "steps": {}}
        if state["of"] != self._of:
            raise ValueError(f"{self.output} has a day of {state['of']}; choose another folder for one of {self._of}")
        self.outcomes = {name: StepResult(**outcome) for name, outcome in state["steps"].items()}
        self._before, self._started = float(state["spent"]), time.monotonic()
        self._total = 60 * options.minutes
        self._call_ends = self._started + 60 * options.call_minutes
        self._saved = 0.0

    @property
    def spent(self) -> float:
        """Seconds of all calls so far."""
        return self._before + time.monotonic() - self._started

    @property
    def left(self) -> float:
        """Seconds that are left of the day."""
        return self._total - self.spent

    @property
    def left_of_call(self) -> float:
        """Seconds that are left of the day and of this call."""
        return min(self.left, self._call_ends - time.monotonic())

    def passed(self, step: Step) -> bool:
        """Whether the step has ended well."""
        return step.name in self.outcomes and not self.outcomes[step.name].said

    def spent_on(self, steps: Sequence[Step]) -> float:
        """Seconds that those of the steps took which have ended."""
        return sum(self.outcomes[step.name].seconds for step in steps if step.name in self.outcomes)

    def do(self, step: Step) -> StepResult:
        """Do a step and note what came of it. Raises: CallEnded."""
        self.tell(f"{step.section}: {step.name} ...")
        shutil.rmtree(self.output / "checks" / step.name, ignore_errors=True)  # what an earlier try left proves nothing
        started = time.monotonic()
        said = next(filter(None, (self._run(c, step, started + step.seconds) for c in step.commands)), "")
        outcome = self.outcomes[step.name] = StepResult(round(time.monotonic() - started, 1), said)
        self.save()
        self.tell(f"{step.section}: {step.name} {f'FAILED: {said}' if said else 'passed'} ({outcome.seconds:.0f} s)")
        return outcome

    def train(self, command: Command) -> None:
        """Train for what is left of this call; what is saved goes on in the next one."""
        seconds = self.left_of_call - GRACE
        if seconds < min(WORTHWHILE, self._total / 20):
            return
        self.tell(f"training for at most {seconds / 60:.1f} minutes ...")
        step = Step("training", "training", seconds, [command])
        ends = time.monotonic() + seconds
        said = self._run(command, step, ends)
        if time.monotonic() >= ends:
            said = "stopped and saved"
        self.tell(f"training: {said or 'every cell has a result'}")

    def tell(self, text: str) -> None:
        """Print it with the time of the day."""
        print(f"[{self.spent // 60:3.0f}:{self.spent % 60:02.0f}] {text}", flush=True)

    def save(self) -> None:
        """Write down what a later call has to know."""
        steps = {name: outcome._asdict() for name, outcome in self.outcomes.items()}
        write_json(self._file, {"of": self._of, "spent": round(self.spent, 1), "steps": steps})
        self._saved = time.monotonic()

    def _run(self, command: Command, step: Step, ends: float) -> str:
        """Run a command. Returns: what went wrong, or nothing. Raises: CallEnded."""
        log = self.output / "logs" / f"{step.name}.log"
        with log.open("a", encoding="utf-8") as file:
            file.write(f"$ {shlex.join(command.line)}\n")
            file.flush()
            begins = file.seek(0, os.SEEK_END)
            process = subprocess.Popen(
                [sys.executable if word == "python" else word for word in command.line],
                cwd=ROOT,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                process_group=0,  # Ctrl-C reaches us alone, and we tell the whole group
                preexec_fn=_end_with_parent,
            )
            why = self._wait(process, command, ends)
        if why == "stopped":
            raise CallEnded
        text = log.read_bytes()[begins:].decode(errors="replace")
        if why == "late":
            return f"not done in {step.seconds:.0f} s; see {log}"
        if command.never and command.never in text:
            return next(line.strip() for line in text.splitlines() if command.never in line)
        if command.until is not None and not process.returncode:
            return f"it ended before it could be stopped; see {log}"
        if process.returncode and why != "until":
            last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
            return f"exit code {process.returncode}: {last}; see {log}"
        return ""

    def _wait(self, process: subprocess.Popen[bytes], command: Command, ends: float) -> str:
        """Wait for the end of a process, or for a reason to end it, which is returned."""
        why = ""
        while process.poll() is None and not why:
            time.sleep(POLL)
            if time.monotonic() - self._saved > 5:
                self.save()
            if self._interrupt.received:
                why = "stopped"
            elif time.monotonic() >= ends:
                why = "late"
            elif command.until is not None and command.until.exists():
                why = "until"
        for number in (signal.SIGINT, signal.SIGKILL):
            if why and process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE)
        return why


def _end_with_parent() -> None:
    """In a process that is about to begin: it is told to stop when we die, even if nobody has the time to tell it."""
    with contextlib.suppress(AttributeError, OSError):  # another system
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)


def go_on(day: Day, steps: Sequence[Step], options: argparse.Namespace) -> int:
    """Do what is left of the day, as far as this call goes. Returns the exit code. Raises: CallEnded."""
    for step in steps:
        if day.passed(step) or (not step.needed and step.name in day.outcomes):
            continue
        section = [other for other in steps if other.section == step.section]
        if day.spent_on(section) > SHARES.get(step.section, 1.0) * 60 * options.minutes:
            continue
        if step.seconds > day.left_of_call:
            if step.seconds <= min(day.left, 60 * options.call_minutes):
                day.tell(f"{step.section}: {step.name} waits for the next call")
                break
            if step.needed:
                day.tell(f"{step.section}: {step.name} takes up to {step.seconds:.0f} s: give it more time")
                return 1
            continue
        outcome = day.do(step)
        pack(day, summary(day, steps, options))
        if outcome.said and step.needed:
            day.tell(f"The day ends here. {step.meaning}")
            return 1
    if all(day.passed(step) for step in steps if step.needed):
        for command in training(options):
            day.train(command)
    return 0


# --- what came of it


def summary(day: Day, steps: Sequence[Step], options: argparse.Namespace) -> str:
    """All that came of the day so far, for people."""
    code, _ = provenance.code()
    time_used = f"{day.spent / 60:.1f} of {options.minutes:g} minutes"
    lines = [f"First day on {options.device_name}: {time_used}, commit {code['commit']}", ""]
    for step in steps:
        outcome = day.outcomes.get(step.name)
        said = "not done" if outcome is None else f"FAILED: {outcome.said}" if outcome.said else "passed"
        lines.append(f"{step.section}: {step.name}: {said}{f' ({outcome.seconds:.0f} s)' if outcome else ''}")
        lines += [f"    {step.meaning}"] if outcome and outcome.said and step.meaning else []
    records, problems = benchmarks.read_all(day.output / "records")
    ticks = [benchmark for benchmark in records if benchmark.name.startswith("tick-")]
    lines += ["", *map_lines(ticks)] if ticks else []
    for benchmark in records:
        if benchmark not in ticks:
            lines += ["", benchmark.name, *(line(benchmark, sought) for sought in benchmark.comparisons)]
    cells = scan(day.output / "records")
    lines += [""] * bool(cells.records)
    lines += [f"{run.cell.name}: {run.state.reached}" for run in cells.records]
    lines += [f"PROBLEM {problem}" for problem in (*problems, *cells.problems)]
    return "\n".join(lines) + "\n"


def map_lines(ticks: Sequence[Benchmark]) -> list[str]:
    """The map, a line a place: time of a tick of PETRA over one of the fastest rival."""
    lines = ["A tick of PETRA over a step of the fastest rival (below 1: PETRA is faster); median, quartiles:"]
    above = 0
    for benchmark in ticks:
        setting = benchmark.setting
        rivals = str(setting["against"]).split(", ")
        against = [comparison for comparison in benchmark.comparisons if comparison.second in rivals]
        fastest = max(against, key=lambda comparison: benchmark.spread(comparison).median)
        ratio = benchmark.spread(fastest)
        above += ratio.median > 1
        place = f"width {setting['width']}, batch {setting['batch']}, {setting['precision']}"
        place += ", compiled" * bool(setting["compile"])
        said = f"  {place}: {ratio.median:.3f} ({ratio.lower:.3f} to {ratio.upper:.3f}), against {fastest.second}"
        lines.append(said)
    return [*lines, f"  PETRA is slower in {above} of {count(len(ticks), 'place')}."]


def pack(day: Day, said: str) -> list[str]:
    """Write summary and archive anew. Returns the files that are too large for it, in words."""
    there = [file for name in PACKED for file in sorted((day.output / name).rglob("*")) if file.is_file()]
    files = [file for file in there if file.name not in locks.FILES and file.suffix != ".tmp"]
    files += [day.output / "state.json"]
    sizes = {file: file.stat().st_size for file in sorted(files, key=lambda file: file.stat().st_size)}
    fitting = dict(zip(sizes, itertools.accumulate(sizes.values()), strict=True))
    packed = [file for file, total in fitting.items() if sizes[file] <= FILE_LIMIT and total <= ARCHIVE_LIMIT]
    left = [f"{file.relative_to(day.output)}, {sizes[file] / 1e6:.1f} MB" for file in sizes if file not in packed]
    said += "".join(f"\nNot in the archive, too large: {words}" for words in left) + "\n" * bool(left)
    write_atomically(day.output / "summary.txt", said.encode())
    with replacing(day.output / ARCHIVE) as to, tarfile.open(fileobj=to, mode="w:gz") as archive:
        for file in (*packed, day.output / "summary.txt"):
            archive.add(file, str(file.relative_to(day.output)))
    return left


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line. Returns: the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=positive, default=28.0, help="of all calls together (default 28)")
    parser.add_argument("--call-minutes", type=positive, help="of this call (default: all that are left)")
    parser.add_argument("--output", type=Path, required=True, help="folder of the day, from one call to the next")
    parser.add_argument("--source", type=Path, help="folder with cifar-10-batches-bin; without it no cell is trained")
    parser.add_argument("--unofficial", metavar="REASON", help="take a CIFAR-10 that is not the official one")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="sections (default all)")
    parser.add_argument("--scale", choices=("day", "smoke"), default="day", help="smoke: all of it, in tiny sizes")
    parser.add_argument(
        "--precision", choices=("float32", "tf32", "bf16"), default="tf32", help="of the cells that are trained"
    )
    parser.add_argument(
        "--cuda-graphs", type=whole_number, help="streams of recorded ticks, 0: none (default 4, on a CPU 0)"
    )
    parser.add_argument("--jobs", type=count_of, default=1, help="cells that are trained at once (default 1)")
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done")
    parser.add_argument("--device", default="cuda", help="to measure and train on (default cuda)")
    options = parser.parse_args(arguments)
    on_cpu = options.device == "cpu"
    if on_cpu and options.scale == "day":
        parser.error("--scale day is for a GPU, and --device is cpu: add --scale smoke")
    if on_cpu and options.cuda_graphs:
        parser.error(f"--cuda-graphs {options.cuda_graphs} is for a GPU, and --device is cpu: leave it out")
    if options.cuda_graphs is None:
        options.cuda_graphs = 0 if on_cpu else 4
    if not options.dry_run:
        try:
            devices.check_there(options.device)
        except ValueError as error:
            parser.error(str(error))
    options.device_name = options.device if options.dry_run else provenance.device_name(options.device)
    options.output = options.output.resolve()
    options.source = options.source and options.source.resolve()
    options.call_minutes = options.call_minutes or options.minutes
    steps, trained = plan(options), training(options)
    if options.dry_run:
        for step in steps:
            print(f"{step.section}: {step.name} (at most {step.seconds:.0f} s)")
            print("".join(f"    {shlex.join(command.line)}\n" for command in step.commands), end="")
        print("training:" if trained else "no cell is trained")
        print("".join(f"    {shlex.join(command.line)}\n" for command in trained), end="")
        return 0
    (options.output / "logs").mkdir(parents=True, exist_ok=True)
    with Interrupt() as interrupt:
        try:
            day = Day(options, interrupt)
        except ValueError as error:
            parser.error(str(error))
        try:
            code = go_on(day, steps, options)
        except CallEnded:
            code = interrupt.exit_code
        day.save()
        said = summary(day, steps, options)
        left = pack(day, said)
    print(f"\n{said}")
    for words in left:
        print(f"Not in the archive, too large: {words}")
    print(f"-> {options.output / ARCHIVE}; {max(0.0, day.left) / 60:.1f} minutes are left for the same command")
    return code


if __name__ == "__main__":
    sys.exit(main())
