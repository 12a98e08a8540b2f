"""Show the origin of every number: the state, code, machine and command of each cell.

Environments and versions of the code are listed once and referred to by a short name (E1, C1). A difference to a commit
is shown in full. Cells that have not been run are only counted, because a list of a thousand of them helps no reader.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter, methodcaller
from typing import Any

from reproduce.cells.kinds import TrainedCell
from reproduce.exhibits._exhibit import Folded, Sentence, Shown, declare, text_of
from reproduce.grids import scales
from reproduce.grids.grid import cells_of
from reproduce.grids.plans import PLANS
from reproduce.grids.rerun import command
from reproduce.presentation.content import Entry, Finding, Listing, Role, Table, code, missing
from reproduce.presentation.tables import entry, table, words
from reproduce.records.frames import Frames, machine_of
from reproduce.records.lost_commits import LOST
from reproduce.records.results import Results, meaning
from reproduce.records.run import Run, Status
from reproduce.text import count, some

LISTED = 3  # number of cells in a finding; the list of cells contains all
MACHINE = ("environment", "device", "cuda", "cudnn", "processor", "cores", "threads", "python", "platform")
ROLES = {Status.DONE: Role.PLAIN, Status.FAILED: Role.OURS, Status.PARTIAL: Role.MISSING}


def whole(frames: Frames) -> Iterator[Shown]:
    """Yield findings, versions of the code and environments, and the folded list of cells."""
    results = frames.results
    begun = [run for run in results.runs if run.state.status is not Status.NOT_RUN]
    versions = _name_repeated("C", (text for run in begun for text in _codes(run)))
    machines = _name_repeated("E", (text for run in begun for text in _machines(run)))
    codes = [{**json.loads(text), "code": name} for text, name in versions.items()]
    environments = [{**json.loads(text), "environment": name} for text, name in machines.items()]
    if begun:
        yield Sentence(_devices(begun))
    yield from _findings(results)
    if dirty := sum(not version.get("clean") for version in codes):
        unclean = f"{dirty} of {count(len(codes), 'version')} that ran {'was' if dirty == 1 else 'were'} not a clean"
        yield Finding(f"{unclean}, known commit; Provenance shows the difference.", Role.MISSING)
    yield table(
        key="environments",
        caption="Machines and versions that ran the cells.",
        rows=environments,
        fields=[
            *(words(name, methodcaller("get", name)) for name in MACHINE),
            words("versions", lambda row: ", ".join(f"{name} {v}" for name, v in row["packages"].items())),
            words("settings", _settings),
        ],
    )
    yield table(
        key="code",
        caption="Versions of the code that ran the cells.",
        rows=codes,
        fields=[
            words("code", itemgetter("code")),
            words("version", methodcaller("get", "version")),
            words("commit", lambda row: code(row["commit"][:10]) if row.get("commit") else missing("not known")),
            words(
                "tree", lambda row: "clean" if row.get("clean") else missing(row.get("note") or "changed; see below")
            ),
            words("files not in git", lambda row: ", ".join(row.get("untracked", [])) or "none"),
        ],
    )
    if results.replaced:
        yield Folded(_replaced(frames))
    yield Folded(
        table(
            key="cells",
            caption=text_of("provenance", "cells"),
            rows=begun,
            fields=[
                entry("cell", lambda run: code(run.cell.name), numeric=False),
                words("scale", lambda run: run.cell.scale),
                words("state", lambda run: Entry(str(run.state), role=ROLES[run.state.status], hint=run.state.detail)),
                words("code", lambda run: ", ".join(versions[text] for text in _codes(run))),
                words("environment", lambda run: ", ".join(machines[text] for text in _machines(run))),
                words("other command", _other_command),
            ],
        )
    )
    for patch, name in {version["patch"]: version["code"] for version in codes if version["patch"]}.items():
        yield Folded(Listing(f"patch-{name}", f"Difference of {name} to its commit", patch))


def _replaced(frames: Frames) -> Table:
    """Return a table of the earlier results of cells that were repeated, next to those in use."""

    def commits(run: Run[Any]) -> str:
        return ", ".join(str(version.get("commit"))[:10] for version in run.codes)

    # The second is None if the repetition was removed again.
    pairs = [(run, frames.by_name.get(run.cell.name)) for run in frames.results.replaced]

    return table(
        key="replaced",
        caption=text_of("provenance", "replaced"),
        rows=pairs,
        fields=[
            entry("cell", lambda pair: code(pair[0].cell.name), numeric=False),
            words("commit", lambda pair: commits(pair[0])),
            words("machine", lambda pair: machine_of(pair[0])),
            words("result", lambda pair: pair[0].state.reached),
            words("commit now", lambda pair: pair[1] and commits(pair[1])),
            words("machine now", lambda pair: pair[1] and machine_of(pair[1])),
            words("result now", lambda pair: pair[1] and pair[1].state.reached),
        ],
    )


def _other_command(run: Run[Any]) -> Entry | None:
    """Return the command that runs a cell, if it is not the usual one."""
    cell = run.cell
    known = command(cell)
    if known == f"python -m reproduce run {cell.scale} --only name={cell.name}":
        return None
    return code(known) if known else missing("none: no grid has the cell any more")


def _devices(runs: Sequence[Run[Any]]) -> str:
    """Count the cells that ran on CPUs and on GPUs. A cell that was stopped may have resumed on the other kind."""
    kinds = [{environment["device"] == "cpu" for environment in run.environments} for run in runs]
    both = f", {mixed} in part on a GPU and in part on a CPU" if (mixed := kinds.count({True, False})) else ""
    cells = kinds.count({True})
    return (
        f"{cells:,} {'cell' if cells == 1 else 'cells'} ran on CPUs, {kinds.count({False}) or 'none'} on a GPU{both}."
    )


def _settings(environment: Mapping[str, Any]) -> str:
    """Return the recorded settings of an environment that have no column."""
    rest = {name: value for name, value in environment.items() if name not in (*MACHINE, "packages")}
    return ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in sorted(rest.items()))


def _name_repeated(letter: str, texts: Iterable[str]) -> dict[str, str]:
    """Give short names (E1, E2 and so on) to repeated things, in order of appearance."""
    return {text: f"{letter}{place}" for place, text in enumerate(dict.fromkeys(texts), start=1)}


def _codes(run: Run[Any]) -> list[str]:
    """Return the versions of the code; a version does not depend on the name of its patch in the record."""
    versions = []
    for version in run.codes:
        patch = run.patches.get(version.get("diff", ""), b"").decode("utf-8", "replace")
        versions.append({**{name: value for name, value in version.items() if name != "diff"}, "patch": patch})
    return [json.dumps(version, sort_keys=True) for version in versions]


def _machines(run: Run[Any]) -> list[str]:
    return [json.dumps(environment, sort_keys=True) for environment in run.environments]


def _findings(results: Results) -> Iterator[Finding]:
    def runs_with(status: Status) -> list[Run[Any]]:
        return [run for run in results.runs if run.state.status is status]

    for reason in sorted({run.state.reason for run in runs_with(Status.FAILED)}):
        runs = [run for run in runs_with(Status.FAILED) if run.state.reason == reason]
        # A study may look for cells that diverge; running out of memory is never a result.
        looked_for = reason == "diverged" and {meaning(run.cell) for run in runs} <= {
            meaning(cell)
            for plan in ("depth", "stability")
            for scale in scales.SCALES
            for cell in cells_of(PLANS[plan], scale)
        }
        names = some([f"{run.cell.name} ({run.state.detail or run.state})" for run in runs], LISTED)
        yield Finding(
            f"{count(len(runs), 'cell')} failed: {reason}. {names}.", Role.PLAIN if looked_for else Role.ALERT
        )
    data = [run.result["data"] for run in results.runs if not run.result.get("data", {}).get("official", True)]
    if data:
        reasons = " ".join(dict.fromkeys(f"{origin['reason']}; {'; '.join(origin['deviations'])}" for origin in data))
        untold = sum("data" not in run.result for run in runs_with(Status.FAILED) if isinstance(run.cell, TrainedCell))
        undocumented = f"; {count(untold, 'failed cell')} did not write down which they used" * bool(untold)
        usual = re.sub(r" [(][^)]*[)]", "", Counter(origin["reason"] for origin in data).most_common(1)[0][0])
        values = {"cells": count(len(data), "cell"), "usual": usual, "undocumented": undocumented, "reasons": reasons}
        yield Finding(text_of("provenance", "unofficial", **values), Role.ALERT)
    lost = [run for run in results.runs if any(str(code.get("commit")) in LOST for code in run.codes)]
    if results.replaced:
        yield Finding(
            f"{count(len(results.replaced), 'result')} replaced by repetitions of their cells; both are listed below."
        )
    if lost:
        commits = sorted({str(code["commit"]) for run in lost for code in run.codes if str(code.get("commit")) in LOST})
        names = "; ".join(f"{commit[:10]} ({LOST[commit]})" for commit in commits)
        amounts = f"{count(len(lost), 'run')} {'names' if len(lost) == 1 else 'name'} {count(len(commits), 'commit')}"
        cells = some([run.cell.name for run in lost], 40)
        yield Finding(text_of("provenance", "lost", amounts=amounts, names=names, cells=cells), Role.ALERT)
    if partial := [f"{run.cell.name}: {run.state}" for run in runs_with(Status.PARTIAL)]:
        yield Finding(f"{count(len(partial), 'cell')} begun and not finished. {some(partial, LISTED)}.", Role.MISSING)
    if not_run := Counter(run.cell.scale for run in runs_with(Status.NOT_RUN)):
        by_scale = ", ".join(f"{amount} of “{scale}”" for scale, amount in not_run.items())
        yield Finding(f"{count(not_run.total(), 'planned cell')} not run: {by_scale}.", Role.MISSING)
    if results.problems:
        problems = "; ".join(f"{p.place}: {p.args[1]}" for p in results.problems)
        amount = count(len(results.problems), "record")
        yield Finding(f"{amount} damaged or foreign, left as found, left out of all tables. {problems}.", Role.ALERT)


EXHIBIT = declare("provenance", whole=whole)
