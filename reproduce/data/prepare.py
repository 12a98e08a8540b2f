"""From a published data set to files that loaders can trust: verified, converted, recorded, whole or not at all.

Converting in place leaves a folder that looks ready after a crash. Here everything is made in a hidden folder beside
the final one, `.cifar10.partial`, with the manifest last, and takes the name `cifar10` in one step. What a killed
process left behind is swept away by the next, and a lock keeps two from working on the same data set.

Data that are whole but not official (another checksum, another number of images) are an error too, unless somebody says
why they shall be used; the reason is recorded, and goes with every result.
"""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import filelock

from reproduce.cells.catalogue import IMAGENET, IMAGENET32, Dataset
from reproduce.data import cifar, imagenet32, manifest
from reproduce.data.errors import DataError
from reproduce.data.manifest import Findings, Manifest, Progress, Written
from reproduce.records.storage import explain_full_disk, write_atomically

REPLACE = "Add --replace to make it anew"
UNOFFICIAL = 'If it is what you want to use, say so with --unofficial "REASON"; the reason goes with every result.'
NOTHING_LEFT = "nothing half-made is left. Free some space and give the same command again"

#: (what is being done, number of steps, their unit) -> what is to be told of steps as they are done.
Bar = Callable[[str, int, str], AbstractContextManager[Progress]]


class PublishedFiles(Protocol):
    """A data set as published, see `SmallImages` and `ImageFolder`: `examine` verifies `steps` of its `unit`.

    After that, `write` makes the files of the prepared data set, of about `bytes_to_write`, and reports images.
    """

    unit: str
    steps: int

    def examine(self, progress: Progress) -> Findings: ...

    def bytes_to_write(self) -> int: ...

    def write(self, folder: Path, progress: Progress) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to prepare a data set."""

    reason: str = ""  # why data that are not official are to be used; empty: they are not
    replace: bool = False  # whether what is prepared already is made anew
    beton: bool = True  # of image files: copy them into FFCV's format; otherwise they are only listed
    workers: int = 1  # of image files: threads that decode


def open_source(dataset: Dataset, source: Path, options: Options) -> PublishedFiles:
    """The data set as it lies in `source`. Raises: DataError: it is not there, or not all of it."""
    if not source.is_dir():
        raise DataError(source, "there is no such folder", dataset.how_to_get)
    if dataset is IMAGENET:
        from reproduce.data.image_folder import ImageFolder  # torchvision takes seconds to import

        return ImageFolder(dataset, source, beton=options.beton, workers=options.workers)
    return imagenet32.find(source) if dataset is IMAGENET32 else cifar.find(dataset, source)


def prepare(dataset: Dataset, source: Path, root: Path, options: Options, bar: Bar) -> tuple[Manifest, bool]:
    """Make `<root>/<name>` from `source`.

    Returns:
        Its manifest, and whether it was made now; otherwise it was there before, from the same source.

    Raises:
        DataError: the source is missing, damaged or not official, or something else is in the way.
        StorageFullError: no room; nothing is left behind.

    """
    source, target = source.expanduser().resolve(), (root / dataset.name).resolve()  # a link may lead to another disk
    opened = open_source(dataset, source, options)  # before anything is made for it
    try:
        with explain_full_disk(f"to lock {target}", NOTHING_LEFT):
            target.parent.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(_beside(target, "lock")).acquire(blocking=False)
    except filelock.Timeout:
        raise DataError(target, "another process prepares this data set", "Wait for it") from None
    with lock, explain_full_disk(f"for {dataset.title} in {root}", NOTHING_LEFT):
        _sweep(target)
        if earlier := _already(target, source, options):
            return earlier, False
        with bar("verifying", opened.steps, opened.unit) as progress:
            findings = opened.examine(progress)
        if findings.deviations and not options.reason:
            problem = f"this is not the official {dataset.title}: {'; '.join(findings.deviations)}"
            raise DataError(source, problem, f"Get the files again. {UNOFFICIAL} {dataset.how_to_get}")
        needed, free = opened.bytes_to_write(), shutil.disk_usage(target.parent).free
        if needed > free:
            raise DataError(
                root, f"{dataset.title} needs {needed / 1e9:,.2f} GB, {free / 1e9:,.2f} GB are free", "Make room for it"
            )
        partial = _beside(target, "partial")
        partial.mkdir()
        try:
            with bar("converting", sum(split.samples for split in findings.splits.values()), "images") as progress:
                opened.write(partial, progress)
            reason = options.reason if findings.deviations else ""
            files = _written(partial, bar)
            made = Manifest(dataset=dataset.name, source=str(source), findings=findings, reason=reason, files=files)
            write_atomically(partial / manifest.NAME, made.to_json().encode())
            _put_in_place(partial, target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return made, True


def _written(folder: Path, bar: Bar) -> dict[str, Written]:
    paths = sorted(folder.iterdir())
    sizes = {path: path.stat().st_size for path in paths}
    with bar("hashing", sum(sizes.values()), "B") as progress:
        return {path.name: Written(bytes=sizes[path], sha256=manifest.sha256(path, progress)) for path in paths}


def _already(target: Path, source: Path, options: Options) -> Manifest | None:
    """The manifest of what is there already, if it is whole and of this source; None if the way is free.

    Raises: DataError: something else is there.
    """
    if not target.exists():
        return None
    if not (target / manifest.NAME).is_file() or source.is_relative_to(target.resolve()):
        raise DataError(
            target,
            "this folder was not made by `data prepare` (it has no manifest.json), or it holds the source",
            "It was left as it is; move it away, or choose another --data-root",
        )
    if options.replace:
        return None
    try:
        earlier = manifest.read(target)
    except DataError as error:
        raise DataError(target, f"it was prepared before, and cannot be read ({error})", REPLACE) from error
    problems = manifest.problems(target, earlier, contents=False)
    if problems:
        raise DataError(target, f"it was prepared before and is damaged: {'; '.join(problems)}", REPLACE)
    if Path(earlier.source) != source:
        raise DataError(target, f"it was prepared before, from {earlier.source}", REPLACE)
    if options.beton and not earlier.has_beton:
        raise DataError(target, "it was prepared before with --no-beton: its images are only listed", REPLACE)
    if earlier.findings.deviations and not options.reason:
        deviations = "; ".join(earlier.findings.deviations)
        raise DataError(target, f"it was prepared before, and is not official: {deviations}", f"{UNOFFICIAL} {REPLACE}")
    return earlier


def _beside(target: Path, what: str) -> Path:
    return target.with_name(f".{target.name}.{what}")


def _sweep(target: Path) -> None:
    """What a killed process left behind; if it was killed between two renames, the older data come back."""
    shutil.rmtree(_beside(target, "partial"), ignore_errors=True)
    replaced = _beside(target, "replaced")
    if replaced.exists():
        if target.exists():
            shutil.rmtree(replaced)
        else:
            replaced.rename(target)


def _put_in_place(partial: Path, target: Path) -> None:
    replaced = _beside(target, "replaced")
    if target.exists():
        target.rename(replaced)
    partial.rename(target)
    shutil.rmtree(replaced, ignore_errors=True)
