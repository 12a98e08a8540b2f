"""The one error of data sets: what is wrong with which file, and what to do about it."""

from collections.abc import Sequence
from pathlib import Path


class DataError(Exception):
    """The file or folder `path` of a data set is missing, damaged, or not what it is said to be."""

    def __init__(self, path: Path, problem: str, fix: str) -> None:
        super().__init__(f"{path}: {problem}. {fix}")
        self.path = path


def check_labels(labels: Sequence[int], first: int, num_classes: int, path: Path, fix: str) -> None:
    """See that the labels in a file are first … first + num_classes - 1.

    Raises: DataError: one is not; names the first that is not.
    """
    wrong = [index for index, label in enumerate(labels) if not first <= label < first + num_classes]
    if wrong:
        raise DataError(
            path,
            f"image {wrong[0]} has the label {labels[wrong[0]]}, expected {first}..{first + num_classes - 1} "
            f"({len(wrong)} such labels)",
            fix,
        )
