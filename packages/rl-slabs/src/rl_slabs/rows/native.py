"""Loops in machine code, for those who have installed llvmlite, which numba brings along."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

Loop = Callable[..., None]
"""A compiled function of four words, addresses or numbers; other threads run meanwhile."""

_compiling = threading.RLock()


@lru_cache(maxsize=256)
def compile_loop(source: str) -> Loop | None:
    """The function `loop` of some LLVM source, of four words; None if LLVM is not installed."""
    # Compiled once in a process for each source; a forked child has what its parent compiled.
    with _compiling:
        llvm = _llvm()
        if llvm is None:
            return None
        # straight loops: no optimiser is needed to make copies of known sizes into vector moves
        module = llvm.parse_assembly(source)
        module.verify()
        engine = llvm.create_mcjit_compiler(module, _machine(llvm))
        engine.finalize_object()
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)
        loop: Any = kind(engine.get_function_address("loop"))
        loop.engine = engine  # the code is freed with it
        found: Loop = loop
        return found


def _machine(llvm: Any) -> Any:
    features = llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=3)


@lru_cache(maxsize=1)
def _llvm() -> Any:
    """The bindings of LLVM, ready for this machine; None if they are not installed."""
    try:
        llvm = import_module("llvmlite.binding")
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    except (ImportError, OSError, RuntimeError):
        return None
    # no fork while a thread compiles: the child would wait for that thread and never go on
    os.register_at_fork(
        before=_compiling.acquire,
        after_in_parent=_compiling.release,
        after_in_child=_compiling.release,
    )
    return llvm
