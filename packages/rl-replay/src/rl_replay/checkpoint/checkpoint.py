"""Saving and restoring a buffer: in memory, or in a folder, there with or without hooks."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from rl_replay.buffer.batches import BatchMaker
from rl_replay.buffer.parts import BufferParts
from rl_replay.checkpoint.hooks import ChangedRows, Hook, changed_rows, dump_rows, put_rows
from rl_replay.checkpoint.parts import Folder
from rl_replay.checkpoint.reader import Archive
from rl_replay.checkpoint.storage import load_storage, require_same_shape, storage_parts
from rl_replay.checkpoint.writer import dump
from rl_replay.storages import ListStorage, Storage, TensorStorage
from rl_tensordict.arguments import stack_level

_PARTS = ("storage", "sampler", "writer")
_APART = "storage/folder"  # the rows, where a checkpointer of the user's keeps them in a folder
_KEYS = frozenset({*_PARTS, "kinds", "dim_extend", "transform", "batch_size", "rng"})


class Checkpoint:
    """Saves a buffer as it is without its prefetched batches, and restores it."""

    def __init__(self, parts: BufferParts, batches: BatchMaker) -> None:
        self._parts, self._batches = parts, batches
        self.save_hooks: list[Hook] = []  # they change the rows that are written, in this order
        self.load_hooks: list[Hook] = []  # they change rows back that such hooks had changed

    def state(self) -> dict[str, Any]:
        """Everything that the next samples depend on."""
        parts = self._parts
        with parts.local.lock, parts.storage.exclusive_writer():
            self._batches.rewind()
            _catch_up(parts)
            return _state_without_rows(parts) | {
                "storage": parts.storage.state_dict(),
                "kinds": {name: type(getattr(parts, name)).__name__ for name in _PARTS[1:]},
                "dim_extend": parts.dim_extend,
            }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        parts, asked = self._parts, self._parts.batch_size
        with parts.local.lock:
            self._batches.rewind()
            _require_fitting(parts, state)
            rows = state["storage"]
            size = (rows["capacity"], len(rows["first"])) if "first" in rows else None
            _restore(parts, state, lambda: parts.storage.load_state_dict(rows), size)
            parts.changes += 1
        warn_of_batch_size(asked, parts.batch_size)

    def dump(self, path: str) -> None:
        """Writes the buffer to a folder; with hooks only the rows that they make."""
        parts = self._parts
        with parts.local.lock, parts.storage.exclusive_writer():
            self._batches.rewind()
            _catch_up(parts)
            state = _state_without_rows(parts)
            tree: dict[str, Any] = {}
            for name in _PARTS[1:]:
                kind = type(getattr(parts, name)).__name__
                tree[name] = {"kind": kind, "state": dict(state[name])}
            tree |= {"transform": state["transform"], "batch_size": state["batch_size"]}
            tree["generator"] = state["rng"]
            own = parts.storage.checkpointer
            hooks = [*self.save_hooks, *(own.save_hooks if own is not None else [])]
            if own is not None and not own.is_own:
                rows = Folder(partial(own.dumps, parts.storage))
                dump(path, {"storage": {"folder": rows}, **tree})
            elif hooks:
                dump_rows(parts.storage, path, hooks, tree)
            else:
                form = None if own is None else own.form
                with parts.storage.read_ahead():
                    dump(path, {"storage": storage_parts(parts.storage, form), **tree})

    def load(self, path: str | os.PathLike[str], *, rows_only: bool) -> None:
        """Restores what `dump` wrote."""
        parts, asked = self._parts, self._parts.batch_size
        with parts.local.lock:
            self._batches.rewind()
            own = parts.storage.checkpointer
            hooks = [*self.load_hooks, *(own.load_hooks if own is not None else [])]
            with Archive(path) as archive:
                archive.verify()
                changed = changed_rows(parts.storage, archive, hooks)
                if changed is not None:
                    _load_changed(parts, archive, changed, rows_only=rows_only)
                elif rows_only:
                    _rows_loader(parts.storage, archive)()
                    _forget_rows(parts)
                else:
                    _load_all(parts, archive)
            parts.changes += 1
        warn_of_batch_size(asked, parts.batch_size)


def warn_of_batch_size(asked: int | None, loaded: int | None) -> None:
    """Says that samples are of another size than the buffer was made with."""
    if asked not in (None, loaded):
        message = (
            f"batch_size {asked} of this buffer was replaced by {loaded}, that of the saved one, so"
            f" that the next samples are the same: set buffer.batch_size = {asked} afterwards if "
            "that is not wanted."
        )
        warnings.warn(message, UserWarning, stacklevel=stack_level())


def _rows_loader(storage: Storage, archive: Archive) -> Callable[[], None]:
    """What restores the rows of a dump; raises for one that is not of a buffer or a storage."""
    if _APART in archive.names():
        return lambda: _load_apart(storage, archive)
    if "storage/count" in archive.names():
        return lambda: load_storage(storage, archive)
    held = sorted({name.partition("/")[0] for name in archive.names()})
    raise ValueError(
        f"{archive.folder} is no dump of a buffer, it holds {held}: load it into what wrote it."
    )


def _load_apart(storage: Storage, archive: Archive) -> None:
    """Lets the checkpointer of a storage restore the rows that one like it wrote."""
    folder, checkpointer = archive.folder_of(_APART), storage.checkpointer
    if checkpointer is None or checkpointer.is_own:
        raise ValueError(
            f"the rows of {archive.folder} were written by a checkpointer of their own: give the "
            "storage one like it, storage.checkpointer = ..."
        )
    checkpointer.loads(storage, folder)


def _load_changed(
    parts: BufferParts, archive: Archive, changed: ChangedRows, *, rows_only: bool
) -> None:
    """Restores rows that hooks changed, and the other parts if they belong to these rows."""
    kinds = [type(getattr(parts, name)).__name__ for name in _PARTS[1:]]
    known = f"{_PARTS[1]}/kind" in archive.names()
    same = known and kinds == [archive.part(f"{name}/kind") for name in _PARTS[1:]]
    if rows_only or not same or changed.first is None:
        put_rows(parts.storage, changed)
        _forget_rows(parts)
        return
    size = (changed.capacity, changed.lanes)
    _restore(parts, _saved_state(archive), lambda: put_rows(parts.storage, changed), size)


def _forget_rows(parts: BufferParts) -> None:
    """Lets sampler and writer know that there are other rows than theirs."""
    parts.sampler.reset()
    parts.writer.reset()


def _saved_state(archive: Archive) -> dict[str, Any]:
    """The state of everything but the rows."""
    return {
        "sampler": archive.read("sampler/state"),
        "writer": archive.read("writer/state"),
        "transform": archive.read("transform"),
        "batch_size": archive.part("batch_size"),
        "rng": archive.part("generator"),
    }


def _catch_up(parts: BufferParts) -> None:
    """Lets the sampler know the rows that are saved with its state."""
    if len(parts.storage):  # attaches rows of other processes
        parts.sampler.catch_up(parts.storage)


def _state_without_rows(parts: BufferParts) -> dict[str, Any]:
    """The state of everything but the rows."""
    return {
        "sampler": parts.sampler.state_dict(),
        "writer": parts.writer.state_dict(),
        "transform": dict(parts.transform.state_dict()),
        "batch_size": parts.batch_size,
        "rng": parts.rng_state(),
    }


def _restore(
    parts: BufferParts,
    state: Mapping[str, Any],
    load_rows: Callable[[], None],
    size: tuple[int, int] | None,
) -> None:
    """Restores everything but the rows, then the rows; where either fails, nothing changes.

    `size` is how many rows the former storage held, and in how many lanes.
    """
    # In a storage of another size rows and trajectories are numbered anew, so an epoch begins anew.
    former = copy.deepcopy(_state_without_rows(parts))
    if state["batch_size"] is None:  # one that was never chosen replaces no choice
        state = {**state, "batch_size": parts.batch_size}
    generator = parts.generator
    try:
        _load_without_rows(parts, state)
        load_rows()
        storage = parts.storage
        if size not in (None, (storage.max_size, len(storage.ring.window().first))):
            parts.sampler.renumbered(storage)
    except BaseException:
        try:
            parts.generator = parts.sampler.generator = generator
            _load_without_rows(parts, former)
        except BaseException:
            parts.sampler.reset()  # rather than draw by the state of other rows
            raise
        raise


def _load_without_rows(parts: BufferParts, state: Mapping[str, Any]) -> None:
    try:
        parts.transform.load_state_dict(state["transform"])
    except RuntimeError as error:
        names = [type(one).__name__ for one in parts.transform]
        raise ValueError(
            f"the saved buffer had other transforms, or other settings of them: this buffer has "
            f"{names}. Make it with the same ones, or leave it as it is and take the rows of a "
            f"dump by loads(path, rows_only=True). {' '.join(str(error).split())}"
        ) from error
    parts.sampler.load_state_dict(state["sampler"])
    parts.writer.load_state_dict(state["writer"])
    parts.batch_size = state["batch_size"]
    if state["rng"] is not None:
        parts.generator = parts.generator or torch.Generator()
        parts.generator.set_state(state["rng"])
        parts.sampler.generator = parts.generator


def _require_fitting(parts: BufferParts, state: Mapping[str, Any]) -> None:
    """Raises unless the parts of a buffer can take a state."""
    if not isinstance(state, Mapping):
        raise ValueError(
            f"this is no state of a buffer: {type(state).__name__}. Give a state_dict()."
        )
    if missing := sorted(_KEYS - set(state)):
        raise ValueError(f"this is no state of a buffer: it lacks {missing}. Give a state_dict().")
    for name, kind in state["kinds"].items():
        _require_same_kind("the state", name, kind, getattr(parts, name))
    storage, rows = parts.storage, state["storage"]
    for storage_kind, key in ((ListStorage, "items"), (TensorStorage, "rows")):
        if isinstance(storage, storage_kind) and key not in rows:
            raise ValueError(
                f"the state is not of a {storage_kind.__name__}, as this buffer's "
                f"{type(storage).__name__} is one: make it with a storage of the same kind."
            )
    if isinstance(storage, TensorStorage) and "columns" in rows:
        require_same_shape("the state", storage, rows["columns"], state["dim_extend"])


def _require_same_kind(
    source: object, name: str, kind: str, part: object, otherwise: str = ""
) -> None:
    """Raises unless a part of a buffer is of the kind that is to be loaded."""
    if kind != type(part).__name__:
        raise ValueError(
            f"{source} is of a buffer with a {kind}, this one has a {type(part).__name__}: make it "
            f"with the same {name}{otherwise}."
        )


def _load_all(parts: BufferParts, archive: Archive) -> None:
    """Restores a dumped buffer, whose next samples are the same."""
    load_rows = _rows_loader(parts.storage, archive)
    for name in _PARTS[1:]:
        rows = ", or leave it as it is and take the rows by loads(path, rows_only=True)"
        kind = archive.part(f"{name}/kind")
        _require_same_kind(archive.folder, name, kind, getattr(parts, name), rows)
    first = archive.part("storage/first") if "storage/first" in archive.names() else None
    size = (archive.part("storage/capacity"), len(first)) if isinstance(first, list) else None
    _restore(parts, _saved_state(archive), load_rows, size)
