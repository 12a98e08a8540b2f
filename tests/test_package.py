"""The names of the engine's package: all that it lists is there, though what needs torch comes when it is asked for."""

import pytest

import petra_core


def test_every_name_is_there_and_no_other() -> None:
    assert set(petra_core.__all__) <= set(dir(petra_core))
    assert all(getattr(petra_core, name) is not None for name in petra_core.__all__)
    with pytest.raises(AttributeError, match="module 'petra_core' has no attribute 'Pipelines'"):
        _ = petra_core.Pipelines
