"""Seaborn and pandas, imported when something of them is first used.

To plan and to run a grid, every command asks the exhibits for their cells, and only the report draws; but importing the
two takes as long as importing torch. Drawing modules take `sns` and `pd` from here and use them as they would
otherwise.

This module exports pd, sns.
"""

import importlib
from typing import Any

__all__ = ["pd", "sns"]


class _Deferred:
    """A module that is imported at the first use of an attribute."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


pd: Any = _Deferred("pandas")
sns: Any = _Deferred("seaborn")
