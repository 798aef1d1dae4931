"""Conformance checks and models for the tests of samplers, storages and writers of your own.

`BufferMachine`, `SharedBufferMachine` and `StorageTrajectoryMachine` are state machines of
hypothesis, as in ``pip install 'rl-replay[testing]'``, which is imported when they are asked for.
All else needs no extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rl_layout.internals import import_with_hypothesis
from rl_replay.testing.conformance import check_sampler, check_storage, check_writer
from rl_replay.testing.list_model import ListModel

if TYPE_CHECKING:
    from rl_replay.testing.machines import BufferMachine, SharedBufferMachine
    from rl_replay.testing.trajectory_machine import StorageTrajectoryMachine

__all__ = [
    "BufferMachine",
    "ListModel",
    "SharedBufferMachine",
    "StorageTrajectoryMachine",
    "check_sampler",
    "check_storage",
    "check_writer",
]


def __getattr__(name: str) -> Any:
    """Import a state machine when it is asked for."""
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}: there are {', '.join(__all__)}."
        raise AttributeError(msg)
    what = f"rl_replay.testing.{name} is a state machine of hypothesis"
    module = "trajectory_machine" if name == "StorageTrajectoryMachine" else "machines"
    where = f"rl_replay.testing.{module}"
    machines = import_with_hypothesis(where, what, "use the check functions")
    return getattr(machines, name)
