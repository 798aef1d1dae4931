"""Conformance checks and models for the tests of samplers, storages and writers of your own.

`BufferMachine` and `SharedBufferMachine` are state machines of hypothesis, as in
``pip install 'rl-replay[testing]'``, which is imported when they are asked for. All else needs no
extra.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rl_replay.testing.conformance import check_sampler, check_storage, check_writer
from rl_replay.testing.list_model import ListModel

if TYPE_CHECKING:
    from rl_replay.testing.machines import BufferMachine, SharedBufferMachine

__all__ = [
    "BufferMachine",
    "ListModel",
    "SharedBufferMachine",
    "check_sampler",
    "check_storage",
    "check_writer",
]


def __getattr__(name: str) -> Any:
    """Import a state machine when it is asked for."""
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}: there are {', '.join(__all__)}."
        raise AttributeError(msg)
    try:
        machines = import_module("rl_replay.testing.machines")
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        msg = (
            f"rl_replay.testing.{name} is a state machine of hypothesis and hypothesis is not "
            "installed: pip install 'rl-replay[testing]', or use the check functions."
        )
        raise ImportError(msg) from error
    return getattr(machines, name)
