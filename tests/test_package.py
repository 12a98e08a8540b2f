"""Test the packages: the engine's lists contain all its names, and importing the other package sets cuBLAS's mode."""

import importlib
import os

import pytest

import petra_core
import reproduce


def test_all_names_resolve_and_unknown_ones_raise() -> None:
    """Every name in petra_core.__all__ resolves, and an unknown name raises AttributeError."""
    assert set(petra_core.__all__) <= set(dir(petra_core))
    assert all(getattr(petra_core, name) is not None for name in petra_core.__all__)
    with pytest.raises(AttributeError, match="module 'petra_core' has no attribute 'Pipelines'"):
        _ = petra_core.Pipelines


def test_import_sets_cublas_workspace_config(monkeypatch: pytest.MonkeyPatch) -> None:
    """Setting it at the first cell was too late if anything had been multiplied on the device before."""
    for before, after in (("", ":4096:8"), (":16:8", ":16:8")):
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", before)
        if not before:
            monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
        importlib.reload(reproduce)
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == after
