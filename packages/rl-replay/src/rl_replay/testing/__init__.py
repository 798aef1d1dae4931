"""Conformance checks and models for the tests of samplers, storages and writers of your own.

The machines are state machines of hypothesis, as in ``pip install 'rl-replay[testing]'``, which is
imported when they are asked for: `BufferMachine`, `SharedBufferMachine` and
`StorageTrajectoryMachine` for buffers and storages; `RingMachine`, `LinksMachine`,
`TrajectoryIndexMachine` and `LosslessRowsMachine` for what a storage is made of. All else needs no
extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rl_layout.internals import import_with_hypothesis
from rl_replay.testing.conformance import check_sampler, check_storage, check_writer
from rl_replay.testing.linked_ring import LinkedRing
from rl_replay.testing.list_model import ListModel
from rl_replay.testing.lossless_ring import LosslessRing

if TYPE_CHECKING:
    from rl_replay.testing.index_machine import TrajectoryIndexMachine
    from rl_replay.testing.links_machine import LinksMachine
    from rl_replay.testing.lossless_machine import LosslessRowsMachine
    from rl_replay.testing.machines import BufferMachine, SharedBufferMachine
    from rl_replay.testing.ring_machine import RingMachine
    from rl_replay.testing.trajectory_machine import StorageTrajectoryMachine

__all__ = [
    "BufferMachine",
    "LinkedRing",
    "LinksMachine",
    "ListModel",
    "LosslessRing",
    "LosslessRowsMachine",
    "RingMachine",
    "SharedBufferMachine",
    "StorageTrajectoryMachine",
    "TrajectoryIndexMachine",
    "check_sampler",
    "check_storage",
    "check_writer",
]


_MODULES = {
    "BufferMachine": "machines",
    "SharedBufferMachine": "machines",
    "StorageTrajectoryMachine": "trajectory_machine",
    "RingMachine": "ring_machine",
    "LinksMachine": "links_machine",
    "TrajectoryIndexMachine": "index_machine",
    "LosslessRowsMachine": "lossless_machine",
}


def __getattr__(name: str) -> Any:
    """Import a state machine when it is asked for."""
    if name not in _MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}: there are {', '.join(__all__)}."
        raise AttributeError(msg)
    what = f"rl_replay.testing.{name} is a state machine of hypothesis"
    where = f"rl_replay.testing.{_MODULES[name]}"
    machines = import_with_hypothesis(where, what, "use the check functions")
    return getattr(machines, name)
