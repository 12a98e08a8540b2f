"""Change the engine at random places and check that the engine's tests notice.

    python -m tests.mutants                      200 mutants, the ones of the committed seed
    python -m tests.mutants --number 20 --seed 7

A mutant is one small change to one expression or statement of a file of `petra_core`: another comparison, another
operator, a constant off by one, a condition negated, a statement left out. It is *caught* if a test fails or the tests
exceed the time limit. A mutant that survives shows a missing test, or is *equivalent*: no test can distinguish it from
the original. Equivalent mutants are listed in `tests/golden/equivalent_mutants.json` with the reason. The exit status
is 1 if fewer than 95 % of the others are caught, or if a survivor is not listed.

Every worker changes files in a copy of the repository, never in the checkout.
"""

import argparse
import ast
import concurrent.futures
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = ROOT / "tests" / "golden" / "equivalent_mutants.json"
PACKAGE = "petra_core"
COPIED = (PACKAGE, "reproduce", "tests", "benchmarks", "pyproject.toml")
#: Tests of the engine in one process, which take about a minute. Mutants of other folders would need other tests.
TESTS = ("tests/petra_core",)
LEFT_OUT = ("distributed", "models", "prediction", "devices")  # folders of tests/petra_core
CHECKS = ("guards.py", "states.py", "values.py")  # files of petra_core/inspection
NUMBER, SEED, SECONDS = 200, 0, 120.0
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
        before: Source text that is replaced.
        after: Source text that replaces it.
        start: Offset of the replaced text in the file, in bytes.

    """

    file: str
    line: int
    before: str
    after: str
    start: int

    @property
    def key(self) -> str:
        """Name the mutant independently of its line, so that the list of equivalent ones survives other edits."""
        return f"{self.file}: {self.before} -> {self.after}"

    def apply(self, root: Path) -> bytes:
        """Change the file below `root`; return its original content."""
        path = root / self.file
        original = path.read_bytes()
        end = self.start + len(self.before.encode())
        path.write_bytes(original[: self.start] + self.after.encode() + original[end:])
        return original


def mutants(file: Path, root: Path = ROOT) -> list[Mutant]:
    """Return all mutants of a file, in the order of their place."""
    source = file.read_text(encoding="utf-8")
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    tree = ast.parse(source)
    found = []
    for node in _executed(tree):
        start = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]  # has a place: see `_executed`
        end = starts[node.end_lineno - 1] + node.end_col_offset
        before = source.encode()[start:end].decode()
        for changed in _changes(node):
            after = changed if isinstance(changed, str) else ast.unparse(changed)
            if after != before:
                found.append(Mutant(str(file.relative_to(root)), node.lineno, before, after, start))
    return sorted(found, key=lambda mutant: (mutant.start, mutant.after))


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
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
    """Return `number` mutants of the engine, drawn without replacement with this seed."""
    everything = [mutant for file in engine_files(root) for mutant in mutants(file, root)]
    return random.Random(seed).sample(everything, min(number, len(everything)))


class Workplace:
    """A copy of the repository in which one mutant at a time is tested."""

    def __init__(self, folder: Path, tests: Sequence[str] = TESTS) -> None:
        self._root, self._tests = folder, tests
        self._writes = 0
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, folder / name)

    def caught(self, mutant: Mutant | None, seconds: float) -> bool:
        """Return whether a test fails with the mutant, or exceeds the time limit. None tests the original."""
        if mutant is None:
            return self._fails(seconds)
        original = mutant.apply(self._root)
        self._invalidate(mutant)
        try:
            return self._fails(seconds)
        finally:
            (self._root / mutant.file).write_bytes(original)
            self._invalidate(mutant)

    def _invalidate(self, mutant: Mutant) -> None:
        """Change the modification time of the file, because Python compares whole seconds with its compiled copy."""
        self._writes += 1
        os.utime(self._root / mutant.file, (self._writes, self._writes))

    def _fails(self, seconds: float) -> bool:
        ignored = [f"--ignore=tests/petra_core/{folder}" for folder in LEFT_OUT]
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", "-p", "no:cacheprovider", *ignored]
        # Importing torch takes seconds, and twice as long without compiled files.
        environment = {"PYTHONPYCACHEPREFIX": str(self._root / "compiled"), **os.environ}
        environment |= {"PYTHONPATH": str(self._root), "PYTHONDONTWRITEBYTECODE": ""}
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        try:
            ended = subprocess.run(
                [*command, *self._tests],
                cwd=self._root,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return True
        return ended.returncode != 0


def survivors(candidates: Sequence[Mutant], jobs: int, seconds: float) -> list[Mutant]:
    """Return the mutants that no test catches.

    Raises:
        SystemExit: The tests fail without a mutant.

    """
    places = threading.local()
    alive = []
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(jobs) as pool:

        def place() -> Workplace:
            if not hasattr(places, "own"):
                places.own = Workplace(Path(tempfile.mkdtemp(dir=folder)))
            workplace: Workplace = places.own
            return workplace

        def tried(mutant: Mutant) -> bool:
            return place().caught(mutant, seconds)

        started = time.monotonic()
        if pool.submit(lambda: place().caught(None, seconds)).result():
            sys.exit(f"the tests fail, or take longer than {seconds:g} s, without any mutant: fix that first")
        print(f"the tests pass in {time.monotonic() - started:.0f} s without a mutant", flush=True)
        for number, (mutant, was_caught) in enumerate(zip(candidates, pool.map(tried, candidates), strict=True), 1):
            if not was_caught:
                alive.append(mutant)
                print(f"survived: {mutant.file}:{mutant.line}: {mutant.before} -> {mutant.after}", flush=True)
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
    candidates = chosen(options.number, options.seed)
    alive = survivors(candidates, options.jobs, options.seconds)
    return report(candidates, alive, listed)


def report(candidates: Sequence[Mutant], alive: Sequence[Mutant], listed: dict[str, str]) -> int:
    """Print the score and the unexplained survivors; return the exit status."""
    open_ones = [mutant for mutant in alive if mutant.key not in listed]
    judged = sum(mutant.key not in listed for mutant in candidates)
    score = 1 - len(open_ones) / judged if judged else 1.0
    for mutant in open_ones:
        print(f"not explained: {mutant.file}:{mutant.line}: {mutant.before} -> {mutant.after}")
    print(f"{score:.1%} of {judged} mutants caught; {len(candidates) - judged} more are listed as equivalent")
    return 1 if score < CAUGHT or open_ones else 0


if __name__ == "__main__":
    sys.exit(main())
