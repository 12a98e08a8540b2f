"""Where every number comes from: cell by cell the state, the code, the machine and the command that repeats it.

Environments and versions of the code are listed once and referred to by a short name (E1, C1); a difference to a
commit is shown whole. Cells that have not been run are counted, not listed: of a thousand lines that say "not run"
nobody reads one.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from reproduce.exhibits._exhibit import Exhibit, Folded, Sentence, Shown
from reproduce.grids import scales
from reproduce.grids.plans import PLANS
from reproduce.grids.rerun import command
from reproduce.records.frames import Frames
from reproduce.records.record import Status
from reproduce.records.results import Results, Run, meaning
from reproduce.show.content import Entry, Finding, Listing, Tone, code, missing
from reproduce.show.tables import entry, number, table, words
from reproduce.words import count, some

LISTED = 3  # of cells that a finding names; the list of cells has all
GONE = missing("no grid has it any more")
CHANGED = "changed; difference below"
TONES = {Status.DONE: Tone.PLAIN, Status.FAILED: Tone.ALERT, Status.PARTIAL: Tone.MISSING}
INTRODUCTION = (
    "Every number above is computed from records: a folder of plain text for each cell, with its whole "
    "configuration, the environment, the commit (and the difference to it, if the tree was not clean) and the "
    "metrics of every epoch. The list of cells at the end names for each the code (C), the environment (E) and the "
    "command that runs it and no other."
)


def whole(frames: Frames) -> Iterator[Shown]:
    """What needs attention, code, environments, and folded the cells."""
    results = frames.results
    begun = [run for run in results.runs if run.state.status is not Status.NOT_RUN]
    versions = _named("C", (text for run in begun for text in _codes(run)))
    machines = _named("E", (text for run in begun for text in _machines(run)))
    codes = [(name, json.loads(text)) for text, name in versions.items()]
    devices = Counter(environment["device"] for run in begun for environment in run.environments[-1:])
    gpus = devices.total() - devices["cpu"]
    if begun:
        yield Sentence(f"{devices['cpu']} cells ran on CPUs, {gpus or 'none'} on a GPU.")
    if begun and not gpus:
        yield Finding("Not run on a GPU: every number of this report was measured on a CPU.", Tone.MISSING)
    yield from _findings(results)
    if results.problems:
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
    if dirty := sum(not version.get("clean") for _, version in codes):
        yield Finding(
            f"Code: {dirty} of {count(len(codes), 'version')} that ran {'was' if dirty == 1 else 'were'} not a clean, "
            "known commit; Provenance shows the difference.",
            Tone.MISSING,
        )
    yield table(
        key="code",
        caption="Versions of the code that ran the cells.",
        rows=codes,
        fields=[
            words("code", lambda row: row[0]),
            words("version", lambda row: row[1].get("version") or "not installed"),
            words(
                "commit", lambda row: code(commit[:10]) if (commit := row[1].get("commit")) else missing("not known")
            ),
            words("tree", lambda row: "clean" if row[1].get("clean") else missing(row[1].get("note") or CHANGED)),
            words("files not in git", lambda row: ", ".join(row[1].get("untracked", [])) or "none"),
        ],
    )
    yield table(
        key="environments",
        caption="Machines and versions that ran the cells.",
        rows=[(name, json.loads(text)) for text, name in machines.items()],
        fields=[
            words("environment", lambda row: row[0]),
            words("device", lambda row: row[1]["device"]),
            words("CUDA", lambda row: row[1].get("cuda")),
            words("cuDNN", lambda row: row[1].get("cudnn")),
            words("processor", lambda row: row[1]["processor"]),
            number("cores", lambda row: row[1]["cores"]),
            number("threads", lambda row: row[1]["threads"]),
            words("Python", lambda row: row[1]["python"]),
            words("system", lambda row: row[1]["platform"]),
            words("versions", lambda row: ", ".join(f"{name} {v}" for name, v in row[1]["packages"].items())),
            words("deterministic algorithms", lambda row: "yes" if row[1].get("deterministic_algorithms") else "no"),
            words("TF32", lambda row: "yes" if row[1].get("tf32") else "no"),
        ],
    )
    yield Folded(
        table(
            key="cells",
            caption="Every cell that has been begun: what it is, how far it is, and the command that runs it.",
            rows=begun,
            fields=[
                entry("cell", lambda run: code(run.cell.name), numeric=False),
                words("scale", lambda run: run.cell.scale),
                words("state", lambda run: Entry(str(run.state), tone=TONES[run.state.status], hint=run.state.detail)),
                words("code", lambda run: ", ".join(versions[text] for text in _codes(run))),
                words("environment", lambda run: ", ".join(machines[text] for text in _machines(run))),
                words("command", lambda run: code(again) if (again := command(run.cell)) else GONE),
            ],
            notes=("A cell that has a result is not run again: add --records FOLDER to run it anew elsewhere.",),
        )
    )
    patches = {version["patch"]: name for name, version in codes if version["patch"]}
    for patch, name in patches.items():
        yield Folded(Listing(f"patch-{name}", f"Difference of {name} to its commit", patch))


def _named(letter: str, texts: Iterable[str]) -> dict[str, str]:
    """Short names (E1, E2 and so on) for things that repeat, in the order in which they are met."""
    return {text: f"{letter}{place}" for place, text in enumerate(dict.fromkeys(texts), start=1)}


def _codes(run: Run[Any]) -> list[str]:
    """Versions of the code, the same for the same code whatever its patch is called in the record."""
    patched = ({**version, "patch": run.patches.get(version.get("diff", ""), "")} for version in run.codes)
    return [json.dumps({name: of for name, of in each.items() if name != "diff"}, sort_keys=True) for each in patched]


def _machines(run: Run[Any]) -> list[str]:
    return [json.dumps(environment, sort_keys=True) for environment in run.environments]


def _findings(results: Results) -> Iterator[Finding]:
    by_status: dict[Status, list[Run[Any]]] = {status: [] for status in Status}
    for run in results.runs:
        by_status[run.state.status].append(run)
    for reason in sorted({run.state.reason for run in by_status[Status.FAILED]}):
        own = [run for run in by_status[Status.FAILED] if run.state.reason == reason]
        # That a cell diverges may be just what a study looks for; that memory ran out is never a result.
        looked_for = reason == "diverged" and all(meaning(run.cell) in _may_diverge() for run in own)
        names = some([f"{run.cell.name} ({run.state.detail or run.state})" for run in own], LISTED)
        yield Finding(f"{count(len(own), 'cell')} failed: {reason}. {names}.", Tone.PLAIN if looked_for else Tone.ALERT)
    data = [run.result["data"] for run in results.runs if not run.result.get("data", {}).get("official", True)]
    if data:
        reasons = " ".join(dict.fromkeys(f"{of['reason']}; {'; '.join(of['deviations'])}" for of in data))
        yield Finding(f"{count(len(data), 'cell')} used data that are not the official ones. {reasons}", Tone.ALERT)
    if partial := [f"{run.cell.name}: {run.state}" for run in by_status[Status.PARTIAL]]:
        yield Finding(f"{count(len(partial), 'cell')} begun and not finished. {some(partial, LISTED)}.", Tone.MISSING)
    if not_run := Counter(run.cell.scale for run in by_status[Status.NOT_RUN]):
        by_scale = ", ".join(f"{amount} of “{scale}”" for scale, amount in not_run.items())
        yield Finding(f"{count(not_run.total(), 'planned cell')} not run: {by_scale}.", Tone.MISSING)
    if results.problems:
        amount_of = count(len(results.problems), "record")
        yield Finding(f"{amount_of} damaged or foreign, left as found and left out of all tables.", Tone.ALERT)


@cache
def _may_diverge() -> frozenset[str]:
    """The cells of the studies that ask where training breaks."""
    plans = (PLANS["depth"], PLANS["stability"])
    return frozenset(meaning(cell) for plan in plans for scale in scales.SCALES for cell in plan(scale))


EXHIBIT = Exhibit(
    "provenance",
    "Provenance",
    INTRODUCTION,
    whole=whole,
    folded="State, code, machine, command of every cell; every difference to a commit",
)
