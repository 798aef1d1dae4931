"""Loops that numba compiles, for those who have installed it."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from types import ModuleType

LEAST_ROWS = 2_048
"""Loops over fewer rows take no longer in numpy."""


def compiled(name: str, rows: int) -> ModuleType | None:
    """Import a module of compiled loops, if it is of use.

    Args:
        name: of the module, which imports numba.
        rows: how many there are to loop over.

    Returns:
        The module; None for few rows, or where numba is not installed or does not fit.

    Example:
        >>> compiled("rl_layout.loops", 100) is None
        True
    """
    return _imported(name) if rows >= LEAST_ROWS else None


@lru_cache(maxsize=8)
def _imported(name: str) -> ModuleType | None:
    try:
        return import_module(name)
    except (ImportError, RuntimeError):
        # numba is not there, does not know this numpy, or has no folder for what it compiled
        return None
