"""Use a quarter of an hour on a GPU with one command: check correctness, measure speed, and train cells of Table 2.

The script is made for a GPU that is available for 900 seconds, in commands of at most 600. Every step is a command of
this suite in a process with a time budget. The most valuable steps come first:

    data          prepare CIFAR-10 from its published files, if `--source` names them
    correctness   check that recorded steps equal plain ones; if not, cells are trained with plain steps
    tick          time a compiled tick against the fastest autograd step; if it fails, cells do not use `--compile`
    training      train cells of Table 2 in the order of `ORDER`, each if it fits into the remaining time
    leftovers     measure the kernels of a tick, numbers of streams, cuDNN's heuristics, captured backpropagation, MPS

Whether a cell fits is projected from recorded epochs of comparable cells (`reproduce.records.speed`), including the
committed ones. A cell without any is started, and stopped if its first epochs show that it cannot finish in time.
Training runs in a separate session: it continues after this command ends, and the next call waits for it.

Repeat the same command with the same `--output` until nothing is left to do. A finished step is not repeated, even
after a kill. `--seconds` counts from the first call, because an idle machine costs time as well.

The results are written to `--bring` (default `--output`): quarter-hour.tar.gz, which `python -m reproduce records
merge` accepts, and the compiler's cache in parts, which the first call of the next quarter hour accepts with
`--inductor`.

Usage; the last line is a rehearsal on a CPU:

    python -m benchmarks.quarter_hour --output DIR --bring $OUT --call-seconds 200
    python -m benchmarks.quarter_hour --output DIR --bring $OUT --source DIR-OF-CIFAR-10
    python -m benchmarks.quarter_hour --device cpu --scale smoke --output DIR
"""

import argparse
import contextlib
import ctypes
import functools
import itertools
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.arguments import path, positive
from petra_core.files import replacing
from reproduce.cells.kinds import Cell
from reproduce.distributed.interrupts import Interrupt
from reproduce.grids.grid import grid_of
from reproduce.grids.selection import Selection
from reproduce.records import locks, provenance, speed
from reproduce.records.record import DEFAULT_ROOT, Record, Run, scan
from reproduce.records.storage import write_atomically, write_json
from reproduce.running import devices

ROOT = Path(__file__).resolve().parents[1]
ARCHIVE, CACHE = "quarter-hour.tar.gz", "inductor.tar.gz"
PART = 15_000_000  # bytes per part of the compiler's cache
STREAMS = 19  # one for each branch of RevNet-18's 10 stages
ENDING = 15.0  # seconds reserved for the archive, and for a stopped process to save
STARTING = 60.0  # seconds from the start of a cell to its second epoch, with a cold compiler
WATCHED = 3  # epochs from which the end of a cell is projected
POLL = 0.2
MPS = "nvidia-cuda-mps-control"
PR_SET_PDEATHSIG = 1  # of prctl(2)

LOCKSTEP, ONE_F_ONE_B = "method=petra accumulation=1", "method=petra accumulation=1 timing=1f1b"
BASELINE = "method=backpropagation batch_size=128"  # the paper's

#: Cells to train, the most valuable first. By scale: the table, the settings that all cells share, and each cell's own
#: settings. A timing replaces that of the cell in the table.
ORDER: Mapping[str, tuple[str, str, Sequence[str]]] = {
    "paper": (
        "table2",
        "dataset=cifar10 model=revnet18",
        [f"{cell} seed={seed}" for seed in (0, 1) for cell in (LOCKSTEP, BASELINE, ONE_F_ONE_B)],
    ),
    "smoke": ("accuracy", "model=revnet18", [f"{LOCKSTEP} seed=0", f"{ONE_F_ONE_B} seed=0"]),
}


#: Time limit of a step in seconds, unless it is `USUAL`; in the rehearsal, on a possibly slow machine, `REHEARSED`.
BUDGETS, USUAL, REHEARSED = {"correctness": 40, "tick": 120}, 60, 300


class Step(NamedTuple):
    """Command lines that run concurrently. The word `python` means this interpreter. All must exit with code 0."""

    name: str
    seconds: float  # at most
    lines: Sequence[Sequence[str]]
    environment: Mapping[str, str] = {}


class Candidate(NamedTuple):
    """A cell that can be trained, and its command line."""

    cell: Cell
    line: Sequence[str]


# --- the plan


def python(*words: object) -> list[str]:
    """Return the command line of a module."""
    return ["python", "-m", *map(str, words)]


def first_steps(options: argparse.Namespace) -> Iterator[Step]:
    """Yield the steps before the training."""
    small = options.scale == "smoke"
    if options.source is not None:
        where = ["--source", options.source, "--data-root", options.output / "data"]
        where += ["--allow-unofficial", options.unofficial] if options.unofficial else []
        yield _step(options, "data", python("reproduce", "data", "prepare", "cifar10", *where))
    tests = python("pytest", "-q", "-p", "no:cacheprovider", "tests/petra_core/devices/test_captured.py", "-k")
    yield _step(options, "correctness", [*tests, "empty_graph" if small else "cuda_graphs"])
    much = ["--pairs", 2] if small else ["--captured", STREAMS, "--compile", "--pairs", 25]
    yield _step(options, "tick", _benchmark(options, "tick", "tick", *much))


def leftovers(options: argparse.Namespace) -> Iterator[Step]:
    """Yield the steps of 15 to 40 s that run when no further cell fits."""
    cpu, much = options.device == "cpu", ["--steps", 2, "--rounds", 2] if options.scale == "smoke" else []
    backward = ("--methods", "BACKPROPAGATION", "--captured", 1)[: 2 if cpu else 4]

    def throughput(name: str, *words: object, copy: str = "") -> list[str]:
        return _benchmark(options, name + copy, "throughput", *much, *words)

    streams = [[], []] if cpu else [["--captured", STREAMS], ["--captured", 4, 10, STREAMS]]
    yield _step(options, "kernels", throughput("kernels", *streams[0], "--kernels", *["--compile"] * (not cpu)))
    yield _step(options, "streams", throughput("streams", *streams[1]))
    if not cpu:
        words = [*streams[0], "--compile", "steps"]
        yield _step(options, "compiled-steps", throughput("compiled-steps", *words))
    heuristics = {provenance.BETTER_HEURISTICS: "1"}
    yield _step(options, "heuristics", throughput("heuristics", *streams[0]))._replace(environment=heuristics)
    for name, batch in (("backpropagation", 64), ("backpropagation-b128", 128))[: 1 if cpu else 2]:
        yield _step(options, name, throughput(name, *backward, *["--batch", batch] * (not cpu)))
    if shutil.which(MPS):
        yield _step(options, "mps", *(throughput("mps", *backward, copy=copy) for copy in ("-1", "-2")))


def _step(options: argparse.Namespace, name: str, *lines: Sequence[str]) -> Step:
    return Step(name, REHEARSED if options.scale == "smoke" else BUDGETS.get(name, USUAL), lines)


def _benchmark(options: argparse.Namespace, name: str, script: str, *words: object) -> list[str]:
    """Return a command line that writes a record whose name contains the device."""
    device = "-".join("".join(c if c.isalnum() else " " for c in options.device_name.lower()).split())
    tiny = ["--network", "chain2", "--width", 2, "--batch", 2, "--size", 8]
    size = tiny if options.scale == "smoke" else ["--precision", options.precision]
    precision = "float32" if options.scale == "smoke" else options.precision
    kept = ["--records", options.output / "records", "--record", f"{name}-{precision}-{device}"]
    return python(f"benchmarks.{script}", *size, *words, "--device", options.device, *kept)


def candidates(options: argparse.Namespace, how: Sequence[str]) -> Iterator[Candidate]:
    """Yield the cells in order. `how` lists the training options of the command line."""
    table, shared, order = ORDER[options.scale]
    shared_variant = {"loader": "memory", "precision": options.precision} if options.scale == "paper" else {}
    where = [f"--device={options.device}", "--records", options.output / "records"]
    where += ["--data-root", options.output / "data"]
    for own in order:
        settings = [*shared.split(), *own.split()]
        fixed = [setting for setting in settings if not setting.startswith("timing=")]
        variant = shared_variant | dict(setting.split("=") for setting in settings if setting not in fixed)
        [base] = Selection(exhibits=(table,), only=tuple(fixed)).select(grid_of(options.scale))
        [cell] = Selection(**variant).variants([base])
        which = itertools.chain(*(("--only", words) for words in fixed), *((f"--{n}", v) for n, v in variant.items()))
        yield Candidate(cell, python("reproduce", "run", options.scale, "--exhibits", table, *which, *where, *how))


# --- execution


class CallEnded(Exception):  # noqa: N818  # reports a request that was carried out, not an error
    """End this call; the training continues."""


class QuarterHour:
    """Run steps and keep their outcomes and the remaining time in a file from one call to the next."""

    def __init__(self, options: argparse.Namespace, interrupt: Interrupt) -> None:
        self.output: Path = options.output
        self._options, self._interrupt, self._file = options, interrupt, options.output / "state.json"
        state = json.loads(self._file.read_text(encoding="utf-8")) if self._file.exists() else {}
        self._begun: float = state.get("begun", time.time())
        self.outcomes: dict[str, str] = state.get("outcomes", {})  # problem of each step, or empty
        self.refused: dict[str, str] = state.get("refused", {})  # reason for each cell that is not trained
        self._training: dict[str, Any] | None = state.get("training")  # process: pid, start time, cell name
        self._call_ends = time.time() + options.call_seconds - ENDING
        cache = str(self.output / "inductor")
        self._environment = os.environ | {"PYTHONUNBUFFERED": "1", "TORCHINDUCTOR_CACHE_DIR": cache}
        self.save()

    @property
    def left(self) -> float:
        """Seconds that are left in all calls together."""
        return self._begun + self._options.seconds - ENDING - time.time()

    @property
    def left_of_call(self) -> float:
        """Seconds that are left in this call."""
        return min(self.left, self._call_ends - time.time())

    @functools.cached_property
    def _committed(self) -> Sequence[Run[Cell]]:
        return scan(ROOT / DEFAULT_ROOT).records  # takes seconds

    def save(self) -> None:
        """Write the state that a later call needs."""
        state = {"begun": self._begun, "outcomes": self.outcomes, "refused": self.refused, "training": self._training}
        write_json(self._file, state)

    def tell(self, text: str) -> None:
        """Print a message with the time since the first call."""
        spent = round(time.time() - self._begun)
        print(f"[{spent // 60:2d}:{spent % 60:02d}] {text}", flush=True)

    def do(self, step: Step) -> None:
        """Run a step that has not finished before.

        Raises:
            CallEnded: The step does not fit into this call, but into a later one.

        """
        if step.name in self.outcomes:
            return
        if step.seconds > self.left:
            self.tell(f"{step.name}: skipped, because it takes up to {step.seconds:.0f} s")
            return
        if step.seconds > self.left_of_call:
            self.tell(f"{step.name}: postponed to the next call, because it takes up to {step.seconds:.0f} s")
            raise CallEnded
        started = time.time()
        with _shared_gpu(self.output) if len(step.lines) > 1 else contextlib.nullcontext({}) as shared:
            environment = {**step.environment, **shared}
            processes = [self._start(step.name, line, environment) for line in step.lines]
            late = not self._wait(processes, started + step.seconds)
        codes = [process.returncode for process in processes]
        outcome = (
            f"not finished within {step.seconds:.0f} s"
            if late
            else f"exit code {max(codes, key=abs)}"
            if any(codes)
            else ""
        )
        self.outcomes[step.name] = outcome
        self.save()
        words = f"FAILED: {outcome}; see logs/{step.name}.log" if outcome else "passed"
        self.tell(f"{step.name}: {words} ({time.time() - started:.0f} s)")

    def train(self, cells: Sequence[Candidate], where: speed.Device) -> None:
        """Train cells as long as one fits.

        Raises:
            CallEnded: A cell is still training when the call ends.

        """
        while True:
            if self._training is None:
                chosen = self._choose(cells, where)
                if chosen is None:
                    return
                process = self._start("training", chosen.line, {}, detached=True)
                process.returncode = 0  # `_since` says when it ends; Popen would warn of a process that outlives it
                self._training = {"pid": process.pid, "since": _since(process.pid), "cell": chosen.cell.name}
                self.save()
                self.tell(f"training: {chosen.cell.name}")
            name = self._training["cell"]
            reason = self._watch(next(c for c in cells if c.cell.name == name).cell)
            if reason:
                self.refused[name] = reason
            self.tell(f"training: {name}: {reason or 'done'}")
            self._training = None
            self.save()

    def _choose(self, cells: Sequence[Candidate], where: speed.Device) -> Candidate | None:
        """Return the first cell without a result that fits into the remaining time, as far as its speed is known."""
        roots = self.output / "records", ROOT / DEFAULT_ROOT
        speeds = speed.collect_times([*scan(roots[0]).records, *self._committed])
        for candidate in cells:
            cell = candidate.cell
            states = [Record.for_cell(cell, root).state() for root in roots]
            if cell.name in self.refused or any(state.final for state in states):
                continue
            seconds = speeds.left(cell, states[0], where)
            if STARTING + (seconds or 0.0) <= self.left:
                return candidate
            self.tell(f"training: {cell.name} needs {STARTING + (seconds or 0.0):.0f} s, {self.left:.0f} s are left")
        return None

    def _watch(self, cell: Cell) -> str:
        """Wait for the end of a cell and return why it has no result, or an empty string.

        Raises:
            CallEnded: The call ends first.

        """
        assert self._training is not None
        record, process = Record.for_cell(cell, self.output / "records"), self._training
        looked = 0.0
        while _since(process["pid"]) == process["since"]:
            if self._interrupt.received or self.left > 0 >= self.left_of_call:
                self.tell(f"training: {cell.name} continues as process {process['pid']}; call again to wait for it")
                raise CallEnded
            reason = "the time is used up" if self.left <= 0 else ""
            if not reason and time.time() - looked > 5:
                looked = time.time()
                reason = self._too_long(record)
            if reason:
                _stop(process["pid"])
                return reason
            time.sleep(POLL)
        return "" if record.state().final else "it ended without a result; see logs/training.log"

    def _too_long(self, record: Record) -> str:
        """Return why a training cell cannot finish in time, if its first epochs show that."""
        if not record.path.exists() or len(lines := record.read().metrics) < WATCHED:
            return ""
        epochs = record.cell.to_dict()["epochs"] - len(lines)
        seconds = epochs * statistics.median(line["train_seconds"] + line["evaluation_seconds"] for line in lines)
        return f"it needs {seconds:.0f} s more, {self.left:.0f} s are left" if seconds > self.left else ""

    def _start(
        self, name: str, line: Sequence[str], environment: Mapping[str, str], *, detached: bool = False
    ) -> subprocess.Popen[bytes]:
        """Start a command in a new process group. A detached command outlives this one."""
        with (self.output / "logs" / f"{name}.log").open("ab") as log:
            log.write(f"$ {shlex.join(line)}\n".encode())
            log.flush()
            return subprocess.Popen(
                [sys.executable if word == "python" else word for word in line],
                cwd=ROOT,
                env=self._environment | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=None if detached else _end_with_parent,
            )

    def _wait(self, processes: Sequence[subprocess.Popen[bytes]], ends: float) -> bool:
        """Wait for processes and stop them at the deadline. Return whether they finished.

        Raises:
            CallEnded: The call was interrupted.

        """
        while any(process.poll() is None for process in processes):
            if self._interrupt.received or time.time() > ends:
                for process in processes:
                    _stop(process.pid)
                    process.wait()
                if self._interrupt.received:
                    raise CallEnded
                return False
            time.sleep(POLL)
        return True


def _since(pid: int) -> str:
    """Return the kernel's start time of a process, or an empty string if it has ended. It detects a reused pid."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return fields[19] if fields[0] != "Z" else ""
    return ""


def _stop(pid: int) -> None:
    """Interrupt a process group as Ctrl-C does, and kill it if it does not end within the reserved time."""
    since, ends = _since(pid), time.time() + ENDING
    for number in (signal.SIGINT, signal.SIGKILL):
        if since and _since(pid) == since:
            os.killpg(pid, number)
        while since and _since(pid) == since and time.time() < ends:
            time.sleep(POLL)


def _end_with_parent() -> None:
    """Have the kernel interrupt this new process when its parent dies."""
    with contextlib.suppress(AttributeError, OSError):  # not Linux
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)


@contextlib.contextmanager
def _shared_gpu(output: Path) -> Iterator[dict[str, str]]:
    """Start CUDA MPS, so that several processes can share the GPU, and yield its environment variables."""
    variables = {f"CUDA_MPS_{name}_DIRECTORY": str(output / "mps") for name in ("PIPE", "LOG")}
    (output / "mps").mkdir(exist_ok=True)
    subprocess.run([MPS, "-d"], env=os.environ | variables, check=True)
    try:
        yield variables
    finally:
        subprocess.run([MPS], env=os.environ | variables, input=b"quit\n", check=True)


# --- results


def summary(hour: QuarterHour, options: argparse.Namespace) -> str:
    """Return a readable summary of the results."""
    code, _ = provenance.code()
    lines = [f"{options.device_name}, commit {code['commit']}, {max(0.0, hour.left):.0f} s are left"]
    lines += [f"{name}: {outcome or 'passed'}" for name, outcome in hour.outcomes.items()]
    lines += [f"{name}: {reason}" for name, reason in hour.refused.items()]
    cells = scan(hour.output / "records")
    lines += [f"{run.cell.name}: {run.state.reached}" for run in cells.records]
    return "\n".join([*lines, *map(str, cells.problems)]) + "\n"


def pack(hour: QuarterHour, options: argparse.Namespace) -> None:
    """Write the archive of the results, and the compiler's cache in parts."""
    write_atomically(hour.output / "summary.txt", summary(hour, options).encode())
    there = (file for name in ("records", "logs") for file in sorted((hour.output / name).rglob("*")))
    files = [file for file in there if file.is_file() and file.name not in locks.FILES and file.suffix != ".tmp"]
    files = [file for file in files if "checkpoint" not in (file.stem, file.parent.name)]  # a gigabyte
    with replacing(options.bring / ARCHIVE) as to, tarfile.open(fileobj=to, mode="w:gz") as archive:
        for file in (*files, hour.output / "state.json", hour.output / "summary.txt"):
            archive.add(file, str(file.relative_to(hour.output)), filter=_nameless)
    if (hour.output / "inductor").is_dir():
        whole = hour.output / CACHE
        with tarfile.open(whole, mode="w:gz", compresslevel=1) as archive:
            archive.add(hour.output / "inductor", "inductor", filter=_nameless)
        with whole.open("rb") as file:
            for number, part in enumerate(iter(lambda: file.read(PART), b"")):
                (options.bring / f"{CACHE}.{number:02d}").write_bytes(part)
        whole.unlink()


def _nameless(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return a member of an archive without the user and the group that own the file."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def unpack_cache(parts: Sequence[Path], output: Path) -> None:
    """Extract the compiler's cache of an earlier quarter hour, as `pack` wrote it, into the folder."""
    whole = output / CACHE
    whole.write_bytes(b"".join(part.read_bytes() for part in sorted(parts)))
    with tarfile.open(whole) as archive:
        archive.extractall(output, filter="data")
    whole.unlink()


def how_trained(device: str, name: str, outcomes: Mapping[str, str]) -> tuple[list[str], speed.Device]:
    """Return the options of `reproduce run` whose step has passed, and the device description of comparable times."""
    graphs, compiled = (device != "cpu" and outcomes.get(step) == "" for step in ("correctness", "tick"))
    words = ["--cuda-graphs", str(STREAMS)] * graphs + ["--compile"] * compiled
    return words, speed.Device(name, provenance.processor(), 1, cuda_graphs=STREAMS * graphs, compiled=compiled)


def go_on(hour: QuarterHour, options: argparse.Namespace) -> None:
    """Run the remaining steps and the training.

    Raises:
        CallEnded: Something is postponed to the next call.

    """
    for step in first_steps(options):
        hour.do(step)
    if options.scale == "paper" and options.source is None:
        hour.tell("training: no data; call again with --source")
        return
    words, where = how_trained(options.device, options.device_name, hour.outcomes)
    hour.train([*candidates(options, words)], where)
    for step in leftovers(options):
        hour.do(step)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line. Return the exit code: 0 if everything that finished has passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=positive, default=870, help="total seconds from the first call (default 870)")
    parser.add_argument("--call-seconds", type=positive, default=590, help="seconds of this call (default 590)")
    parser.add_argument("--output", type=path, required=True, help="folder that keeps the state between calls")
    parser.add_argument("--bring", type=path, help="folder of the archive (default --output)")
    parser.add_argument("--source", type=path, help="folder with cifar-10-batches-bin; without it no cell is trained")
    parser.add_argument("--unofficial", metavar="REASON", help="accept a CIFAR-10 that is not the official one")
    parser.add_argument(
        "--inductor", type=path, nargs="+", default=[], help="parts of a compiler's cache to start with"
    )
    parser.add_argument(
        "--precision", choices=("float32", "tf32", "bf16"), default="bf16", help="precision (default bf16)"
    )
    parser.add_argument("--scale", choices=tuple(ORDER), default="paper", help="smoke: all steps in tiny sizes")
    parser.add_argument("--device", default="cuda", help="device to measure and train on (default cuda)")
    parser.add_argument("--dry-run", action="store_true", help="only show the commands")
    options = parser.parse_args(arguments)
    if options.device == "cpu" and options.scale == "paper":
        parser.error("--scale paper requires a GPU, but --device is cpu: add --scale smoke")
    if not options.dry_run:
        try:
            devices.check_there(options.device)
        except ValueError as error:
            parser.error(str(error))
    options.device_name = options.device if options.dry_run else provenance.device_name(options.device)
    options.output = options.output.resolve()
    options.source = options.source and options.source.resolve()
    options.bring = (options.bring or options.output).resolve()
    if options.dry_run:
        words, _ = how_trained(options.device, "", {"correctness": "", "tick": ""})
        steps = [
            (f"{s.name}, at most {s.seconds:.0f} s", s.lines) for s in (*first_steps(options), *leftovers(options))
        ]
        for name, lines in (*steps, *((c.cell.name, [c.line]) for c in candidates(options, words))):
            print(name, *(f"    {shlex.join(line)}" for line in lines), sep="\n")
        return 0
    for folder in (options.output / "logs", options.bring):
        folder.mkdir(parents=True, exist_ok=True)
    if options.inductor and not (options.output / "inductor").exists():
        unpack_cache(options.inductor, options.output)
    with Interrupt() as interrupt:
        hour = QuarterHour(options, interrupt)
        with contextlib.suppress(CallEnded):
            go_on(hour, options)
        pack(hour, options)
    print(f"\n{summary(hour, options)}-> {options.bring / ARCHIVE}")
    if interrupt.received:
        return interrupt.exit_code
    return 1 if any(hour.outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
