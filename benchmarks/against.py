"""Compare two commits: report what became slower or larger, where this machine can resolve a difference.

The obvious comparison measures one commit, then the other, and calls a difference above a threshold a regression. On a
machine with other load, some benchmarks differ from themselves by as much. So each commit is measured twice, the second
time as another commit with the same files (created here, on no branch). One run of asv measures all four in turns,
round by round, under the same conditions:

    base, base again, head, head again,  head again, head, base again, base,  …

A benchmark that differs from itself by more than the factor, at the base or at the head, is *noisy*. It is listed and
not judged. Any other benchmark is worse if both values at the head exceed both values at the base by more than the
factor. Usage:

    python -m benchmarks.against BASE [--head HEAD] [--factor 1.2] [--bench REGEX] [--rounds 4]

Only committed files are compared, with the suite of the working tree. The exit code is 1 if a benchmark is worse or
fails where it did not fail before.
"""

import argparse
import enum
import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asv.config import Config
from asv.results import Results
from asv.util import human_value

from benchmarks.arguments import count, positive

ROOT = Path(__file__).resolve().parent.parent
FACTOR = 1.2
ROUNDS = 4
HASH_LENGTH = 8  # length of the hashes in asv's file names
SOME_FAILED = 2  # exit code of `asv run`


class ChangeVerdict(enum.Enum):
    """Outcome of comparing one benchmark at two commits. The value is shown in the table."""

    WORSE = "worse"
    FAILS = "fails now"
    BETTER = "better"
    SAME = "same"
    NOISY = "noisy"
    SKIPPED = "skipped"
    UNKNOWN = "failed before"


BAD = (ChangeVerdict.WORSE, ChangeVerdict.FAILS)
Value = float | None  # not a number: skipped; None: failed


@dataclass(frozen=True)
class ComparedBenchmark:
    """One benchmark with one choice of parameters, measured at two commits.

    Attributes:
        name: Name in asv's form, for example `tick.NarrowTick.time_step(revnet18, PETRA, cpu)`.
        unit: Unit of the values.
        base: Two values at the base. Lower is better.
        head: Two values at the head.

    """

    name: str
    unit: str
    base: tuple[Value, Value]
    head: tuple[Value, Value]

    def verdict(self, factor: float) -> ChangeVerdict:
        """Return the outcome if differences up to `factor` are insignificant."""
        if any(value is not None and math.isnan(value) for value in (*self.base, *self.head)):
            return ChangeVerdict.SKIPPED
        base = [value for value in self.base if value is not None]
        head = [value for value in self.head if value is not None]
        if len(base) < 2:
            return ChangeVerdict.UNKNOWN
        if len(head) < 2:
            return ChangeVerdict.FAILS
        if max(base) > factor * min(base) or max(head) > factor * min(head):
            return ChangeVerdict.NOISY
        if min(head) > factor * max(base):
            return ChangeVerdict.WORSE
        return ChangeVerdict.BETTER if factor * max(head) < min(base) else ChangeVerdict.SAME

    def line(self, factor: float) -> tuple[str, ...]:
        """Return the cells of the benchmark's row in the table."""
        values = (*self.base, *self.head)
        measured = [value for value in values if value is not None and not math.isnan(value)]
        has_ratio = len(measured) == len(values) and any(measured[:2])
        ratio = f"{sum(measured[2:]) / sum(measured[:2]):.2f}" if has_ratio else ""
        return (self.verdict(factor).value, *(self._text(value) for value in values), ratio, self.name)

    def _text(self, value: Value) -> str:
        is_plain_number = value is not None and self.unit not in ("seconds", "bytes")
        return f"{value:.3g}" if is_plain_number else str(human_value(value, self.unit))


def report(rows: Sequence[ComparedBenchmark], factor: float) -> str:
    """Format a table of all benchmarks, worst first, and a summary."""
    order = list(ChangeVerdict)
    ranked = sorted(rows, key=lambda row: (order.index(row.verdict(factor)), row.name))
    cells = [("", "base", "again", "head", "again", "ratio", "benchmark"), *(row.line(factor) for row in ranked)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    noisy = [row.name for row in ranked if row.verdict(factor) is ChangeVerdict.NOISY]
    bad = [row.name for row in ranked if row.verdict(factor) in BAD]
    lines.append("")
    if noisy:
        lines.append(f"noisy (differs from itself by more than {factor:g}), not judged: {', '.join(noisy)}")
    if not judged(rows, factor):
        lines.append("nothing was measured at both commits; see the messages of asv")
    else:
        lines.append(f"regressed: {', '.join(bad)}" if bad else f"nothing regressed by more than {factor:g}")
    return "\n".join(lines)


def judged(rows: Sequence[ComparedBenchmark], factor: float) -> bool:
    """Return whether any benchmark could be judged. There is none if, for example, a commit could not be installed."""
    return any(row.verdict(factor) not in (ChangeVerdict.UNKNOWN, ChangeVerdict.SKIPPED) for row in rows)


def read(results: Path, base: tuple[str, str], head: tuple[str, str]) -> list[ComparedBenchmark]:
    """Read asv's results of these commits, for every benchmark of the second measurement of the base."""
    known = json.loads((results / "benchmarks.json").read_text(encoding="utf-8"))
    units = {name: entry.get("unit") for name, entry in known.items() if name != "version"}
    rows = []
    for file in sorted(results.glob(f"*/{base[1][:HASH_LENGTH]}-*.json")):
        # The rest of the file name identifies machine and environment.
        one, two, three, four = (
            _values(file.with_name(commit[:HASH_LENGTH] + file.name[HASH_LENGTH:])) for commit in (*base, *head)
        )
        rows += [
            ComparedBenchmark(
                name, units.get(name.split("(")[0]) or "", (one.get(name), two[name]), (three.get(name), four.get(name))
            )
            for name in two
        ]
    return rows


def _values(file: Path) -> dict[str, Value]:
    if not file.exists():
        return {}
    result = Results.load(str(file))
    by_name = {}
    for name in result.get_all_result_keys():
        params = result.get_result_params(name)
        choices = list(itertools.product(*params))
        values = result.get_result_value(name, params) or [None] * len(choices)
        for choice, value in zip(choices, values, strict=True):
            by_name[f"{name}({', '.join(choice)})" if choice else name] = value
    return by_name


def same_files(commit: str) -> str:
    """Return a commit with the files of `commit` that is on no branch. The same input gives the same commit."""
    date = _git("show", "--no-patch", "--format=%aI", commit)
    who = {"NAME": "benchmarks", "EMAIL": "benchmarks@localhost", "DATE": date}
    env = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in who.items()}
    return _git("commit-tree", f"{commit}^{{tree}}", "-p", commit, "-m", "The same files once more", env=env)


def _git(*arguments: str, env: dict[str, str] | None = None) -> str:
    command = ["git", *arguments]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | (env or {}),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()


def measure(commits: Sequence[str], options: argparse.Namespace) -> None:
    """Have asv measure all commits in turns. A failing benchmark does not stop the run; its values are missing."""
    listed = ROOT / ".asv" / "compared"
    listed.parent.mkdir(exist_ok=True)
    listed.write_text("\n".join(commits), encoding="utf-8")
    selected = [word for regex in options.bench for word in ("--bench", regex)]
    command = [sys.executable, "-m", "asv", "run", "--interleave-rounds", "--attribute", f"rounds={options.rounds}"]
    # Use the running interpreter, which exists for certain, instead of the one that asv.conf.json names.
    command += ["--environment", f"virtualenv:{sys.version_info.major}.{sys.version_info.minor}"]
    done = subprocess.run([*command, *selected, f"HASHFILE:{listed}"], cwd=ROOT, check=False)
    if done.returncode not in (0, SOME_FAILED):
        raise SystemExit(f"asv ended with the exit code {done.returncode}, see above")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="commit to compare with")
    parser.add_argument("--head", default="HEAD", help="commit to judge (default HEAD)")
    parser.add_argument(
        "--factor", type=positive, default=FACTOR, help=f"smallest significant ratio (default {FACTOR})"
    )
    parser.add_argument(
        "--bench", action="append", default=[], help="regular expression of benchmark names; may be repeated"
    )
    parser.add_argument("--rounds", type=count, default=ROUNDS, help=f"rounds (default {ROUNDS})")
    options = parser.parse_args(arguments)
    if options.factor < 1:
        parser.error(f"--factor: got {options.factor:g}, expected at least 1")

    base, head = (_git("rev-parse", "--verify", f"{name}^{{commit}}") for name in (options.base, options.head))
    if base == head:
        parser.error(f"{options.base} and {options.head} are the same commit, {base[:12]}")
    base_again, head_again = same_files(base), same_files(head)
    results = ROOT / Config.load(str(ROOT / "asv.conf.json")).results_dir
    _forget(results, base_again, head_again)
    try:
        measure([base, base_again, head, head_again], options)
        rows = read(results, (base, base_again), (head, head_again))
    finally:
        _forget(results, base_again, head_again)  # keep them out of asv's history
    print(f"\n{options.base} is {base[:12]}, {options.head} is {head[:12]}\n\n{report(rows, options.factor)}")
    return int(not judged(rows, options.factor) or any(row.verdict(options.factor) in BAD for row in rows))


def _forget(results: Path, *commits: str) -> None:
    for commit in commits:
        for file in results.glob(f"*/{commit[:HASH_LENGTH]}-*.json"):
            file.unlink()


if __name__ == "__main__":
    sys.exit(main())
