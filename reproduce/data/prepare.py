"""Verify, convert and record a published data set, in one atomic step.

If data were converted in place, a crash would leave a folder that looks complete. Here all files are written to a
hidden folder next to the final one, `.cifar10.partial`, with the manifest last. Then the folder is renamed to
`cifar10`. The next process deletes what a killed process left behind. A lock prevents two processes from preparing the
same data set.

Complete data that are not official (another checksum or number of images) are an error too, unless the user gives a
reason for using them. The reason is recorded and becomes part of every result.
"""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import filelock

from reproduce.cells.catalogue import IMAGENET, IMAGENET32, Dataset
from reproduce.data import cifar, imagenet32, manifest
from reproduce.data.errors import DataError
from reproduce.data.manifest import Manifest, Options, Progress, Written
from reproduce.data.small_images import SmallImages
from reproduce.records.reading import UNPRINTABLE, printable
from reproduce.records.storage import explain_full_disk, write_atomically

if TYPE_CHECKING:
    from reproduce.data.image_folder import ImageFolder

REPLACE = "Add --replace to prepare it again"
UNOFFICIAL = 'To use it nevertheless, add --allow-unofficial "REASON"; the reason is recorded in every result.'
NOTHING_LEFT = "no partial files are left. Free some space and run the same command again"

#: (name of the work, number of steps, unit of the steps) -> context manager of a progress bar.
Bar = Callable[[str, int, str], AbstractContextManager[Progress]]


def open_source(dataset: Dataset, source: Path, options: Options) -> "SmallImages | ImageFolder":
    """Open the published data set in `source`.

    Its `examine` verifies the files and reports its progress in `steps` of its `unit`. After that, `write` writes the
    files of the prepared data set, about `bytes_to_write` bytes, and reports its progress in images.

    Raises:
        DataError: If the folder or some of its files are missing.

    """
    if not source.is_dir():
        raise DataError(source, "there is no such folder", dataset.how_to_get)
    if dataset is IMAGENET:
        from reproduce.data.image_folder import ImageFolder  # torchvision takes seconds to import

        return ImageFolder(dataset, source, beton=not options.only_list, workers=max(1, options.workers))
    return imagenet32.find(source) if dataset is IMAGENET32 else cifar.find(dataset, source)


def prepare(dataset: Dataset, source: Path, root: Path, options: Options, bar: Bar) -> tuple[Manifest, bool]:
    """Prepare a data set in `<root>/<name>`.

    Args:
        dataset: Entry of the catalogue.
        source: Folder of the published files.
        root: Folder of prepared data sets.
        options: Options of the preparation.
        bar: Factory of progress bars.

    Returns:
        The manifest, and whether the data set was prepared by this call. If not, it had been prepared from the same
        source before.

    Raises:
        DataError: If the source is missing, damaged or not official, or if the target is not usable.
        StorageFullError: If the disk is full. No partial files are left.

    """
    source, target = source.expanduser().resolve(), (root / dataset.name).resolve()  # a link may lead to another disk
    if odd := UNPRINTABLE.search(str(source)):
        problem = f"the path contains the character {odd[0]!r}"
        raise DataError(source, problem, "Rename the folder: the manifest could not be read")
    opened = open_source(dataset, source, options)  # raises before any folder is created
    try:
        with explain_full_disk(f"to lock {target}", NOTHING_LEFT):
            target.parent.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(_beside(target, "lock")).acquire(blocking=False)
    except filelock.Timeout:
        raise DataError(target, "another process is preparing this data set", "Wait until it has finished") from None
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
                root, f"{dataset.title} needs {needed / 1e9:,.2f} GB, {free / 1e9:,.2f} GB are free", "Free some space"
            )
        partial = _beside(target, "partial")
        partial.mkdir()
        try:
            with bar("converting", sum(split.samples for split in findings.splits.values()), "images") as progress:
                opened.write(partial, progress)
            reason = printable(options.reason) if findings.deviations else ""
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
    """Return the manifest of an earlier preparation from this source, or None if the data set is to be prepared.

    Raises:
        DataError: If the target is damaged, was made from another source, or was not made by `prepare`.

    """
    if not target.exists():
        return None
    if not (target / manifest.NAME).is_file() or source.is_relative_to(target.resolve()):
        raise DataError(
            target,
            "this folder was not made by `data prepare` (it has no manifest.json), or it contains the source",
            "It was not changed. Move it away, or choose another --data-root",
        )
    if options.replace:
        return None
    try:
        earlier = manifest.read(target)
    except DataError as error:
        raise DataError(target, f"it was prepared before but cannot be read ({error})", REPLACE) from error
    problems = manifest.problems(target, earlier, contents=False)
    if problems:
        raise DataError(target, f"it was prepared before but is damaged: {'; '.join(problems)}", REPLACE)
    if Path(earlier.source) != source:
        raise DataError(target, f"it was prepared before, from {earlier.source}", REPLACE)
    if not options.only_list and not earlier.has_beton:
        raise DataError(target, "it was prepared before with --no-beton: its images are only listed", REPLACE)
    if earlier.findings.deviations and not options.reason:
        deviations = "; ".join(earlier.findings.deviations)
        raise DataError(target, f"it was prepared before but is not official: {deviations}", f"{UNOFFICIAL} {REPLACE}")
    return earlier


def _beside(target: Path, what: str) -> Path:
    return target.with_name(f".{target.name}.{what}")


def _sweep(target: Path) -> None:
    """Delete the files of a killed process. If it was killed between the two renames, restore the earlier data."""
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
