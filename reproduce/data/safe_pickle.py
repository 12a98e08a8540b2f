"""Reading the pickles that CIFAR and ImageNet32 come as, without running what is in them.

A pickle is a program: `pickle.load` calls whatever the file names. The usual cure, a list of allowed functions, still
hands the file's arguments to numpy, whose own reading of array states was not written for hostile input (and warns
about the way in which Python 2 wrote them). Here numpy is not called while the pickle is read: its arrays become plain
`_Array` notes of shape, type and bytes, anything else that the file wants to call is an error, and the notes are turned
into arrays afterwards, checked.
"""

import io
import math
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.data.errors import DataError

FIX = "Get the file again from where the data set is published"


def load(content: bytes, path: Path) -> dict[str, Any]:
    """The dict in a pickle of plain values and numpy arrays of numbers, as Python 2 or 3 wrote it.

    Args:
        content: of the file.
        path: named in errors.

    Returns:
        Its values by name. Strings of Python 2 come as str, each character a byte (latin-1).

    Raises:
        DataError: it wants to call something, is damaged, or holds something else.

    """
    try:
        values = _Unpickler(_Content(content), encoding="latin1").load()
        if not isinstance(values, dict):
            raise ValueError(f"expected a dict, got {type(values).__name__}")
        return {str(key): value.array() if isinstance(value, _Array) else value for key, value in values.items()}
    except _ForbiddenError as error:
        raise DataError(
            path,
            f"this pickle wants to call {error}, which no data set needs; nothing of it was run",
            f"It may be meant to do harm. {FIX}",
        ) from None
    except Exception as error:  # a damaged pickle may raise anything
        raise DataError(path, f"not a whole pickle of images and labels ({error})", FIX) from error


class _ForbiddenError(Exception):
    """A pickle names something that is not in `_NOTES`."""


class _Dtype:
    """What a pickle says of a numpy type: `dtype("u1", …)` and its state (version, byte order, …)."""

    def __init__(self, code: str, *_: object) -> None:
        if not re.fullmatch(r"[uif][1248]", code):
            raise ValueError(f"arrays are of numbers, got type {code!r}")
        self.code = code
        self.order = "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = {"|": "=", "=": "=", "<": "<", ">": ">"}[state[1]]

    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.order + self.code)


class _Array:
    """What a pickle says of an array: `_reconstruct(ndarray, …)` and its state."""

    def __init__(self, *_: object) -> None:
        self.state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, by_column, data = state
        self.state = (data, dtype, shape, "F" if by_column else "C")

    def array(self) -> np.ndarray[Any, Any]:
        data, dtype, shape, order = self.state
        wanted = dtype.dtype()
        data = data.encode("latin1") if isinstance(data, str) else bytes(data)
        if len(data) != math.prod(shape) * wanted.itemsize:
            raise ValueError(f"an array of shape {shape} and type {wanted} in {len(data)} bytes")
        return np.frombuffer(data, wanted).reshape(shape, order=order)


class _Buffer(_Array):
    """An array of pickle protocol 5: `_frombuffer(data, dtype, shape, order)`."""

    def __init__(self, *state: object) -> None:
        self.state = state


class _Bytes:
    """Bytes that Python 3 wrote in protocol 2: `encode(text, "latin1")`."""

    def __new__(cls, text: str, encoding: str) -> bytes:  # type: ignore[misc]
        if encoding != "latin1":
            raise ValueError(f"bytes in the encoding {encoding!r}")
        return text.encode("latin1")


_NOTES: dict[tuple[str, str], type] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,  # the name since numpy 2
    ("numpy.core.numeric", "_frombuffer"): _Buffer,
    ("numpy._core.numeric", "_frombuffer"): _Buffer,
    ("_codecs", "encode"): _Bytes,
}


class _Content(io.BytesIO):
    """Bytes that end with an error, not with less than was asked for."""

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        if size is not None and len(data) < size:
            raise EOFError("it is truncated")
        return data

    def readline(self, size: int | None = -1) -> bytes:
        line = super().readline(size)
        if not line.endswith(b"\n"):
            raise EOFError("it is truncated")
        return line


class _Unpickler(pickle._Unpickler):
    """Python's reader in Python: of the one in C, a flipped bit can ask for 16 GB (a place in its table of objects)."""

    def find_class(self, module: str, name: str) -> type:
        try:
            return _NOTES[module, name]
        except KeyError:
            raise _ForbiddenError(f"{module}.{name}") from None
