"""Where every number comes from: cell by cell the state, the code, the machine and the command that repeats it.

Environments and versions of the code are listed once and referred to by a short name (E1, C1); a difference to a
commit is shown whole. Cells that have not been run are counted, not listed: of a thousand lines that say "not run"
nobody reads one.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from reproduce.cells.kinds import Cell, TrainingCell
from reproduce.exhibits._exhibit import Exhibit, Folded, Shown
from reproduce.grids import scales
from reproduce.grids.grid import grid_of
from reproduce.grids.plans import PLANS
from reproduce.records.frames import Frames
from reproduce.records.record import Status
from reproduce.records.results import Run, meaning
from reproduce.show.content import Entry, Finding, Listing, Table, Tone, code, missing, some
from reproduce.show.tables import amount, entry, number, table, words
from reproduce.words import count

LISTED = 3  # of cells that a finding names; the list of cells has all
COMMIT_DIGITS = 10
INTRODUCTION = (
    "Every number above is computed from records: a folder of plain text for each cell, with its whole "
    "configuration, the environment, the commit (and the difference to it, if the tree was not clean) and the "
    "metrics of every epoch. The list of cells at the end names for each the code (C), the environment (E) and the "
    "command that runs it and no other."
)


class Names:
    """Short names (E1, E2 and so on) for things that repeat, in the order in which they are met."""

    def __init__(self, letter: str, runs: Sequence[Run[Cell]], of: Callable[[Run[Cell]], list[dict[str, Any]]]) -> None:
        self._of = of
        texts = dict.fromkeys(json.dumps(value, sort_keys=True) for run in runs for value in of(run))
        self._names = {text: f"{letter}{number}" for number, text in enumerate(texts, start=1)}

    def of(self, run: Run[Cell]) -> str:
        """The names of what a run has."""
        return ", ".join(self._names[json.dumps(value, sort_keys=True)] for value in self._of(run))

    def items(self) -> list[tuple[str, dict[str, Any]]]:
        """All names with their values."""
        return [(name, json.loads(text)) for text, name in self._names.items()]


def whole(frames: Frames) -> Iterator[Shown]:
    """Code, environments, what could not be read, and folded the cells."""
    results = frames.results
    begun = [run for run in results.runs if run.state.status is not Status.NOT_RUN]
    versions, machines = Names("C", begun, _codes), Names("E", begun, lambda run: list(run.environments))
    yield from _findings(results.runs)
    if results.problems:
        amount_of = count(len(results.problems), "record")
        yield Finding(f"{amount_of} damaged or foreign, left as found and left out of all tables.", Tone.ALERT)
        yield table(
            key="problems",
            caption="Records that cannot be read; they were left as they are.",
            rows=results.problems,
            fields=[
                entry("file", lambda p: code("/".join(p.path.parts[-3:])), numeric=False),
                words("kind", lambda p: Entry("foreign" if p.foreign else "damaged", tone=Tone.ALERT)),
                words("what is wrong", lambda p: str(p).replace(str(p.path), p.path.name)),
            ],
        )
    dirty = [name for name, value in versions.items() if not value["code"].get("clean")]
    if dirty:
        yield Finding(
            f"Code: {len(dirty)} of {count(len(versions.items()), 'version')} that ran "
            f"{'was' if len(dirty) == 1 else 'were'} not a clean, known commit; Provenance shows the difference.",
            Tone.MISSING,
        )
    yield _versions_table(versions)
    yield _environments_table(machines)
    yield Folded(_cells_table(begun, versions, machines))
    patches = {value["patch"]: name for name, value in versions.items() if value["patch"]}
    for patch, name in patches.items():
        yield Folded(Listing(f"patch-{name}", f"Difference of {name} to its commit", patch))


def _findings(runs: Sequence[Run[Cell]]) -> Iterator[Finding]:
    failed: dict[str, list[Run[Cell]]] = {}
    for run in runs:
        if run.state.status is Status.FAILED:
            failed.setdefault(run.state.reason, []).append(run)
    for reason, own in sorted(failed.items()):
        # That a cell diverges may be just what a study looks for; that memory ran out is never a result.
        looked_for = reason == "diverged" and all(meaning(run.cell) in _may_diverge() for run in own)
        names = some([f"{run.cell.name} ({run.state.detail or run.state})" for run in own], LISTED)
        yield Finding(f"{count(len(own), 'cell')} failed: {reason}. {names}.", Tone.PLAIN if looked_for else Tone.ALERT)
    data = {run.cell.name: run.result["data"] for run in runs if not run.result.get("data", {}).get("official", True)}
    if data:
        reasons = " ".join(dict.fromkeys(f"{d['reason']}; {'; '.join(d['deviations'])}" for d in data.values()))
        yield Finding(f"{count(len(data), 'cell')} used data that are not the official ones. {reasons}", Tone.ALERT)
    partial = [f"{run.cell.name}: {run.state}" for run in runs if run.state.status is Status.PARTIAL]
    if partial:
        yield Finding(f"{count(len(partial), 'cell')} begun and not finished. {some(partial, LISTED)}.", Tone.MISSING)
    not_run = Counter(run.cell.scale for run in runs if run.state.status is Status.NOT_RUN)
    if not_run:
        by_scale = ", ".join(f"{number} of “{scale}”" for scale, number in not_run.items())
        yield Finding(f"{count(not_run.total(), 'planned cell')} not run: {by_scale}.", Tone.MISSING)


@cache
def _may_diverge() -> frozenset[str]:
    """The cells of the studies that ask where training breaks."""
    plans = (PLANS["depth"], PLANS["stability"])
    return frozenset(meaning(cell) for plan in plans for scale in scales.SCALES for cell in plan(scale))


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
    by_meaning: dict[str, list[Cell]] = {}
    for cell in grid_of(scale).cells:
        by_meaning.setdefault(meaning(cell), []).append(cell)
    return by_meaning


def _argument(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or '""'
    return str(value)


def _cells_table(runs: Sequence[Run[Cell]], versions: Names, machines: Names) -> Table:
    tones = {Status.DONE: Tone.PLAIN, Status.FAILED: Tone.ALERT}

    def state(run: Run[Cell]) -> Entry:
        return Entry(str(run.state), tone=tones.get(run.state.status, Tone.MISSING), hint=run.state.detail)

    def again(run: Run[Cell]) -> Entry:
        return code(command(run.cell)) if command(run.cell) else missing("no grid has it any more")

    return table(
        key="cells",
        caption="Every cell that has been begun: what it is, how far it is, and the command that runs it.",
        rows=runs,
        fields=[
            entry("cell", lambda run: code(run.cell.name), numeric=False),
            words("scale", lambda run: run.cell.scale),
            words("state", state),
            words("code", versions.of),
            words("environment", machines.of),
            words("loader", lambda run: getattr(run.cell, "loader", "")),
            words("precision", lambda run: getattr(run.cell, "precision", "")),
            amount("training, s", lambda run: run.result.get("train_seconds"), 1),
            amount("images/s", lambda run: run.result.get("images_per_second"), 0),
            entry("command", again, numeric=False),
        ],
        notes=(
            "A cell that has a result is not run again: add --records FOLDER to run it anew elsewhere. Times and "
            "speeds are those of the run on its machine, with whatever else ran there; they are no benchmark.",
        ),
    )


def _codes(run: Run[Cell]) -> list[dict[str, Any]]:
    """Versions of the code, the same for the same code whatever its patch is called in the record."""
    return [
        {
            "code": {name: value for name, value in version.items() if name != "diff"},
            "patch": run.patches.get(version.get("diff", ""), ""),
        }
        for version in run.codes
    ]


def _versions_table(versions: Names) -> Table:
    def commit(row: tuple[str, dict[str, Any]]) -> Entry:
        known = row[1]["code"].get("commit")
        return code(known[:COMMIT_DIGITS]) if known else missing("not known")

    def tree(row: tuple[str, dict[str, Any]]) -> Entry:
        version = row[1]["code"]
        if version.get("clean"):
            return Entry("clean")
        return missing(version.get("note") or "changed; difference below")

    return table(
        key="code",
        caption="Versions of the code that ran the cells.",
        rows=versions.items(),
        fields=[
            words("code", lambda row: row[0]),
            words("version", lambda row: row[1]["code"].get("version") or "not installed"),
            words("commit", commit),
            words("tree", tree),
            words("files not in git", lambda row: ", ".join(row[1]["code"].get("untracked", [])) or "none"),
        ],
    )


def _environments_table(machines: Names) -> Table:
    def device(row: tuple[str, dict[str, Any]]) -> str:
        cuda = f", CUDA {row[1]['cuda']}, cuDNN {row[1]['cudnn']}" if row[1].get("cuda") else ""
        return f"{row[1]['device']}{cuda}"

    def flags(row: tuple[str, dict[str, Any]]) -> str:
        exact = "deterministic algorithms" if row[1].get("deterministic_algorithms") else "not deterministic"
        return exact + (", TF32" if row[1].get("tf32") else "")

    return table(
        key="environments",
        caption="Machines and versions that ran the cells.",
        rows=machines.items(),
        fields=[
            words("environment", lambda row: row[0]),
            words("device", device),
            words("processor", lambda row: row[1]["processor"]),
            number("cores", lambda row: row[1]["cores"]),
            number("threads", lambda row: row[1]["threads"]),
            words("Python", lambda row: row[1]["python"]),
            words("system", lambda row: row[1]["platform"]),
            words("versions", lambda row: ", ".join(f"{name} {v}" for name, v in row[1]["packages"].items())),
            words("determinism", flags),
        ],
    )


EXHIBIT = Exhibit(
    "provenance",
    "Provenance",
    INTRODUCTION,
    whole=whole,
    folded="State, code, machine, command of every cell; every difference to a commit",
)
