"""Define the error of data sets, which names the file, the problem and the fix."""

from collections.abc import Sequence
from pathlib import Path


class DataError(Exception):
    """A file or folder of a data set is missing, damaged, or different from what its record states.

    Args:
        path: File or folder with the problem.
        problem: Description of the problem.
        fix: Sentence that says how to fix it.

    """

    def __init__(self, path: Path, problem: str, fix: str) -> None:
        super().__init__(path, problem, fix)  # in this form a worker process can send it back
        self.path = path

    def __str__(self) -> str:
        return f"{self.path}: {self.args[1]}. {self.args[2]}"


def check_labels(labels: Sequence[int], first: int, num_classes: int, path: Path, fix: str) -> None:
    """Check that the labels in a file are in first … first + num_classes - 1.

    Raises:
        DataError: If a label is not in this range. The message names the first such image.

    """
    wrong = [index for index, label in enumerate(labels) if not first <= label < first + num_classes]
    if wrong:
        raise DataError(
            path,
            f"image {wrong[0]} has the label {labels[wrong[0]]}, expected {first}..{first + num_classes - 1} "
            f"({len(wrong)} such labels)",
            fix,
        )
