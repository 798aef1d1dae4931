"""A buffer made for a dump."""

from __future__ import annotations

import os
from typing import Any

from rl_replay.buffer.replay_buffer import ReplayBuffer
from rl_replay.checkpoint.reader import Archive
from rl_replay.checkpoint.storage import LOSSLESS, stored_columns
from rl_replay.edges import folder_name
from rl_replay.ensembles.buffer import ReplayBufferEnsemble
from rl_replay.ensembles.checkpoint import folders_of_members
from rl_replay.storages import LazyTensorStorage


def read_dump(path: str | os.PathLike[str]) -> ReplayBuffer | ReplayBufferEnsemble:
    """Make a buffer that holds the rows of a dump, whatever storage they were dumped from.

    Its storage has the size and the dimensions of the dumped one, in memory. Sampler, writer and
    transforms are the default ones: `loads` restores those of a buffer that was made alike.

    Args:
        path: A folder that `dumps` wrote.

    Returns:
        The buffer; of the dump of an ensemble an ensemble of as many, which may be empty.

    Raises:
        FileNotFoundError: There is no dump.
        ValueError: A dump that was truncated or altered, of another version, without rows, or
            changed by save hooks or by a checkpointer of its own, which say how it is read.
        OSError: Too little memory.

    Example:
        >>> import tempfile
        >>> from rl_layout.testing import trajectories
        >>> from rl_replay import LazyMemmapStorage
        >>> buffer = ReplayBuffer(storage=LazyMemmapStorage(50))
        >>> _ = buffer.extend(trajectories([3, 2]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     buffer.dumps(folder)
        ...     len(read_dump(folder))
        5
    """
    name = folder_name(path)
    with Archive(name) as archive:
        members = folders_of_members(archive)
    if members is None:
        return _buffer_of(name)
    return ReplayBufferEnsemble(*(_buffer_of(str(folder), is_member=True) for folder in members))


def _buffer_of(name: str, *, is_member: bool = False) -> ReplayBuffer:
    with Archive(name) as archive:
        if is_member and not _count(archive):
            return ReplayBuffer()
        storage, dim_extend = _storage_like(archive)
    buffer = ReplayBuffer(storage=storage, dim_extend=dim_extend)
    buffer.loads(name, rows_only=True)
    return buffer


def _count(archive: Archive) -> Any:
    """How many rows a dump holds."""
    if "storage/count" not in archive.names():
        raise ValueError(
            f"the rows of {archive.folder} were written by save hooks or by a checkpointer of "
            "their own: load them into a buffer that has the hooks or the checkpointer."
        )
    return archive.part("storage/count")


def _storage_like(archive: Archive) -> tuple[LazyTensorStorage, int | None]:
    """A storage that takes the rows of a dump, and the dimension along which these grow."""
    count, capacity = _count(archive), archive.part("storage/capacity")
    if not count or not isinstance(capacity, int) or capacity < 1:
        raise ValueError(f"{archive.folder} holds no row.")
    columns, kind = stored_columns(archive), "storage/store/kind"
    is_lossless = kind in archive.names() and archive.part(kind) == LOSSLESS
    lossless = _keys(archive) if is_lossless else False
    dim_extend = archive.part("storage/dim_extend") if columns else None
    return LazyTensorStorage(capacity, ndim=1 + len(columns), lossless=lossless), dim_extend


def _keys(archive: Archive) -> list[tuple[str, ...]]:
    """The leaves that a lossless storage keeps once."""
    keys = archive.part("storage/store/keys")
    if isinstance(keys, list) and all(isinstance(key, list) for key in keys):
        found = [tuple(key) for key in keys]
        if all(key and all(isinstance(name, str) for name in key) for key in found):
            return found
    raise ValueError(f"{archive.folder} names no keys of lossless leaves: {keys!r}.")
