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
from typing import Any

from reproduce.cells.catalogue import Channels, again
from reproduce.data.errors import DataError

NAME = "manifest.json"
SCHEMA = 1
SPLITS = ("train", "test")
BLOCK = 1 << 20  # bytes read at a time

Progress = Callable[[int], object]  # is told how many more bytes or images are done


@dataclass(frozen=True)
class Split:
    """A training or test set.

    Attributes:
        samples: N.
        histogram: samples of each class.

    """

    samples: int
    histogram: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a source turned out to hold.

    Attributes:
        splits: by name, `train` and `test`.
        mean, deviation: of each channel, in 0..1, to normalise with.
        fingerprint: hash of the source: of its contents or, for image files, of their names and sizes.
        deviations: in what it is not the official data set; empty if it is.
        skipped: unreadable images that were left out, as paths below the source.
        notes: what else is worth a line.

    """

    splits: Mapping[str, Split]
    mean: Channels
    deviation: Channels
    fingerprint: str
    deviations: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def num_classes(self) -> int:
        """Labels are 0 … num_classes - 1."""
        return len(self.splits["train"].histogram)


@dataclass(frozen=True, kw_only=True)
class Written:
    """A file that `prepare` made: its size in bytes, and its SHA-256."""

    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """See the module.

    Attributes:
        dataset: its name in the catalogue.
        source: the folder that it was made from.
        findings: what was found there.
        reason: why data that are not official were prepared, in the words of who did it.
        files: what was written, by name.

    """

    dataset: str
    source: str
    findings: Findings
    reason: str
    files: Mapping[str, Written]

    @property
    def official(self) -> bool:
        """Whether it is the official data set, whole."""
        return not self.findings.deviations and not self.findings.skipped

    @property
    def has_beton(self) -> bool:
        """Whether the images themselves are there, not only a list of files that lie elsewhere."""
        return all(f"{split}.beton" in self.files for split in SPLITS)

    def provenance(self) -> dict[str, Any]:
        """What a result on these data has to say of them; nothing in it depends on where they lie.

        `files` has the SHA-256 of each; `official` is whether it is the official data set, and if not, `deviations`,
        `skipped` (a number) and `reason` say more.
        """
        return {
            "dataset": self.dataset,
            "files": {name: file.sha256 for name, file in self.files.items()},
            "official": self.official,
            "deviations": list(self.findings.deviations),
            "skipped": len(self.findings.skipped),
            "reason": self.reason,
        }

    def to_json(self) -> str:
        """Text for the file; `read` is the inverse."""
        return json.dumps({"schema": SCHEMA, **dataclasses.asdict(self)}, indent=1) + "\n"


def built_in(dataset: str) -> dict[str, Any]:
    """`Manifest.provenance` of a data set that comes with a dependency."""
    return {"dataset": dataset, "files": {}, "official": True, "deviations": [], "skipped": 0, "reason": ""}


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two provenances are of the same data; why somebody took unofficial ones may be said in other words."""
    return {**one, "reason": ""} == {**other, "reason": ""}


def read(folder: Path) -> Manifest:
    """The manifest of a prepared data set.

    Raises:
        DataError: there is none, or it is damaged or of another version.

    """
    path = folder / NAME
    try:
        values = json.loads(path.read_text())
        if values["schema"] != SCHEMA:
            raise DataError(
                path, f"is of format {values['schema']!r}, this version reads format {SCHEMA}", again(folder)
            )
        found = values["findings"]
        splits = {name: Split(found["splits"][name]["samples"], _ints(found["splits"][name])) for name in SPLITS}
        tuples = {name: tuple(found[name]) for name in ("mean", "deviation", "deviations", "skipped", "notes")}
        return Manifest(
            dataset=values["dataset"],
            source=values["source"],
            findings=Findings(splits=splits, fingerprint=found["fingerprint"], **tuples),
            reason=values["reason"],
            files={name: Written(**file) for name, file in values["files"].items()},
        )
    except FileNotFoundError:
        raise DataError(folder, "holds no prepared data set (no manifest.json)", again(folder)) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(path, f"is damaged ({error!r})", again(folder)) from error


def _ints(split: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(count) for count in split["histogram"])


def sha256(path: Path, progress: Progress | None = None) -> str:
    """SHA-256 of a file; `progress` is told of bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            if progress is not None:
                progress(len(block))
    return digest.hexdigest()


def problems(folder: Path, manifest: Manifest, *, contents: bool, progress: Progress | None = None) -> list[str]:
    """In what the files are not those that the manifest records: none, one or more sentences.

    Args:
        folder: where they lie.
        manifest: of that folder.
        contents: read them whole and compare SHA-256; otherwise only that they are there and how large they are.
        progress: is told of the bytes read.

    """
    found = []
    for name, recorded in manifest.files.items():
        path = folder / name
        if not path.is_file():
            found.append(f"{path} is missing")
        elif (size := path.stat().st_size) != recorded.bytes:
            found.append(f"{path} has {size:,} bytes, its record says {recorded.bytes:,}")
        elif contents and (digest := sha256(path, progress)) != recorded.sha256:
            found.append(f"{path} is of other content than its record says (SHA-256 {digest}, not {recorded.sha256})")
    return found
