"""Pickles of arrays are read, pickles that want to call something are not."""

import os
import pickle
import resource
import warnings
from pathlib import Path

import numpy as np
import pytest

from reproduce.data import safe_pickle
from reproduce.data.errors import DataError
from tests.fake_data import python2_pickle, random_pixels

PATH = Path("train_data_batch_1")


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("name", ["numpy", "numpy._core", "numpy.core"])
def test_arrays_of_any_python_3_and_any_numpy_are_read_back(protocol, name):
    values = {
        "data": random_pixels(3),
        "labels": [1, 1000, 7],
        "mean": np.linspace(0, 255, 5),
        "big": np.arange(6, dtype=">i4").reshape(2, 3),
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    }
    content = pickle.dumps(values, protocol)
    if name != "numpy":  # the same length, or lengths within the pickle would be wrong
        content = content.replace(b"numpy._core.", f"{name}.".encode()) if protocol < 4 else content
    loaded = safe_pickle.load(content, PATH)
    assert loaded["labels"] == values["labels"]
    for key in ("data", "mean", "big", "columns"):
        assert loaded[key].dtype == values[key].dtype
        np.testing.assert_array_equal(loaded[key], values[key])


def test_pickles_of_python_2_are_read():
    pixels = random_pixels(4)
    content = python2_pickle({"data": pixels, "labels": [3, 1, 4, 1]})
    loaded = safe_pickle.load(content, PATH)
    np.testing.assert_array_equal(loaded["data"], pixels)
    assert loaded["data"].dtype == np.uint8
    assert loaded["labels"] == [3, 1, 4, 1]
    with warnings.catch_warnings(action="ignore"):  # numpy itself warns of the 0 and 1 for False and True in it
        np.testing.assert_array_equal(pickle.loads(content, encoding="latin1")["data"], pixels)  # it is true to life


class Evil:
    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (Evil(os.system, "touch {ran}"), "posix.system"),
        (Evil(eval, "open('{ran}', 'w')"), "builtins.eval"),
        (Evil(np.load, "{ran}"), "numpy.*load"),
        (Evil(getattr, np, "load"), "builtins.getattr"),
    ],
)
def test_a_pickle_that_wants_to_run_code_runs_none(tmp_path, call, named):
    ran = tmp_path / "ran"
    call.arguments = tuple(part.format(ran=ran) if isinstance(part, str) else "numpy" for part in call.arguments)
    content = pickle.dumps({"data": random_pixels(1), "labels": [1], "more": call}, 4)
    with pytest.raises(DataError, match=f"{PATH}: this pickle wants to call {named}.*nothing of it was run"):
        safe_pickle.load(content, PATH)
    assert not ran.exists()


def test_no_module_of_numpys_is_a_way_around():
    content = b"\x80\x02cnumpy.core.multiarray\nload\n."
    with pytest.raises(DataError, match=r"wants to call numpy.core.multiarray.load"):
        safe_pickle.load(content, PATH)


def test_a_truncated_file_is_an_error_wherever_it_ends():
    content = pickle.dumps({"data": random_pixels(1), "labels": [1]}, 3)
    for length in [*range(200), *range(200, len(content), 97), len(content) - 1]:
        with pytest.raises(DataError, match="not a whole pickle of images and labels"):
            safe_pickle.load(content[:length], PATH)


def test_flipped_bits_give_a_value_or_the_error_and_take_no_memory():
    """Python's reader in C took 16 GB for this pickle with one bit flipped, and then as much time."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    content = pickle.dumps({"data": random_pixels(1)[:, :12], "labels": [1]}, 3)
    refused = 0
    for place in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            try:
                safe_pickle.load(bytes(damaged), PATH)
            except DataError:
                refused += 1
    assert refused > len(content)  # most of the structure is noticed; pixels cannot be
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000  # kB


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([1, 2], "expected a dict, got list"),
        ({"data": np.array(["a"])}, "arrays are of numbers, got type 'U1'"),
        (
            {"data": np.array([object], dtype=object)},
            "arrays are of numbers, got type 'O8'|wants to call builtins.object",
        ),
    ],
)
def test_other_contents_are_refused(value, problem):
    with pytest.raises(DataError, match=problem):
        safe_pickle.load(pickle.dumps(value, 3), PATH)


def test_an_array_whose_bytes_do_not_fit_its_shape_is_refused():
    content = python2_pickle({"data": random_pixels(2)}).replace(b"J\x02\x00\x00\x00J", b"J\x03\x00\x00\x00J")
    with pytest.raises(DataError, match=r"shape \(3, 3072\) and type uint8 in 6144 bytes"):
        safe_pickle.load(content, PATH)
