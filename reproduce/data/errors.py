"""The one error of data sets: what is wrong with which file, and what to do about it."""

from pathlib import Path


class DataError(Exception):
    """Files of a data set are missing, damaged, or not what they are said to be.

    Attributes:
        path: the file or folder.

    """

    def __init__(self, path: Path, problem: str, fix: str) -> None:
        super().__init__(f"{path}: {problem}. {fix}")
        self.path = path
