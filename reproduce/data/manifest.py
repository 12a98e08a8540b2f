"""What `prepare` found and wrote, as a JSON file beside the data: the record that the data are checked against.

A folder with a `train.beton` in it says nothing of where that came from, whether it is whole, or whether it is the
official data set. The manifest does, and it is the last file to be written.

    <root>/<name>/
        manifest.json                   this
        train.beton, test.beton         all images and labels, in FFCV's format (`reproduce.data.beton`)
        train.jsonl, test.jsonl         of data sets of image files alone: [label, bytes, path below the source] a line
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from reproduce.cells.catalogue import TORCHVISION, Channels, Dataset, again
from reproduce.data.errors import DataError
from reproduce.records.reading import parse_json, read_file

NAME = "manifest.json"
SCHEMA = 1
SPLITS = ("train", "test")
BLOCK = 1 << 20  # bytes read at a time

Progress = Callable[[int], object]  # is told how many more bytes or images are done


@dataclass(frozen=True)
class Split:
    """A training or test set: the number of its samples, and of those of each class."""

    samples: int
    histogram: tuple[int, ...]


def deviating_counts(dataset: Dataset, splits: Mapping[str, Split]) -> list[str]:
    """In which numbers of images these are not the official ones, as sentences."""
    officially = {"train": dataset.train_samples, "test": dataset.test_samples}
    return [
        f"{splits[name].samples:,} {name} images, officially {official:,}"
        for name, official in officially.items()
        if splits[name].samples != official
    ]


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a source turned out to hold."""

    splits: Mapping[str, Split]  # by name, `train` and `test`
    #: Of each channel, in 0..1, to normalise with.
    mean: Channels
    deviation: Channels
    deviations: tuple[str, ...] = ()  # in what it is not the official data set; empty if it is
    notes: tuple[str, ...] = ()  # what else a person should know, such as how many files were passed over

    @property
    def num_classes(self) -> int:
        return len(self.splits["train"].histogram)


@dataclass(frozen=True, kw_only=True)
class Written:
    """A file that `prepare` made: its size in bytes, and its SHA-256."""

    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a prepared folder holds and where it came from, as `manifest.json` in it says."""

    dataset: str  # its name in the catalogue
    source: str  # the folder that it was made from
    findings: Findings
    reason: str  # why data that are not official were prepared, in the words of who did it
    files: Mapping[str, Written]  # what was written, by name

    @property
    def official(self) -> bool:
        """Whether it is the official data set, whole."""
        return not self.findings.deviations

    @property
    def has_beton(self) -> bool:
        """Whether the images themselves are there, not only a list of files that lie elsewhere."""
        return all(f"{split}.beton" in self.files for split in SPLITS)

    def provenance(self) -> dict[str, Any]:
        """What a result on these data has to say of them; nothing in it depends on where they lie.

        `files` has the SHA-256 of each; `official` is whether it is the official data set, and if not, `deviations` and
        `reason` say more.
        """
        return {
            **built_in(self.dataset),
            "files": {name: file.sha256 for name, file in self.files.items()},
            "official": self.official,
            "deviations": list(self.findings.deviations),
            "reason": self.reason,
        }

    def to_json(self) -> str:
        """Text for the file; `read` is the inverse."""
        return json.dumps({"schema": SCHEMA, **dataclasses.asdict(self)}, indent=1) + "\n"


def built_in(dataset: str) -> dict[str, Any]:
    """`Manifest.provenance` of a data set that comes with a dependency."""
    return {"dataset": dataset, "files": {}, "official": True, "deviations": [], "reason": ""}


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two provenances are of the same data; why somebody took unofficial ones may be said in other words."""
    apart = {"reason": "", "skipped": 0}  # older ones count images that were left out
    return {**one, **apart} == {**other, **apart}


def is_in(folder: Path) -> bool:
    """Whether the folder has a manifest. Raises: DataError: nobody lets us look."""
    try:
        (folder / NAME).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _closed(folder, error) from error
    return True


def _closed(path: Path, error: OSError) -> DataError:
    return DataError(path, f"cannot be read ({error.strerror})", "Let this user read it, or choose another --data-root")


def read(folder: Path) -> Manifest:
    """The manifest of a prepared data set.

    Raises: DataError: there is none, it cannot be read, or it is damaged or of another version.
    """
    path = folder / NAME
    try:
        values = parse_json(read_file(path))
        if (schema := values.pop("schema")) != SCHEMA:
            raise DataError(path, f"is of format {schema!r}, this version reads format {SCHEMA}", again(folder))
        findings = values.pop("findings")
        histograms = {name: tuple(map(int, findings["splits"][name]["histogram"])) for name in SPLITS}
        splits = {name: Split(findings["splits"][name]["samples"], counts) for name, counts in histograms.items()}
        left_out = (f"without {path}" for path in findings.get("skipped", ()))  # as older manifests say
        deviations = (*findings["deviations"], *left_out)
        channels = {name: tuple(findings[name]) for name in ("mean", "deviation")}
        notes = tuple(map(str, findings.get("notes", ())))  # which older manifests have not
        content = Findings(splits=splits, deviations=deviations, notes=notes, **channels)
        files = {name: Written(**file) for name, file in values.pop("files").items()}
        return Manifest(findings=content, files=files, **values)
    except FileNotFoundError:
        raise DataError(folder, "holds no prepared data set (no manifest.json)", again(folder)) from None
    except OSError as error:
        raise _closed(path, error) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(path, f"is damaged ({error!r})", again(folder)) from error


def obstacle(folder: Path, manifest: Manifest, loader: str) -> DataError | None:
    """What keeps this loader from delivering the data set; None if nothing does."""
    if loader == TORCHVISION and not Path(manifest.source).is_dir():
        return DataError(
            folder,
            f"the loader is {loader}, and the folder in which the images lay, {manifest.source}, is not there",
            f"Bring it back, or name another one: {again(folder)}",
        )
    if loader != TORCHVISION and not manifest.has_beton:
        fix = f"Prepare it without --no-beton, or choose --loader {TORCHVISION}"
        return DataError(folder, f"the loader is {loader}, but the images were only listed, not copied", fix)
    return None


def sha256(path: Path, progress: Progress = lambda _: None) -> str:
    """SHA-256 of a file; `progress` is told of bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            progress(len(block))
    return digest.hexdigest()


def problems(folder: Path, manifest: Manifest, *, contents: bool, progress: Progress = lambda _: None) -> list[str]:
    """In what the files in `folder` are not those that their manifest records: none, one or more sentences.

    With `contents` they are read whole, `progress` is told of the bytes, and SHA-256 compared; otherwise only that they
    are there and how large they are.
    """
    differences = []
    for name, recorded in manifest.files.items():
        path = folder / name
        try:
            if problem := _missing_or_other_size(path, recorded.bytes):
                differences.append(problem)
            elif contents and (digest := sha256(path, progress)) != recorded.sha256:
                differences.append(
                    f"{path} is of other content than its record says (SHA-256 {digest}, not {recorded.sha256})"
                )
        except OSError as error:
            differences.append(f"{path} cannot be read ({error.strerror})")
    return differences


def _missing_or_other_size(path: Path, size: int) -> str:
    try:
        here = path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return f"{path} is missing"
    return "" if here == size else f"{path} has {here:,} bytes, its record says {size:,}"


# --- the lists of image files


class ImageFile(NamedTuple):
    """One file of a data set: its path below the source, its label from 0 on, and its size in bytes."""

    path: str
    label: int
    bytes: int


def read_list(path: Path) -> list[ImageFile]:
    """The files of a training or test set, as they were listed. Raises: DataError: the list is damaged."""
    try:
        with path.open(encoding="utf-8") as lines:
            return [ImageFile(name, label, size) for label, size, name in map(json.loads, lines)]
    except (ValueError, TypeError, FileNotFoundError) as error:
        raise DataError(path, f"is damaged ({error})", "Prepare the data set again") from error


def changed(folder: Path, manifest: Manifest) -> list[str]:
    """Listed files that are no longer in the source, or of another size, as sentences. Raises: DataError."""
    listed = (file for split in SPLITS for file in read_list(folder / f"{split}.jsonl"))
    states = (_missing_or_other_size(Path(manifest.source, file.path), file.bytes) for file in listed)
    return [state for state in states if state]
