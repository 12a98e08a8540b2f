"""Change the engine at random places and check that the engine's tests notice.

    python -m tests.mutants                      200 mutants, the ones of the committed seed
    python -m tests.mutants --number 20 --seed 7

A mutant is one small change to one expression or statement of a file of `petra_core`: another comparison, another
operator, a constant off by one, a condition negated, a statement left out. It is *caught* if a test fails or the tests
exceed the time limit. A mutant that survives shows a missing test, or is *equivalent*: no test can distinguish it from
the original. Equivalent mutants are listed in `tests/golden/equivalent_mutants.json` with the reason, and are not
tested. The exit status is 1 if fewer than 95 % of the others are caught, or if one survives.

The tests run in a copy of the repository, so that the checkout may be edited meanwhile, and each mutant in a process
that is forked from one that has imported torch and pytest. The mutant replaces the module as it is imported there; no
file is changed.
"""

import argparse
import ast
import collections
import concurrent.futures
import copy
import functools
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from multiprocessing import forkserver
from pathlib import Path
from types import CodeType
from typing import Any
from unittest import mock

import pytest
import torch._dynamo  # noqa: F401  # the tests import it, which takes seconds

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = ROOT / "tests" / "golden" / "equivalent_mutants.json"
PACKAGE = "petra_core"
COPIED = (PACKAGE, "reproduce", "tests", "benchmarks", "pyproject.toml")
#: Files of tests/petra_core that catch most mutants within seconds, those that take longest, and those in folders.
#: Other folders test other parts of petra_core, or several processes.
FIRST = ("test_methods.py", "test_plain_training.py", "test_wrong_calls.py")
LAST = ("test_delay.py", "test_device_placement.py", "test_user_modules.py")
IN_FOLDERS = ("distributed/test_agreement.py", "prediction/test_memory.py", "devices/test_captured.py")
CHECKS = ("guards.py", "states.py", "values.py")  # files of petra_core/inspection
NUMBER, SEED, SECONDS = 200, 0, 600.0
CAUGHT = 0.95  # share of the mutants that are not equivalent

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "reversed": "list"}


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes:
        file: Path relative to the repository's root.
        line: Line of the change, from 1.
        key: Name that does not contain the line, so that an edit of other lines does not change it.
        before: Source text that is replaced.
        after: Source text that replaces it.
        start: Offset of the replaced text in the file, in bytes.

    """

    file: str
    line: int
    key: str
    before: str
    after: str
    start: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before} -> {self.after}"

    def apply(self, source: bytes) -> bytes:
        """Return the changed content of the file."""
        return source[: self.start] + self.after.encode() + source[self.start + len(self.before.encode()) :]


def mutants(file: Path, root: Path = ROOT) -> list[Mutant]:
    """Return all mutants of a file, in the order of their place."""
    source = file.read_text(encoding="utf-8")
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    tree = ast.parse(source)
    found = []
    keys: collections.Counter[str] = collections.Counter()
    for node in sorted(_executed(tree), key=lambda node: (node.lineno, node.col_offset)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        before = source.encode()[start:end].decode()
        for changed in _changes(node):
            after = changed if isinstance(changed, str) else ast.unparse(changed)
            if after == before:
                continue
            name = file.relative_to(root).as_posix()
            key = f"{name}: {lines[node.lineno - 1].decode().strip()}: {before} -> {after}"
            keys[key] += 1
            if keys[key] > 1:
                key += f" (number {keys[key]})"
            found.append(Mutant(name, node.lineno, key, before, after, start))
    return found


def _executed(tree: ast.AST) -> Iterator[Any]:
    """Yield the nodes that have a place and an effect: no annotations, docstrings, raised messages or imports."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            skipped.update(map(id, ast.iter_child_nodes(node)))
            continue
        if isinstance(node, ast.Raise | ast.Import | ast.ImportFrom | ast.JoinedStr):
            skipped.update(map(id, ast.iter_child_nodes(node)))
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
            continue
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if annotation is not None:
                skipped.add(id(annotation))
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            skipped.update(map(id, ast.iter_child_nodes(node)))
            continue
        if hasattr(node, "lineno"):
            yield node


def _changes(node: ast.AST) -> Iterator[ast.AST | str]:
    """Yield what the node can be replaced by."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            changed = copy.deepcopy(node)
            changed.ops = [COMPARISONS[type(op)]()]
            yield changed
        case ast.BinOp(op=op) if type(op) in OPERATORS and not isinstance(node.left, ast.Constant | ast.JoinedStr):
            changed = copy.deepcopy(node)
            changed.op = OPERATORS[type(op)]()
            yield f"({ast.unparse(changed)})"
        case ast.BoolOp(op=op):
            changed = copy.deepcopy(node)
            changed.op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield f"({ast.unparse(changed)})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.IfExp():
            yield f"({ast.unparse(ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse))})"
        case ast.Constant(value=bool(value)):
            yield str(not value)
        case ast.Constant(value=int(value)):
            yield str(value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in CALLS:
            changed = copy.deepcopy(node)
            changed.func = ast.Name(CALLS[name])
            yield changed
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Delete():
            yield "pass"


def engine_files(root: Path = ROOT) -> list[Path]:
    """Return the files of the engine: the top of the package, and the checks that run in every step."""
    top = [path for path in (root / PACKAGE).glob("*.py") if path.name != "__init__.py"]
    return sorted([*top, *(root / PACKAGE / "inspection" / name for name in CHECKS)])


def chosen(number: int, seed: int, root: Path = ROOT) -> list[Mutant]:
    """Return `number` mutants of the engine, drawn with this seed. An edit of the engine replaces only few of them."""
    everything = [mutant for file in engine_files(root) for mutant in mutants(file, root)]
    return sorted(everything, key=lambda mutant: hashlib.sha256(f"{seed} {mutant.key}".encode()).digest())[:number]


def engine_tests(mutant: Mutant | None, root: Path = ROOT) -> list[str]:
    """Return the files of the engine's tests in the order in which they run, first those of the changed module."""
    of_module = "" if mutant is None else f"test_{Path(mutant.file).name}"
    names = [path.name for path in (root / "tests" / "petra_core").glob("test_*.py")]
    ordered = sorted(names, key=lambda name: (name != of_module, name not in FIRST, name in LAST, name))
    return [f"tests/petra_core/{name}" for name in (*ordered, *IN_FOLDERS)]


def copy_repository(folder: Path) -> None:
    """Copy what the tests need."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)


def status(mutant: Mutant | None, root: Path, tests: Sequence[str], seconds: float) -> int:
    """Run tests in a copy of the repository, with a mutant or without any.

    Returns:
        Exit status of pytest, or -SIGALRM if the tests exceed the time limit.

    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)  # ends the process
            code = _run(mutant, root, tests)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _run(mutant: Mutant | None, root: Path, tests: Sequence[str]) -> int:
    """Run tests in this process and return the exit status of pytest."""
    os.chdir(root)
    sys.path.insert(0, str(root))
    sys.dont_write_bytecode = False  # so that further processes need not compile the tests again
    for name in [name for name in sys.modules if name.partition(".")[0] in COPIED]:
        del sys.modules[name]  # the tests import it from `root`
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    original = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        if mutant is not None and loader.path == str(root / mutant.file):
            return compile(mutant.apply(Path(loader.path).read_bytes()), loader.path, "exec", dont_inherit=True)
        return original(loader, name)

    # Only tests that are marked as slow need the server.
    with mock.patch.object(SourceFileLoader, "get_code", get_code), mock.patch.object(forkserver, "ensure_running"):
        return pytest.main(["-q", "-x", "-m", "not slow", "-p", "no:cacheprovider", *tests])


def engine_status(mutant: Mutant | None, root: Path, seconds: float) -> int:
    """Run the engine's tests as `status` does."""
    return status(mutant, root, engine_tests(mutant, root), seconds)


def survivors(candidates: Sequence[Mutant], jobs: int, seconds: float) -> list[Mutant]:
    """Return the mutants that no test catches.

    Raises:
        SystemExit: The tests fail without a mutant.

    """
    forked = multiprocessing.get_context("fork")
    alive = []
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ProcessPoolExecutor(jobs, forked) as pool:
        root = Path(folder).resolve()
        copy_repository(root)
        run = functools.partial(engine_status, root=root, seconds=seconds)
        started = time.monotonic()
        statuses = pool.map(run, [None, *candidates])
        if next(statuses) != 0:
            pool.shutdown(cancel_futures=True)
            sys.exit(f"the tests fail, or take longer than {seconds:g} s, without any mutant: fix that first")
        print(f"the tests pass in {time.monotonic() - started:.0f} s without a mutant", flush=True)
        for number, (mutant, code) in enumerate(zip(candidates, statuses, strict=True), 1):
            if code == 0:
                alive.append(mutant)
                print(f"survived: {mutant}", flush=True)
            elif code == -signal.SIGALRM:
                print(f"exceeded the time limit: {mutant}", flush=True)
            if number % 20 == 0:
                print(f"{number} of {len(candidates)}", flush=True)
    return alive


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=NUMBER, help=f"mutants to try (default {NUMBER})")
    parser.add_argument("--seed", type=int, default=SEED, help=f"seed of the selection (default {SEED})")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"limit for one mutant (default {SECONDS:g})")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="concurrent mutants (default: number of cores)"
    )
    options = parser.parse_args(arguments)
    listed: dict[str, str] = json.loads(EQUIVALENT.read_text(encoding="utf-8")) if EQUIVALENT.exists() else {}
    drawn = chosen(options.number, options.seed)
    candidates = [mutant for mutant in drawn if mutant.key not in listed]
    print(f"{len(drawn) - len(candidates)} of {len(drawn)} mutants are listed as equivalent", flush=True)
    return report(candidates, survivors(candidates, options.jobs, options.seconds))


def report(candidates: Sequence[Mutant], alive: Sequence[Mutant]) -> int:
    """Print the score and the survivors; return the exit status."""
    score = 1 - len(alive) / len(candidates) if candidates else 1.0
    for mutant in alive:
        print(f"not explained: {mutant}")
    print(f"{score:.1%} of {len(candidates)} mutants caught")
    return 1 if score < CAUGHT or alive else 0


if __name__ == "__main__":
    sys.exit(main())
