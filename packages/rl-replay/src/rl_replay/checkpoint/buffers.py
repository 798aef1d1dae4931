"""A buffer as a dump, and back to the same state."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from rl_replay.checkpoint.archive import Archive
from rl_replay.checkpoint.rows import (
    load_store,
    require_fitting,
    require_kind,
    schema_of,
    store_parts,
)
from rl_replay.checkpoint.writing import dump
from rl_replay.storages import ListStorage, Storage, TensorStorage
from rl_replay.structure import Structure
from rl_replay.trajectory_index import TrajectoryIndex
from rl_slabs import RowSchema

if TYPE_CHECKING:
    from rl_replay.samplers import Sampler


def storage_parts(storage: Storage) -> dict[str, Any]:
    """What a storage holds, as parts of a dump; no more than it is full.

    Args:
        storage: The storage, which nobody writes to until the dump is done.

    Raises:
        NotImplementedError: A list of objects, which only pickles could keep.
        TypeError: A storage that does not hold tensors.

    Example:
        >>> from rl_replay import LazyTensorStorage
        >>> storage = LazyTensorStorage(9)
        >>> _ = storage.extend(torch.arange(5))
        >>> parts = storage_parts(storage)
        >>> parts["first"], parts["count"], parts["capacity"]
        (0, 5, 9)
    """
    storage = _of_tensors(storage)
    window = storage.ring.window()
    if storage.store is None or storage.structure is None or not len(window):
        return {"capacity": storage.max_size, "count": 0}
    links = storage._linked()
    places = _places(window.first[0], len(window), storage.max_size)
    back = torch.from_numpy(links.back)
    index = None
    if storage._index is not None:
        index = dict(storage.trajectories().state())
    return {
        "capacity": storage.max_size,
        "count": len(window),
        "first": window.first[0],
        "columns": list(storage.columns),
        "dim_extend": storage.arrangement.dim_extend,
        "structure": storage.structure.to_plain(),
        "schema": schema_of(storage.store).to_dict(),
        "store": store_parts(storage.store, places),
        "back": torch.cat([back[place] for place in places]),
        "index": index,
    }


def load_storage(storage: Storage, archive: Archive, under: str = "storage") -> None:
    """Hold what a dumped storage held. All is checked before the former rows are dropped.

    Args:
        storage: A storage of the same size and kind.
        archive: The dump, verified.
        under: The group in it that `storage_parts` made.

    Raises:
        ValueError: The dump is of a storage of another size, arrangement or kind.
        TypeError: A storage that does not hold tensors.
        OSError: Too little memory or disk.
    """
    storage = _of_tensors(storage)
    count = archive.part(f"{under}/count")
    if not count:
        storage.empty()
        return
    columns = torch.Size(archive.part(f"{under}/columns"))
    _require_same_size(storage, archive, under, columns)
    require_kind(getattr(storage, "lossless", False) is not False, archive, f"{under}/store")
    schema = RowSchema.from_dict(archive.read(f"{under}/schema"))
    structure = Structure.from_plain(archive.read(f"{under}/structure"))
    first, capacity = archive.part(f"{under}/first"), archive.part(f"{under}/capacity")
    old = storage.store
    if old is not None and len(old) == capacity and schema_of(old) == schema:
        require_fitting(old, archive, f"{under}/store")
        storage.empty()
    else:
        storage.empty()
        storage._take_new(structure, schema, capacity)
    store, _ = storage._made()
    require_fitting(store, archive, f"{under}/store")
    storage.structure, storage.columns, storage._open = structure, columns, False
    places = _places(first, count, capacity)
    load_store(store, archive, f"{under}/store", places)
    links = storage._linked()
    links.back[:] = 0
    back = torch.from_numpy(links.back)
    archive.read_into(f"{under}/back", [back[place] for place in places])
    storage.ring.restore(first + count, first)
    storage._relink()
    if f"{under}/index/words" in archive.names():
        storage._index = TrajectoryIndex(capacity)
        storage._index.restore(archive.read(f"{under}/index"))


def dump_buffer(buffer: Any, path: str | os.PathLike[str]) -> None:
    """Write a buffer's storage, sampler, writer, transforms and generator; see `dump`.

    Args:
        buffer: The buffer, whose lock the caller holds.
        path: The folder.

    Raises:
        NotImplementedError: A list of objects, which only pickles could keep.
        TypeError: A state that does not go into a dump.
        OSError: Too little space, or no way to write there.
    """
    generator = buffer._generator
    parts = {
        "storage": storage_parts(buffer._storage),
        "sampler": _named(buffer._sampler),
        "writer": _named(buffer._writer),
        "transform": dict(buffer._transform.state_dict()),
        "batch_size": buffer._batch_size,
        "generator": None if generator is None else generator.get_state(),
    }
    dump(path, parts)


def load_buffer(buffer: Any, path: str | os.PathLike[str]) -> None:
    """Stand as a dumped buffer did: the next samples are the same.

    Args:
        buffer: The buffer, whose lock the caller holds.
        path: The folder.

    Raises:
        FileNotFoundError: There is no dump.
        ValueError: A dump that was truncated or altered, or of a buffer of other parts.
        OSError: Too little memory or disk.
    """
    with Archive(path) as archive:
        archive.verify()
        for name, part in (("sampler", buffer._sampler), ("writer", buffer._writer)):
            kind = archive.part(f"{name}/kind")
            if kind != type(part).__name__:
                raise ValueError(
                    f"{path} is of a buffer with a {kind}, this one has a "
                    f"{type(part).__name__}: make it with the same {name}."
                )
        load_storage(buffer._storage, archive)
        buffer._sampler.load_state_dict(archive.read("sampler/state"))
        buffer._writer.load_state_dict(archive.read("writer/state"))
        buffer._transform.load_state_dict(archive.read("transform"))
        buffer._batch_size = archive.part("batch_size")
        _load_generator(buffer, archive)


def _load_generator(buffer: Any, archive: Archive) -> None:
    state = archive.part("generator")
    if state is not None:
        buffer._generator = buffer._generator or torch.Generator()
        buffer._generator.set_state(state)
        buffer._sampler.generator = buffer._generator


def _named(part: Sampler | Any) -> dict[str, Any]:
    return {"kind": type(part).__name__, "state": dict(part.state_dict())}


def _places(first: int, count: int, capacity: int) -> list[slice]:
    """Where rows of a ring lie: one slice, or two where it closes in between."""
    start = first % capacity
    stop = start + count
    if stop <= capacity:
        return [slice(start, stop)]
    return [slice(start, capacity), slice(0, stop - capacity)]


def _of_tensors(storage: Storage) -> TensorStorage:
    if isinstance(storage, ListStorage):
        raise NotImplementedError(
            "a ListStorage holds objects of any kind, which only pickles could keep, and loading "
            "a pickle runs code. Store tensors or tensordicts in a LazyTensorStorage, or keep "
            "state_dict() yourself."
        )
    if not isinstance(storage, TensorStorage):
        raise TypeError(
            f"a {type(storage).__name__} cannot be dumped: only storages of tensors can."
        )
    return storage


def _require_same_size(
    storage: TensorStorage, archive: Archive, under: str, columns: torch.Size
) -> None:
    inner = columns.numel()
    capacity = -(-storage._asked // inner) * inner if storage._asked > 1 else storage.max_size
    kept = archive.part(f"{under}/capacity")
    if capacity != kept:
        raise ValueError(
            f"{archive.folder} is of a storage of {kept} rows and this one has {capacity}: make "
            "one of the same size."
        )
    dim = archive.part(f"{under}/dim_extend")
    if dim != storage.arrangement.dim_extend or (columns and len(columns) != storage.ndim - 1):
        raise ValueError(
            f"{archive.folder} is of a storage with columns {list(columns)} that grows along "
            f"dimension {dim}, this one has {storage.ndim} dimensions and grows along "
            f"{storage.arrangement.dim_extend}: make one of the same shape."
        )
