"""Calls on the threads of torch's OpenMP, where its library can be reached.

Other threads would have to share their cores with these, which spin for some milliseconds after
each operation of torch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)  # what each thread runs


def num_threads() -> int:
    """How many threads `run_together` has, as torch is told."""
    return 1 if _openmp() is None else torch.get_num_threads()


def run_together(function: Callable[..., None], calls: Sequence[tuple[Any, ...]]) -> None:
    """Run calls at the same time, of which each releases the interpreter; raise what one raises."""
    openmp, errors = _openmp(), []

    def work(_: Any) -> None:
        # there may be fewer threads than calls: OpenMP has limits of its own
        first, step = openmp.omp_get_thread_num(), openmp.omp_get_num_threads()
        try:
            for call in calls[first::step]:
                function(*call)
        except BaseException as error:
            errors.append(error)

    openmp.GOMP_parallel(WORK(work), None, len(calls), 0)
    if errors:
        raise errors[0]


@cache
def _openmp() -> Any:
    """The library that torch has loaded; None on systems where its entries are others."""
    try:
        library = ctypes.CDLL(None)
        library.GOMP_parallel.argtypes = WORK, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint
        library.GOMP_parallel.restype = None
        found = library.omp_get_thread_num and library.omp_get_num_threads
    except (AttributeError, OSError, TypeError):
        return None
    return library if found else None
