"""Record in a JSON file next to the data what `prepare` found and wrote, and check the data against this record.

A `train.beton` file does not show where it came from, whether it is complete, or whether it is the official data set.
The manifest records all three. It is written last, so a folder with a manifest is complete.

    <root>/<name>/
        manifest.json                   the manifest
        train.beton, test.beton         all images and labels, in FFCV's format (`reproduce.data.beton`)
        train.jsonl, test.jsonl         only for image files: one line [label, bytes, path below the source] each
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from petra_core.errors import check_int
from reproduce.cells.catalogue import TORCHVISION, Channels, Dataset, advise_preparation
from reproduce.cells.setting import OPTIONS, setting
from reproduce.data.errors import DataError
from reproduce.records.reading import convert
from reproduce.records.run import SCHEMA, RecordError, read_json

NAME = "manifest.json"
SPLITS = ("train", "test")
BLOCK = 1 << 20  # bytes read at a time

Progress = Callable[[int], object]  # called with the number of bytes or images done since the last call


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the preparation of a data set. Data that are not official are an error without a reason.

    Attributes:
        reason: Accept data that are not the official ones, for this reason.
        replace: Replace a data set that is already prepared.
        only_list: Only list the images instead of copying them (144 GB), for torchvision's loader (imagenet).
        workers: Decoding threads (imagenet).

    """

    reason: str = setting(OPTIONS, default="", flags=("--allow-unofficial",), old="--unofficial", metavar="REASON")
    replace: bool = setting(OPTIONS, default=False)
    only_list: bool = setting(OPTIONS, default=False, flags=("--no-beton",))
    workers: int = setting(OPTIONS, default=0, least=1, rule="number of cores")


@dataclass(frozen=True)
class Split:
    """Size of a training or test set.

    Attributes:
        samples: Number of samples.
        histogram: Number of samples of each class.

    """

    samples: int
    histogram: tuple[int, ...]

    def __post_init__(self) -> None:
        for number in (self.samples, *self.histogram):
            check_int("a number of samples", number, 0)


def deviating_counts(dataset: Dataset, splits: Mapping[str, Split]) -> list[str]:
    """Describe the splits whose number of images is not the official one, in one sentence each."""
    officially = {"train": dataset.train_samples, "test": dataset.test_samples}
    return [
        f"{splits[name].samples:,} {name} images, officially {official:,}"
        for name, official in officially.items()
        if splits[name].samples != official
    ]


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Contents of a source, as `examine` found them.

    Attributes:
        splits: Size of `train` and `test`, by name.
        mean: Mean of each channel in 0..1, for normalisation.
        deviation: Standard deviation of each channel in 0..1, for normalisation.
        deviations: Differences from the official data set, one sentence each. Empty for the official data set.
        notes: Other remarks for the user, such as the number of skipped files.

    """

    splits: Mapping[str, Split]
    mean: Channels
    deviation: Channels
    deviations: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def num_classes(self) -> int:
        return len(self.splits["train"].histogram)


@dataclass(frozen=True, kw_only=True)
class Written:
    """Size in bytes and SHA-256 of a file that `prepare` wrote."""

    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        check_int("bytes", self.bytes, 0)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Contents and origin of a prepared folder, stored in its `manifest.json`.

    Attributes:
        dataset: Name in the catalogue.
        source: Folder that the data set was made from.
        findings: Contents of the source.
        reason: The user's reason for preparing data that are not official. Empty for official data.
        files: Files that were written, by name.

    """

    dataset: str
    source: str
    findings: Findings
    reason: str
    files: Mapping[str, Written]

    @property
    def official(self) -> bool:
        """Return whether this is the complete official data set."""
        return not self.findings.deviations

    @property
    def has_beton(self) -> bool:
        """Return whether the folder contains the images, and not only a list of files in the source."""
        return all(f"{split}.beton" in self.files for split in SPLITS)

    def provenance(self) -> dict[str, Any]:
        """Return the description of the data that becomes part of every result. It does not contain any path.

        Returns:
            Name of the data set (`dataset`), SHA-256 of each file (`files`), whether the data set is the official one
            (`official`), its differences from the official one (`deviations`), and the user's reason (`reason`).

        """
        return {
            **built_in(self.dataset),
            "files": {name: file.sha256 for name, file in self.files.items()},
            "official": self.official,
            "deviations": list(self.findings.deviations),
            "reason": self.reason,
        }

    def to_json(self) -> str:
        """Serialise the manifest. `read` is the inverse."""
        return json.dumps({"schema": SCHEMA, **dataclasses.asdict(self)}, indent=1) + "\n"


def built_in(dataset: str) -> dict[str, Any]:
    """Return the provenance (`Manifest.provenance`) of a data set that a dependency includes."""
    return {"dataset": dataset, "files": {}, "official": True, "deviations": [], "reason": ""}


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two provenances describe the same data. The user's reason for unofficial data is ignored."""
    ignored = {"reason": "", "skipped": 0}  # older provenances have the number of skipped images
    return {**one, **ignored} == {**other, **ignored}


def is_in(folder: Path) -> bool:
    """Return whether the folder contains a manifest.

    Raises:
        DataError: If the folder cannot be read.

    """
    try:
        (folder / NAME).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        fix = "Let this user read it, or choose another --data-root"
        raise DataError(folder, f"cannot be read ({error.strerror})", fix) from error
    return True


def read(folder: Path, dataset: str = "") -> Manifest:
    """Read the manifest of a prepared data set.

    Args:
        folder: Folder of the data set.
        dataset: Name that the data set must have, if not empty.

    Raises:
        DataError: If there is no manifest, or if it is unreadable, damaged, of another version or of another data set.

    """
    path = folder / NAME
    try:
        values = read_json(path)
        manifest: Manifest = convert(Manifest, values, "the manifest")
        _check_values(manifest)
        if dataset not in ("", manifest.dataset):
            raise DataError(folder, f"contains {manifest.dataset}, not {dataset}", advise_preparation(folder))
        findings = manifest.findings
        left_out = (f"without {path}" for path in values["findings"].get("skipped", ()))  # only in older manifests
        findings = dataclasses.replace(findings, deviations=(*findings.deviations, *left_out))
        return dataclasses.replace(manifest, findings=findings)
    except RecordError as error:
        raise DataError(path, error.args[1], error.args[2] or advise_preparation(folder)) from error
    except (TypeError, ValueError) as error:
        raise DataError(path, f"is damaged: {error}", advise_preparation(folder)) from error


def _check_values(manifest: Manifest) -> None:
    """Check the values of a manifest.

    Raises:
        ValueError: A value makes no sense.

    """
    if outside := [name for name in manifest.files if Path(name).name != name]:
        raise ValueError(f"files names {outside[0]!r}, expected files of this folder")
    if manifest.findings.splits.keys() != set(SPLITS):
        raise ValueError(f"splits has {', '.join(manifest.findings.splits)}, expected {', '.join(SPLITS)}")
    if min(manifest.findings.deviation) <= 0:
        raise ValueError(f"deviation is {manifest.findings.deviation}, expected numbers above 0")


def obstacle(folder: Path, manifest: Manifest, loader: str) -> DataError | None:
    """Return the error that explains why a loader cannot read the data set, or None if it can."""
    if loader == TORCHVISION and not Path(manifest.source).is_dir():
        return DataError(
            folder,
            f"the loader is {loader}, but the folder of the images, {manifest.source}, does not exist",
            f"Restore it, or name another one: {advise_preparation(folder)}",
        )
    if loader != TORCHVISION and not manifest.has_beton:
        fix = f"Prepare it without --no-beton, or choose --loader {TORCHVISION}"
        return DataError(folder, f"the loader is {loader}, but the images were only listed, not copied", fix)
    return None


def sha256(path: Path, progress: Progress = lambda _: None) -> str:
    """Return the SHA-256 of a file. `progress` is called with the number of bytes read since the last call."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            progress(len(block))
    return digest.hexdigest()


def problems(folder: Path, manifest: Manifest, *, contents: bool, progress: Progress = lambda _: None) -> list[str]:
    """Compare the files in `folder` with their manifest.

    Args:
        folder: Folder of the prepared data set.
        manifest: Manifest of the folder.
        contents: Whether to read the files and compare their SHA-256. Otherwise only existence and size are compared.
        progress: Called with the number of bytes read since the last call.

    Returns:
        One sentence per difference.

    """
    differences = []
    for name, recorded in manifest.files.items():
        path = folder / name
        try:
            if problem := _missing_or_other_size(path, recorded.bytes):
                differences.append(problem)
            elif contents and (digest := sha256(path, progress)) != recorded.sha256:
                differences.append(
                    f"{path} does not have the recorded content (SHA-256 {digest}, expected {recorded.sha256})"
                )
        except OSError as error:
            differences.append(f"{path} cannot be read ({error.strerror})")
    return differences


def _missing_or_other_size(path: Path, size: int) -> str:
    try:
        here = path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return f"{path} is missing"
    return "" if here == size else f"{path} has {here:,} bytes, expected {size:,}"


# --- Lists of image files


class ImageFile(NamedTuple):
    """One file of a data set.

    Attributes:
        path: Path relative to the source.
        label: Label, 0 … num_classes - 1.
        bytes: Size in bytes.

    """

    path: str
    label: int
    bytes: int


def read_list(path: Path) -> list[ImageFile]:
    """Read the list of files of a training or test set.

    Raises:
        DataError: If the list is damaged.

    """
    try:
        with path.open(encoding="utf-8") as lines:
            return [ImageFile(name, label, size) for label, size, name in map(json.loads, lines)]
    except (ValueError, TypeError, FileNotFoundError) as error:
        raise DataError(path, f"is damaged ({error})", "Prepare the data set again") from error


def find_changes(folder: Path, manifest: Manifest) -> list[str]:
    """Describe the listed files that are missing in the source or have another size, in one sentence each.

    Raises:
        DataError: If a list is damaged.

    """
    listed = (file for split in SPLITS for file in read_list(folder / f"{split}.jsonl"))
    states = (_missing_or_other_size(Path(manifest.source, file.path), file.bytes) for file in listed)
    return [state for state in states if state]
