"""Where every number comes from: cell by cell the state, the code, the machine and the command that repeats it.

Environments and versions of the code are listed once and referred to by a short name (E1, C1); a difference to a
commit is shown whole.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reproduce import scales
from reproduce.cells import Cell, TrainingCell
from reproduce.records import Status
from reproduce.tables.content import (
    Block,
    Column,
    Entry,
    Finding,
    Listing,
    Section,
    Table,
    Tone,
    code,
    count,
    missing,
    number,
    some,
    text,
)
from reproduce.tables.results import Results, Run, grid

COMMIT_DIGITS = 10


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
    cells = _cells_table(results.runs, environments, versions)
    blocks: list[Block] = [_INTRODUCTION]
    if results.problems:
        blocks.append(_problems_table(results))
    blocks += [_versions_table(versions), _environments_table(environments)]
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
        folded_title="Every cell with its command, and every difference to a commit",
    )


def command(cell: Cell) -> str:
    """The command that runs the cell: out of its grid if it is in one, else by hand with every setting written out."""
    values = cell.to_dict()
    if cell.scale in scales.SCALES and cell in grid(cell.scale).cells:
        chosen = {name: values[name] for name in ("kind", "model", "method", "accumulation", "seed")}
        return f"python -m reproduce run {cell.scale} " + " ".join(f"--only {name}={v}" for name, v in chosen.items())
    settings = {name: value for name, value in values.items() if name not in ("kind", "scale")}
    options = " ".join(f"--{name.replace('_', '-')} {_argument(value)}" for name, value in settings.items())
    return f"python -m reproduce train {options}"


_INTRODUCTION = (
    "Every number above is computed from records: a folder of plain text for each cell, with its whole "
    "configuration, the environment, the commit (and the difference to it, if the tree was not clean) and the "
    "metrics of every epoch. The list of cells below names for each the code (C), the environment (E) and the "
    "command that repeats it."
)


def _findings(results: Results, versions: _Names) -> Iterable[Finding]:
    failed = [run for run in results.runs if run.state.status is Status.FAILED]
    if failed:
        words = some([f"{run.cell.name}: {run.state}" for run in failed])
        yield Finding(f"{count(len(failed), 'cell')} failed. {words}.", Tone.ALERT)
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
        words = some([f"{run.cell.name}: {run.state}" for run in begun])
        yield Finding(f"{count(len(begun), 'cell')} begun and not finished. {words}.", Tone.MISSING)
    not_run = [run for run in results.runs if run.state.status is Status.NOT_RUN]
    if not_run:
        words = ", ".join(sorted({run.cell.scale for run in not_run}))
        yield Finding(f"{count(len(not_run), 'cell')} of the grid not run ({words}).", Tone.MISSING)
    if results.problems:
        yield Finding(
            f"{count(len(results.problems), 'record')} damaged or foreign, left as found and left out of all tables; "
            "see Provenance.",
            Tone.ALERT,
        )
    dirty = sum(1 for _, value in versions.items() if not value["code"].get("clean", False))
    if dirty:
        yield Finding(
            f"Code: {dirty} of {count(len(versions.values), 'version')} that ran {'was' if dirty == 1 else 'were'} "
            "not a clean, known commit; Provenance shows the difference.",
            Tone.MISSING,
        )


def _cells_table(runs: Sequence[Run[Cell]], environments: _Names, versions: _Names) -> Table:
    columns = [
        Column("cell", numeric=False),
        Column("scale", numeric=False),
        Column("state", numeric=False),
        Column("code", numeric=False),
        Column("environment", numeric=False),
        Column("loader", numeric=False),
        Column("training, s"),
        Column("command", numeric=False),
    ]
    body = []
    for run in runs:
        seconds = run.result.get("train_seconds")
        loader = run.cell.loader if isinstance(run.cell, TrainingCell) else ""
        body.append(
            [
                code(run.cell.name),
                text(run.cell.scale),
                _state(run),
                text(", ".join(versions.of(_version(c, run.patches)) for c in run.codes)),
                text(", ".join(environments.of(e) for e in run.environments)),
                text(loader),
                number(float(seconds), 1) if seconds is not None else missing(""),
                code(command(run.cell)),
            ]
        )
    return Table(
        key="cells",
        caption="Every cell: what it is, how far it is, and the command that runs it.",
        columns=columns,
        rows=body,
        notes=(
            "A cell that has a result is not run again: add --records FOLDER to run it anew elsewhere. Times are "
            "those of the run on its machine, with whatever else ran there; they are no benchmark.",
        ),
    )


def _state(run: Run[Cell]) -> Entry:
    tones = {Status.DONE: Tone.PLAIN, Status.FAILED: Tone.ALERT}
    return Entry(str(run.state), tone=tones.get(run.state.status, Tone.MISSING), hint=run.state.detail)


def _version(entry: Mapping[str, Any], patches: Mapping[str, str]) -> dict[str, Any]:
    """A version of the code, the same for the same code whatever its patch is called in the record."""
    known = {name: value for name, value in entry.items() if name != "diff"}
    return {"code": known, "patch": patches.get(entry.get("diff", ""), "")}


def _versions_table(versions: _Names) -> Table:
    columns = [Column(name, numeric=False) for name in ("code", "version", "commit", "tree", "files not in git")]
    body = []
    for name, value in versions.items():
        entry = value["code"]
        commit = entry.get("commit")
        tree = "clean" if entry.get("clean") else entry.get("note") or "changed; difference below"
        body.append(
            [
                text(name),
                text(str(entry.get("version") or "not installed")),
                code(commit[:COMMIT_DIGITS]) if commit else missing("not known"),
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
