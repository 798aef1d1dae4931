"""Start methods of worker processes.

`forkserver` is the default: workers are forked from a small server process that has imported this
package and the modules to preload, so they start in milliseconds and inherit no threads, no locks
and no CUDA context. The server runs until the program ends, and serves later pools. `spawn` needs
no server, and imports everything again in each worker; torch takes seconds. `fork` is the quickest
and needs no server either, but a child of a process with threads (torch's own after the first
large operation, a prefetching buffer's, CUDA's) may inherit a lock that is never released. With the
first two, a script needs its own lines under `if __name__ == "__main__":`.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing.context import BaseContext
from typing import Literal

StartMethod = Literal["fork", "spawn", "forkserver"]
MODES = ("LAZY_LEGACY_OP", "CAPTURE_NONTENSOR_STACK", "LIST_TO_STACK")
"""Variables in which tensordict keeps its modes, for new processes."""


def context_of(start_method: StartMethod | None, *, preload: Sequence[str] = ()) -> BaseContext:
    """Return the context of `multiprocessing` for a start method.

    Args:
        start_method: "fork", "spawn" or "forkserver"; where None, a server of forks that has
            imported this package and `preload`.
        preload: Names of modules for that server to import. Without effect with a start method, and
            where the program has its server already.

    Returns:
        The context of `multiprocessing`.

    Raises:
        ValueError: There is no such method.
        TypeError: `preload` is a single text.

    Example:
        >>> context_of("spawn").get_start_method()
        'spawn'
    """
    if isinstance(preload, str):
        raise TypeError(f"preload takes the names of modules, got a text: pass [{preload!r}].")
    if not isinstance(preload, Sequence):
        raise TypeError(f"preload takes a list of names of modules, got {type(preload).__name__}.")
    if start_method is not None:
        known = multiprocessing.get_all_start_methods()
        if not isinstance(start_method, str) or start_method not in known:
            raise ValueError(f"start_method must be one of {known}, got {start_method!r:.80}.")
        return multiprocessing.get_context(start_method)
    context = multiprocessing.get_context("forkserver")
    # without effect where the program has its server already
    context.set_forkserver_preload(["rl_workers", *preload])
    return context


def clear_unset_modes() -> None:
    """Remove variables of tensordict that hold "None", which new processes refuse."""
    # tensordict 0.14 writes None after an operation that had set a mode for itself, and a process
    # started later fails to import it: "invalid truth value 'none'"
    for name in MODES:
        if os.environ.get(name) == "None":
            del os.environ[name]
