"""Volumes: finished records as lines of text, many records to a file.

A folder of five files for each record makes thousands of files, and almost all of them repeat the same environments and
code states. A finished record is therefore a block of lines in a volume. There is one volume for each scale, kind, data
set, network and method. Measurements without training have only one record per method, and these share a volume:

    <root>/<scale>/<kind>-<data set>-<network>-<method>.jsonl        with training, or without:
    <root>/<scale>/<kind>-<data set>-<network>.jsonl
        {"id":<identity>,"run":<run>,"t":"cell","schema":1,"name":...,"cell":{...},"environments":[...],"codes":[...]}
        {"id":<identity>,"run":<run>,"t":"epoch","epoch":1,...}      a line for each epoch
        {"id":<identity>,"run":<run>,"t":"result","status":"done",...}
    <root>/<scale>/provenance.jsonl
        {"id":<hash>,"environment":{...}}
        {"id":<hash>,"code":{...},"patch":"..."}                     the patch is empty if the tree was clean

A patch that is not printable UTF-8 is stored as `patch_base64` instead, byte for byte.

`id` is the identity of the cell; `run` is a hash of the block. A volume is read as a set of lines: the order of blocks
has no meaning, a repeated line has no effect, and a block that does not match its hash is not counted. Therefore git
can merge two branches that appended to one volume with the driver `union` (`reports/records/.gitattributes`), and an
append that was interrupted is completed by repeating it.

Each scale has a separate `provenance.jsonl`, so that runs of a scale that git ignores change no tracked file.

Results that were replaced by a repetition are in the folder `<root>/replaced`, a folder of records that counts nowhere.
"""

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reproduce.cells import own
from reproduce.cells.kinds import Cell, CellError, from_dict
from reproduce.records import reading
from reproduce.records.locks import Hold, hold
from reproduce.records.reading import parse_json
from reproduce.records.run import SCHEMA, RecordError, Run, check_schema, state_of, unreadable
from reproduce.records.storage import append_line, explain_full_disk, write_atomically

LIVE = "live"  # the folder of running cells, below the root
PROVENANCE = "provenance.jsonl"
REPLACED = "replaced"  # the folder of results that are not in use any more, below the root
LOCK = ".volumes"  # the folder in LIVE that a process holds while it changes volumes
PATIENCE_SECONDS = 60.0  # timeout of the lock; an append takes milliseconds

_LINE = re.compile(r'\{"id":"([0-9a-f]{64})","run":"(r[0-9a-f]{12})",')
_PROVENANCE_LINE = re.compile(r'\{"id":"([0-9a-f]{12})",')
_NAME = re.compile(r'"name":"([!#-~]+)"')  # printable, because it is shown before the line is checked
_RESERVED = {"id", "run", "t"}
_ENVIRONMENT, _CODE = "environment", "code"

_HEAD = reading.object_of(dict.fromkeys(("environments", "codes"), reading.list_of(reading.text)))
_PATCH, _PATCH_BASE64 = "patch", "patch_base64"

_Entry = Mapping[str, Any]


def path_of(cell: Cell, root: Path) -> Path:
    """Return the volume of the cell."""
    settings = cell.to_dict()
    names = ("kind", "dataset", "model", "method" if cell.epochs_expected else "")
    parts = [own.slug(str(settings[name])) for name in names if settings.get(name)]
    return root / cell.scale / f"{'-'.join(parts).lower()}.jsonl"


@dataclass(frozen=True)
class RecordLines:
    """The lines of one run in a volume."""

    identity: str
    run: str
    lines: tuple[str, ...]  # without `id` and `run`

    @property
    def name(self) -> str:
        """Name of the cell, or its identity if the line with the name is missing."""
        return next((found[1] for line in self.lines if (found := _NAME.search(line))), self.identity)

    @property
    def whole(self) -> bool:
        """Return whether every line is present and unchanged."""
        return _run_of(self.lines) == self.run


@dataclass(frozen=True)
class Volume:
    """One file of records, as it was read.

    Attributes:
        path: The file.
        blocks: The blocks of each cell, by its identity.
        damaged: Numbers of lines that belong to no block.

    """

    path: Path
    blocks: Mapping[str, Sequence[RecordLines]] = field(default_factory=dict)
    damaged: Sequence[int] = ()

    def runs(self, identity: str) -> list[Run[Cell]]:
        """Return the complete runs of a cell.

        Raises:
            RecordError: A run belongs to a cell that this version does not know, or to another cell, or is damaged.

        """
        blocks = [block for block in self.blocks.get(identity, ()) if block.whole]
        provenance = _provenance(self.path.with_name(PROVENANCE)) if blocks else {}
        return [self._run(block, provenance) for block in blocks]

    def problems(self, others: Iterable[Run[Cell]]) -> Iterator[RecordError]:
        """Yield an error for each damaged line and each incomplete block, unless it belongs to one of `others`."""
        for number in self.damaged:
            yield RecordError(self.path, f"line {number} is damaged: it is not a line of a record", "", self.path.name)
        yield from self.incomplete([block for blocks in self.blocks.values() for block in blocks], others)

    def incomplete(self, blocks: Iterable[RecordLines], others: Iterable[Run[Cell]]) -> Iterator[RecordError]:
        """Yield an error for each incomplete one of these blocks, unless it belongs to one of `others`."""
        parts = [block for block in blocks if not block.whole]
        known = {name for run in others for name in _names(run)} if parts else set()
        for block in parts:
            if block.run not in known:
                message = f"the lines of {block.name}, run {block.run}, were edited or are incomplete"
                yield RecordError(self.path, message, record=block.name)

    def _run(self, block: RecordLines, provenance: Mapping[str, _Entry]) -> Run[Cell]:
        name = block.name

        def wrong(message: str) -> RecordError:
            return RecordError(self.path, message, record=name)

        try:
            lines = [parse_json("{" + line) for line in block.lines]
        except ValueError as error:
            raise wrong(f"{name} is damaged: {error}") from error
        head, last = lines[0], lines[-1]
        check_schema(head.get("schema"), self.path, name)
        if [line.get("t") for line in lines] != ["cell", *["epoch"] * (len(lines) - 2), "result"]:
            raise wrong(f"{name} is damaged: it is not a line of a cell, then those of epochs, and one of a result")
        if not _HEAD(head):
            raise wrong(f"{name} is damaged: its environments and codes are not lists of lines of {PROVENANCE}")
        try:
            cell = from_dict(head.get("cell", {}))
        except CellError as error:
            raise wrong(f"{name} is no cell of this version ({error})") from error
        if cell.identity != block.identity:
            raise wrong(f"the identity of {name} does not match its configuration")
        for key, kind in [*((key, _ENVIRONMENT) for key in head["environments"]), *((k, _CODE) for k in head["codes"])]:
            if kind not in provenance.get(key, {}):
                message = f"{name} refers to the {kind} {key}, which is missing in {PROVENANCE} or damaged there"
                raise RecordError(self.path, message, "Copy that file, too, from where the record is from", name)
        for line in lines:
            del line["t"]
        metrics = tuple(lines[1:-1])
        fixed = {"schema": SCHEMA, "identity": block.identity, "kind": cell.kind}
        state = state_of(cell, self.path, {**fixed, **last, **fixed}, len(metrics))
        machines = tuple(provenance[key][_ENVIRONMENT] for key in head["environments"])
        codes, patches = _name_patches([provenance[key] for key in head["codes"]])
        return Run(cell, state, metrics, machines, codes, patches, self.path)


_READ: dict[Path, tuple[tuple[int, ...], Any]] = {}  # signature and content of each file that was read


def read(path: Path) -> Volume:
    """Read a volume; a missing one is empty. A file that has not changed since the last call is not read again.

    Raises:
        RecordError: The file cannot be read.

    """
    return _read_cached(path, _parse) or Volume(path)


def contains(cell: Cell, root: Path) -> bool:
    """Return whether the volume contains lines of the cell, including damaged ones."""
    return cell.identity in read(path_of(cell, root)).blocks


def find_run(cell: Cell, root: Path) -> Run[Cell] | None:
    """Return the run of the cell in its volume, or None.

    Raises:
        RecordError: Two runs have different results, or a run cannot be read.

    """
    return require_one_result(read(path_of(cell, root)).runs(cell.identity))


def scan(root: Path, others: Sequence[Run[Cell]]) -> tuple[list[Run[Cell]], list[RecordError]]:
    """Read all volumes below `root`.

    Args:
        root: The folder of records.
        others: The runs in folders: if an append of one of them was interrupted, its next publication repairs it.

    Returns:
        The runs that can be read, and an error for everything else.

    """
    found: list[Run[Cell]] = []
    problems: list[RecordError] = []
    names = (Path(entry.path) for entry in listing(root, []) if entry.name.endswith(".jsonl"))
    for path in sorted(path for path in names if path.name != PROVENANCE):
        try:
            volume = read(path)
        except RecordError as error:
            problems.append(error)
            continue
        problems += volume.problems(others)
        for identity in volume.blocks:
            try:
                runs = volume.runs(identity)
                if runs and path != path_of(runs[0].cell, root):
                    name, place = runs[0].cell.name, path_of(runs[0].cell, root)
                    fix = "Rename the file, or move the lines there"
                    raise RecordError(path, f"{name} belongs in {place}, not here", fix, name)
                found += runs
            except RecordError as error:
                problems.append(error)
    return found, problems


def listing(root: Path, problems: list[RecordError]) -> list[os.DirEntry[str]]:
    """Return all entries of the folders below `root`, in which records and volumes are.

    Args:
        root: The folder of records.
        problems: Receives an error for each folder that cannot be read, which `glob` would leave out.

    """

    def entries(folder: Path) -> list[os.DirEntry[str]]:
        try:
            return list(os.scandir(folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            problems.append(unreadable(folder, error))
            return []

    scales = [scale for scale in entries(root) if scale.is_dir() and scale.name[0] != "." and scale.name != REPLACED]
    return [entry for scale in scales for entry in entries(Path(scale.path))]


def require_one_result(runs: Iterable[Run[Cell]]) -> Run[Cell] | None:
    """Return the first of several finished runs of one cell, or None.

    Raises:
        RecordError: They have different results.

    """
    first: Run[Cell] | None = None
    for run in runs:
        first = first or run
        if run.content != first.content:
            raise conflict(first, run)
    return first


def conflict(first: Run[Any], second: Run[Any]) -> RecordError:
    """Return the error that two runs of one cell have different results."""
    message = f"{first.cell.name} has two different results: {first.state.reached} and {second.state.reached}"
    if first.place != second.place:
        message += f" in {second.place}"
    fix = "Neither is counted; remove one of them"
    if first.place.suffix == ".jsonl":
        return RecordError(first.place, message, fix, first.cell.name)
    return RecordError(first.place / "result.json", message, fix)


def check(cell: Cell, root: Path, known: Iterable[Run[Cell]] = ()) -> None:
    """Check that the volume has no damaged lines of a cell of which it has no run.

    Args:
        cell: The cell.
        root: The folder of records.
        known: Runs whose interrupted append is not damage, because it will be repeated.

    Raises:
        RecordError: The volume has damaged lines.

    """
    volume = read(path_of(cell, root))
    for error in volume.incomplete(volume.blocks.get(cell.identity, ()), known):
        raise error


def publish(run: Run[Cell], root: Path) -> RecordError | None:
    """Append a finished run to its volume unless the volume contains a result of its cell.

    A process that is killed at any point leaves the volume readable, and the next call completes what is missing.

    Returns:
        None if the volume contains this result now, else the conflict with the other result that it contains.

    Raises:
        LockedError: Another process holds the volumes for too long.
        LockLostError: Another process took the volumes over.
        StorageFullError: There was no room; the volume is unchanged.
        RecordError: The volume cannot be read.

    """
    with hold(root / LIVE / LOCK, PATIENCE_SECONDS) as held:
        known = read(path_of(run.cell, root)).runs(run.cell.identity)
        if known:
            return next((conflict(other, run) for other in known if other.content != run.content), None)
        _append(path_of(run.cell, root), _store_provenance(run, root, held))
    return None


def replace(run: Run[Cell], root: Path) -> None:
    """Put a finished run in the place of other results of its cell, which move to the folder of replaced ones.

    A process that is killed at any point leaves one of them in use, and repeating the call completes the move.

    Raises:
        LockedError: As for `publish`.
        LockLostError: As for `publish`.
        StorageFullError: As for `publish`.
        RecordError: As for `publish`.

    """
    path = path_of(run.cell, root)
    with hold(root / LIVE / LOCK, PATIENCE_SECONDS) as held:
        for other in read(path).runs(run.cell.identity):
            _append(path_of(run.cell, root / REPLACED), _store_provenance(other, root / REPLACED, held))
        _rewrite(path, run.cell, _store_provenance(run, root, held), held)


def remove(cell: Cell, root: Path) -> None:
    """Remove all runs of a cell from its volume, so that it can run again.

    Raises:
        LockedError: As for `publish`.
        LockLostError: As for `publish`.
        StorageFullError: As for `publish`.

    """
    path = path_of(cell, root)
    if cell.identity not in read(path).blocks:
        return
    with hold(root / LIVE / LOCK, PATIENCE_SECONDS) as held:
        _rewrite(path, cell, (), held)


def _rewrite(path: Path, cell: Cell, lines: Iterable[str], held: Hold) -> None:
    """Write a volume with these lines in the place of those of a cell."""
    start = f'{{"id":"{cell.identity}",'.encode()
    others = [line for line in _complete_lines(path.read_bytes()) if not line.startswith(start)]
    held.check()
    write_atomically(path, b"".join(line + b"\n" for line in (*others, *map(str.encode, lines))))


def _store_provenance(run: Run[Cell], root: Path, held: Hold) -> list[str]:
    """Append the provenance of a run that is not there yet, and return the run's lines."""
    path = path_of(run.cell, root)
    file = path.with_name(PROVENANCE)
    entries, lines = _lines(run)
    with explain_full_disk(f"to write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
    there = _provenance(file)
    held.check()
    _append(file, [line for key, line in entries.items() if key not in there])
    held.check()
    return lines


# --- lines


def _lines(run: Run[Cell]) -> tuple[dict[str, str], list[str]]:
    """Return the lines of a run: those of the provenance by their hashes, and the block.

    Raises:
        RecordError: A value has a reserved name, or is not finite.

    """
    try:
        return _write_lines(run)
    except ValueError as error:
        raise run.error("result.json", f"cannot be written to a volume: {error}") from error


def _write_lines(run: Run[Cell]) -> tuple[dict[str, str], list[str]]:
    environments = [_dumps({_ENVIRONMENT: environment}) for environment in run.environments]
    codes = []
    for code in run.codes:
        values = {name: value for name, value in code.items() if name != "diff"}
        codes.append(_dumps({_CODE: values, **_pack_patch(run.patches.get(code.get("diff", ""), b""))}))
    entries = {_hash([text]): text for text in (*environments, *codes)}
    head = {
        "t": "cell",
        "schema": SCHEMA,
        "name": run.cell.name,
        "cell": run.cell.to_dict(),
        "environments": [_hash([text]) for text in environments],
        "codes": [_hash([text]) for text in codes],
    }
    values = {name: value for name, value in run.result.items() if name not in ("schema", "identity", "kind")}
    for line in (*run.metrics, values):
        if taken := _RESERVED & line.keys():
            raise ValueError(f"{', '.join(sorted(taken))} cannot be the name of a value")
    block = [head, *({"t": "epoch", **line} for line in run.metrics), {"t": "result", **values}]
    texts = list(map(_dumps, block))
    start = f'{{"id":"{run.cell.identity}","run":"{_run_of(texts)}",'
    return {key: f'{{"id":"{key}",{text}' for key, text in entries.items()}, [start + text for text in texts]


def _names(run: Run[Cell]) -> Iterator[str]:
    """Yield the name of the block of a run, if it can be published."""
    if run.state.finished:
        with suppress(RecordError):
            found = _LINE.match(_lines(run)[1][0])
            assert found is not None
            yield found[2]


def _dumps(values: _Entry) -> str:
    """Return JSON without the opening brace."""
    return json.dumps(values, separators=(",", ":"), allow_nan=False)[1:]


def _hash(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def _run_of(lines: Iterable[str]) -> str:
    """Return the name of the run with these lines, a hash that no JSON reader mistakes for a number."""
    return f"r{_hash(lines)}"


def _pack_patch(patch: bytes) -> dict[str, str]:
    """Return a patch in a form that JSON can hold."""
    try:
        words = patch.decode()
    except UnicodeDecodeError:
        words = "\0"
    return {_PATCH_BASE64: base64.b64encode(patch).decode()} if reading.UNPRINTABLE.search(words) else {_PATCH: words}


def _unpack_patch(entry: _Entry) -> bytes:
    """Return the patch of a code state.

    Raises:
        ValueError: It is not base64.

    """
    return base64.b64decode(entry[_PATCH_BASE64], validate=True) if _PATCH_BASE64 in entry else entry[_PATCH].encode()


def _name_patches(entries: Iterable[_Entry]) -> tuple[tuple[dict[str, Any], ...], dict[str, bytes]]:
    """Return versions of the code and their patches by name, as a record's folder names them."""
    codes: list[dict[str, Any]] = []
    names: dict[bytes, str] = {}
    for number, entry in enumerate(entries, start=1):
        patch = _unpack_patch(entry)
        diff = {"diff": names.setdefault(patch, f"diff-{number}.patch")} if patch else {}
        codes.append({**entry[_CODE], **diff})
    return tuple(codes), {name: patch for patch, name in names.items()}


# --- files


def _read_cached(path: Path, parse: Any) -> Any:
    """Return the result of `parse` for the file's lines, or None if there is no file."""
    try:
        reading.check_file(path)
        with path.open("rb") as file:  # opened each time, so that a network file system shows what others have appended
            status = os.fstat(file.fileno())
        signature = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if path not in _READ or _READ[path][0] != signature:
            texts = [line.decode(errors="replace") for line in _complete_lines(reading.read_file(path))]
            _READ[path] = signature, parse(path, texts)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error, record=path.name) from error
    except ValueError as error:
        raise RecordError(path, f"cannot be read: {error}", record=path.name) from error
    return _READ[path][1]


def _complete_lines(data: bytes) -> list[bytes]:
    """Return the lines of a file, without the partial last line of an interrupted append."""
    *lines, last = data.split(b"\n")
    return [*lines, last] if _is_json(last) else lines


def _is_json(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line.decode(errors="replace")), dict)
    except (ValueError, RecursionError):
        return False


def _parse(path: Path, texts: Sequence[str]) -> Volume:
    lines: dict[tuple[str, str], dict[str, None]] = {}
    damaged = []
    for number, text in enumerate(texts, start=1):
        if start := _LINE.match(text):
            lines.setdefault((start[1], start[2]), {})[text[start.end() :]] = None
        else:
            damaged.append(number)
    blocks: dict[str, list[RecordLines]] = {}
    for (identity, run), block in lines.items():
        blocks.setdefault(identity, []).append(RecordLines(identity, run, tuple(block)))
    return Volume(path, blocks, damaged)


def _provenance(path: Path) -> Mapping[str, _Entry]:
    """Return environments and code states by hash; a line that does not match its hash is left out."""

    def parse(_: Path, texts: Sequence[str]) -> dict[str, _Entry]:
        starts = ((text, _PROVENANCE_LINE.match(text)) for text in texts)
        parts = ((start[1], text[start.end() :]) for text, start in starts if start)
        entries = {key: _entry(rest) for key, rest in parts if _hash([rest]) == key}
        return {key: entry for key, entry in entries.items() if entry is not None}

    return _read_cached(path, parse) or {}


def _entry(rest: str) -> _Entry | None:
    """Return an environment or a code state, or None if it is neither, as only another program writes it."""
    try:
        entry = parse_json("{" + rest)
        if isinstance(entry.get(_ENVIRONMENT), dict):
            return {_ENVIRONMENT: entry[_ENVIRONMENT]}
        if not isinstance(entry.get(_CODE), dict) or "diff" in entry[_CODE]:
            return None
        _unpack_patch(entry)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return entry  # type: ignore[no-any-return]  # an object, as its text begins with a brace


def _append(path: Path, lines: Sequence[str]) -> None:
    """Append lines after the last complete one, in one write.

    Raises:
        StorageFullError: There was no room.

    """
    if not lines:
        return
    with explain_full_disk(f"to write {path}"):
        if not path.exists():
            write_atomically(path, b"")  # flushes the folder: a crash could lose the file, but not the record's folder
        with path.open("ab+", buffering=0) as file:
            file.seek(0)
            data = file.read()
            last = data.rpartition(b"\n")[2]
            if last and _is_json(last):
                file.write(b"\n")
            elif last:
                file.truncate(len(data) - len(last))
        append_line(path, "\n".join(lines))
