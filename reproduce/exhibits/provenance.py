"""Where every number comes from: cell by cell the state, the code, the machine and the command that repeats it.

Environments and versions of the code are listed once and referred to by a short name (E1, C1); a difference to a
commit is shown whole. Cells that have not been run are counted, not listed: of a thousand lines that say "not run"
nobody reads one.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from reproduce.cells.kinds import Cell, TrainedCell, TrainingCell
from reproduce.exhibits.accounts import accounts, title
from reproduce.grids import scales
from reproduce.grids.grid import grid_of
from reproduce.grids.plans import depth, stability
from reproduce.records.provenance import in_history
from reproduce.records.record import Status
from reproduce.records.results import Results, Run, meaning
from reproduce.show.content import (
    Block,
    Column,
    Entry,
    Finding,
    Listing,
    Section,
    Table,
    Tone,
    code,
    missing,
    number,
    some,
    text,
)
from reproduce.words import count

COMMIT_DIGITS = 10
LISTED = 3  # of cells that a finding names; the list of cells has all


class _Names:
    """Short names (E1, E2 and so on) for things that repeat, in the order in which they are met."""

    def __init__(self, letter: str) -> None:
        self._letter = letter
        self.values: dict[str, Any] = {}  # by canonical text

    def of(self, value: Any) -> str:
        """The name of `value`."""
        text_of = json.dumps(value, sort_keys=True)
        self.values.setdefault(text_of, value)
        return f"{self._letter}{list(self.values).index(text_of) + 1}"

    def items(self) -> Iterable[tuple[str, Any]]:
        """All names with their values."""
        return ((f"{self._letter}{n}", value) for n, value in enumerate(self.values.values(), start=1))


def section(results: Results) -> Section:
    """Cells, environments, code, and what could not be read."""
    environments, versions = _Names("E"), _Names("C")
    begun = [run for run in results.runs if run.state.status is not Status.NOT_RUN]
    cells = _cells_table(begun, environments, versions)
    blocks: list[Block] = [_INTRODUCTION]
    if results.problems:
        blocks.append(_problems_table(results))
    blocks += [_progress_table(results), _versions_table(versions), _environments_table(environments)]
    patches = {value["patch"]: name for name, value in versions.items() if value["patch"]}
    folded: list[Block] = [cells]
    folded += [
        Listing(f"patch-{name}", f"Difference of {name} to its commit", patch) for patch, name in patches.items()
    ]
    return Section(
        "provenance",
        "Provenance",
        blocks,
        list(_findings(results, versions)),
        folded=folded,
        folded_title=f"State, code, machine, command of {count(len(begun), 'cell')}; every difference to a commit",
    )


def command(cell: Cell) -> str:
    """The command that runs this cell and no other; empty if its grid no longer has it and no command makes its kind.

    A cell of a grid is called by its name; if the grid has it with another loader or precision alone, by the name of
    that and these two. Another is trained by hand, every setting written out; its scale is then `custom`.
    """
    planned = _planned(cell.scale).get(meaning(cell), ()) if cell.scale in scales.SCALES else ()
    if planned:
        nearest = cell if cell in planned else planned[0]
        asked, there = cell.to_dict(), nearest.to_dict()
        changed = [f" --{name} {asked[name]}" for name in ("loader", "precision") if asked.get(name) != there.get(name)]
        return f"python -m reproduce run {cell.scale} --only name={nearest.name}{''.join(changed)}"
    if not isinstance(cell, TrainingCell):
        return ""
    settings = {name: value for name, value in cell.to_dict().items() if name not in ("kind", "scale")}
    options = " ".join(f"--{name.replace('_', '-')} {_argument(value)}" for name, value in settings.items())
    return f"python -m reproduce train {options}"


@cache
def _planned(scale: str) -> dict[str, list[Cell]]:
    """The cells of a grid, found by what they mean, whatever their loader and precision: of some it has two."""
    found: dict[str, list[Cell]] = {}
    for cell in grid_of(scale).cells:
        found.setdefault(meaning(cell), []).append(cell)
    return found


_INTRODUCTION = (
    "Every number above is computed from records: a folder of plain text for each cell, with its whole "
    "configuration, the environment, the commit (and the difference to it, if the tree was not clean) and the "
    "metrics of every epoch. The list of cells at the end names for each the code (C), the environment (E) and the "
    "command that runs it and no other."
)


def _findings(results: Results, versions: _Names) -> Iterable[Finding]:
    yield from _failures(results.runs)
    unofficial = {
        run.cell.name: f"{data['reason']}; {'; '.join(data['deviations'])}"
        for run in results.runs
        if not (data := run.result.get("data", {"official": True}))["official"]
    }
    if unofficial:
        words = " ".join(dict.fromkeys(unofficial.values()))
        yield Finding(f"{count(len(unofficial), 'cell')} used data that are not the official ones. {words}", Tone.ALERT)
    begun = [run for run in results.runs if run.state.status is Status.PARTIAL]
    if begun:
        words = some([f"{run.cell.name}: {run.state}" for run in begun], LISTED)
        yield Finding(f"{count(len(begun), 'cell')} begun and not finished. {words}.", Tone.MISSING)
    not_run = Counter(run.cell.scale for run in results.runs if run.state.status is Status.NOT_RUN)
    if not_run:
        words = ", ".join(f"{amount} of “{scale}”" for scale, amount in not_run.items())
        yield Finding(f"{count(not_run.total(), 'planned cell')} not run: {words}.", Tone.MISSING)
    if results.problems:
        yield Finding(
            f"{count(len(results.problems), 'record')} damaged or foreign, left as found and left out of all tables.",
            Tone.ALERT,
        )
    dirty = sum(1 for _, value in versions.items() if not value["code"].get("clean", False))
    if dirty:
        yield Finding(
            f"Code: {dirty} of {count(len(versions.values), 'version')} that ran {'was' if dirty == 1 else 'were'} "
            "not a clean, known commit; Provenance shows the difference.",
            Tone.MISSING,
        )
    gone = [run for run in results.runs if any(_found(entry) == "" for entry in run.codes)]
    if gone:
        yield Finding(
            f"Code: {count(len(gone), 'cell')} ran at commits that are not in this repository's history, and no "
            "commit in it has the same sources: their code cannot be looked up. The same command with --records and "
            "another folder runs them anew.",
            Tone.MISSING,
        )


def _found(entry: Mapping[str, Any]) -> str | None:
    """The commit in this checkout's history that has the code of the entry; empty: none; None: not known."""
    return in_history(entry["commit"], entry.get("sources")) if entry.get("commit") else None


def _failures(runs: Iterable[Run[Cell]]) -> Iterable[Finding]:
    """By reason. That a cell diverges may be just what a study looks for; that memory ran out is never a result."""
    failed: dict[str, list[Run[Cell]]] = {}
    for run in runs:
        if run.state.status is Status.FAILED:
            failed.setdefault(run.state.reason, []).append(run)
    for reason, own in sorted(failed.items()):
        words = some([f"{run.cell.name} ({run.state.detail or run.state})" for run in own], LISTED)
        looked_for = reason == "diverged" and all(meaning(run.cell) in _divergence_looked_for() for run in own)
        yield Finding(f"{count(len(own), 'cell')} failed: {reason}. {words}.", Tone.PLAIN if looked_for else Tone.ALERT)


@cache
def _divergence_looked_for() -> frozenset[str]:
    """The cells of the studies that ask where training breaks."""
    return frozenset(
        meaning(cell) for study in (depth, stability) for name in scales.SCALES for cell in study.cells(name)
    )


def _progress_table(results: Results) -> Table:
    """What is planned and what is there, for every exhibit at every scale; in it the cells that are not run."""
    columns = [Column("exhibit", numeric=False), Column("scale", numeric=False)]
    columns += [
        Column(name, group="cells") for name in ("planned", "finished", "diverged", "out of memory", "begun", "not run")
    ]
    body = [
        [
            text(title(account.key)),
            text(account.scale),
            *(
                number(amount, 0, tone=Tone.PLAIN)
                for amount in (
                    account.planned,
                    account.done,
                    account.failed.get("diverged", 0),
                    account.failed.get("out of memory", 0),
                    account.begun,
                    account.not_run,
                )
            ),
        ]
        for account in accounts(results).values()
    ]
    return Table(
        key="progress",
        caption="Cells that the exhibits and studies need, and how far they are; those that two share count for both.",
        columns=columns,
        rows=body,
    )


def _cells_table(runs: Sequence[Run[Cell]], environments: _Names, versions: _Names) -> Table:
    columns = [
        Column("cell", numeric=False),
        Column("scale", numeric=False),
        Column("state", numeric=False),
        Column("code", numeric=False),
        Column("environment", numeric=False),
        Column("loader", numeric=False),
        Column("precision", numeric=False),
        Column("training, s"),
        Column("images/s"),
        Column("command", numeric=False),
    ]
    body = []
    for run in runs:
        loading = (run.cell.loader, run.cell.precision) if isinstance(run.cell, TrainedCell) else ("", "")
        body.append(
            [
                code(run.cell.name),
                text(run.cell.scale),
                _state(run),
                text(", ".join(versions.of(_version(c, run.patches)) for c in run.codes)),
                text(", ".join(environments.of(e) for e in run.environments)),
                *map(text, loading),
                _measured(run, "train_seconds", 1),
                _measured(run, "images_per_second", 0),
                code(command(run.cell)) if command(run.cell) else missing("no grid has it any more"),
            ]
        )
    return Table(
        key="cells",
        caption="Every cell that has been begun: what it is, how far it is, and the command that runs it.",
        columns=columns,
        rows=body,
        notes=(
            "A cell that has a result is not run again: add --records FOLDER to run it anew elsewhere. Times and "
            "speeds are those of the run on its machine, with whatever else ran there; they are no benchmark.",
        ),
    )


def _measured(run: Run[Cell], name: str, digits: int) -> Entry:
    value = run.result.get(name)
    return number(float(value), digits) if value is not None else missing("")


def _state(run: Run[Cell]) -> Entry:
    tones = {Status.DONE: Tone.PLAIN, Status.FAILED: Tone.ALERT}
    return Entry(str(run.state), tone=tones.get(run.state.status, Tone.MISSING), hint=run.state.detail)


def _version(entry: Mapping[str, Any], patches: Mapping[str, str]) -> dict[str, Any]:
    """A version of the code, the same for the same code whatever its patch is called in the record."""
    known = {name: value for name, value in entry.items() if name != "diff"}
    return {"code": known, "patch": patches.get(entry.get("diff", ""), "")}


def _versions_table(versions: _Names) -> Table:
    columns = [
        Column(name, numeric=False) for name in ("code", "version", "commit", "history", "tree", "files not in git")
    ]
    body = []
    for name, value in versions.items():
        entry = value["code"]
        commit = entry.get("commit")
        found = _found(entry)
        history = "not in it" if found == "" else "not known here" if found is None else "in it"
        if found and found != commit:
            history = f"not in it; {found[:COMMIT_DIGITS]} has the same sources"
        tree = "clean" if entry.get("clean") else entry.get("note") or "changed; difference below"
        body.append(
            [
                text(name),
                text(str(entry.get("version") or "not installed")),
                code(commit[:COMMIT_DIGITS]) if commit else missing("not known"),
                Entry(history, tone=Tone.PLAIN if found else Tone.MISSING),
                Entry(tree, tone=Tone.PLAIN if entry.get("clean") else Tone.MISSING),
                text(", ".join(entry.get("untracked", [])) or "none"),
            ]
        )
    return Table(key="code", caption="Versions of the code that ran.", columns=columns, rows=body)


def _environments_table(environments: _Names) -> Table:
    columns = [
        Column("environment", numeric=False),
        Column("device", numeric=False),
        Column("processor", numeric=False),
    ]
    columns += [Column("cores"), Column("threads")]
    columns += [Column(name, numeric=False) for name in ("Python", "system", "versions", "determinism")]
    body = []
    for name, e in environments.items():
        cuda = f", CUDA {e['cuda']}, cuDNN {e['cudnn']}" if e.get("cuda") else ""
        flags = "deterministic algorithms" if e.get("deterministic_algorithms") else "not deterministic"
        body.append(
            [
                text(name),
                text(f"{e['device']}{cuda}"),
                text(e["processor"]),
                number(e["cores"], 0, tone=Tone.PLAIN),
                number(e["threads"], 0, tone=Tone.PLAIN),
                text(e["python"]),
                text(e["platform"]),
                text(", ".join(f"{package} {version}" for package, version in e["packages"].items())),
                text(flags + (", TF32" if e.get("tf32") else "")),
            ]
        )
    return Table(key="environments", caption="Machines and versions.", columns=columns, rows=body)


def _problems_table(results: Results) -> Table:
    columns = [Column("file", numeric=False), Column("kind", numeric=False), Column("what is wrong", numeric=False)]
    body = [
        [
            code("/".join(problem.path.parts[-3:])),
            Entry("foreign" if problem.foreign else "damaged", tone=Tone.ALERT),
            text(str(problem).replace(str(problem.path), problem.path.name)),
        ]
        for problem in results.problems
    ]
    return Table(
        key="problems", caption="Records that cannot be read; they were left as they are.", columns=columns, rows=body
    )


def _argument(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or '""'
    return str(value)
