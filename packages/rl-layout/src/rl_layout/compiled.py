"""Loops that numba compiles, for those who have installed it."""

from __future__ import annotations

import os
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

LEAST_ROWS = 2_048
"""Loops over fewer rows take no longer in numpy."""


def is_of_use(module: str, rows: int) -> bool:
    """Tell whether loops that numba compiles can be run, and are faster."""
    return rows >= LEAST_ROWS and load_compiled(module) is not None


def run_compiled(module: str, name: str, *arrays: Any) -> bool:
    """Run a loop that numba compiles, if it can be run; callers have at least `LEAST_ROWS`."""
    loops = load_compiled(module)
    if loops is None:
        return False
    try:
        getattr(loops, name)(*arrays)
    except OSError:  # it is compiled, but would be anew at each call
        _unkept.add(module)
        return False
    return True


def load_compiled(module: str) -> ModuleType | None:
    """A module of loops that numba compiles; None if they cannot be run or kept."""
    return None if module in _unkept else _imported(module)


def forget_imports() -> None:
    """Try again to import and to cache what could not be, as after numba was installed."""
    _imported.cache_clear()
    _unkept.clear()


_unkept: set[str] = set()


@lru_cache(maxsize=8)
def _imported(module: str) -> ModuleType | None:
    try:
        loops = import_module(module)
        _guard_forks()
    except (ImportError, RuntimeError):
        # numba is not there, does not know this numpy, or has no folder for what it compiled
        return None
    return loops


@lru_cache(maxsize=1)
def _guard_forks() -> None:
    """Blocks forks while a thread compiles: the child would wait for that thread."""
    from numba.core.compiler_lock import global_compiler_lock as lock

    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )
