"""Dumps of rows that hooks change on their way to the disk and back."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from tensordict import TensorDict, TensorDictBase

from rl_replay.addresses import live_positions
from rl_replay.checkpoint.archive import Archive
from rl_replay.checkpoint.writing import dump
from rl_replay.composition import Composition
from rl_replay.storages import Storage, TensorStorage

Hook = Callable[[TensorDictBase], TensorDictBase]
CHANGED = "changed"


def dump_changed(buffer: Composition, path: str | os.PathLike[str], hooks: Sequence[Hook]) -> None:
    """Write what hooks make of a buffer's rows.

    Args:
        buffer: A buffer of tensordicts.
        path: The folder.
        hooks: Called one after the other.

    Raises:
        TypeError: The rows, or what a hook returned, are no tensordict.
    """
    rows = buffer.storage.read(live_positions(buffer.storage))
    for hook in hooks:
        rows = hook(_tensordict(rows, hook))
    rows = _tensordict(rows, None)
    dump(path, {CHANGED: {"rows": rows.to_dict(), "batch_size": list(rows.batch_size)}})


def load_changed(buffer: Composition, path: str | os.PathLike[str], hooks: Sequence[Hook]) -> bool:
    """Fill a buffer with what hooks make of a dump that hooks changed.

    Args:
        buffer: A buffer of tensordicts.
        path: The folder.
        hooks: Called one after the other.

    Returns:
        Whether it is such a dump; nothing happens where it is not.

    Raises:
        ValueError: It is, and there is no hook to change it back, or it holds more rows than there
            is room for; nothing has changed then.
    """
    with Archive(path) as archive:
        if f"{CHANGED}/batch_size" not in archive.names():
            return False
        if not hooks:
            raise ValueError(
                f"{path} was written by save hooks: register the load hooks that belong to them."
            )
        archive.verify()
        found = archive.read(CHANGED)
    rows: Any = TensorDict(found["rows"], found["batch_size"])
    for hook in hooks:
        rows = hook(_tensordict(rows, hook))
    _require_room(buffer.storage, _tensordict(rows, hooks[-1]), path)
    buffer._rewind()
    buffer.storage.empty()
    buffer.storage.extend(rows)
    buffer.sampler.reset()
    return True


def _require_room(storage: Storage, rows: TensorDictBase, path: str | os.PathLike[str]) -> None:
    lanes = len(storage.ring.window().first)
    limit = storage.max_size // lanes
    if isinstance(storage, TensorStorage) and rows.batch_dims == storage.ndim:
        columns = storage.arrangement.columns(rows.batch_size)
        limit = storage.capacity_for(columns) // lanes
    if not 0 < rows.numel() <= limit:
        raise ValueError(
            f"{path} holds {rows.numel()} rows and this buffer takes 1 to {limit} at once: make a "
            "larger one."
        )


def _tensordict(rows: Any, hook: Hook | None) -> TensorDictBase:
    if not isinstance(rows, TensorDictBase):
        who = "the hook" if hook is None else repr(hook)
        raise TypeError(f"{who} works on tensordicts, got {type(rows).__name__}.")
    return rows
