"""What of a buffer is kept: in memory by `state_dict`, on a disk by `dumps`."""

from __future__ import annotations

import os
from typing import Any

from rl_replay.buffer.batches import Sampling
from rl_replay.checkpoint.buffer import dump_buffer, load_buffer, load_rows
from rl_replay.checkpoint.hooks import Hook, dump_changed, load_changed
from rl_replay.checkpoint.state_dict import load_state, state_of
from rl_replay.edges import edge, folder_name


class Keeping(Sampling):
    """Saving and restoring a buffer.

    Args:
        **parts: As for `Sampling`.
    """

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self._save_hooks: list[Hook] = []
        self._load_hooks: list[Hook] = []

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next samples depend on, rows included, for `torch.save`.

        `dumps` keeps large buffers better.
        """
        with self._lock, self._storage.exclusive_writer():
            return state_of(self)

    @edge
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Stand as another buffer did.

        Args:
            state: What its `state_dict` returned.

        Raises:
            ValueError: It is no such state, or of a buffer of other parts or another size; nothing
                has changed then.
        """
        with self._lock:
            load_state(self, state)
            self._changed()

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Write the buffer to a folder: rows, sampler, writer, transforms and generator.

        What is written is as long as the buffer is full. It is written next to a dump that is there
        already and swapped in when it is safe on the disk, so that a kill leaves one or the other.
        Others may continue writing a shared buffer: what they overwrite meanwhile is left out.

        Args:
            path: The folder; created if missing.

        Raises:
            NotImplementedError: A storage of any objects, which only pickles could keep.
            RuntimeError: A shared lossless buffer to which others wrote in the meantime.
            OSError: Too little space, or no way to write there.

        Example:
            >>> import tempfile
            >>> import torch
            >>> from rl_replay import LazyTensorStorage, ReplayBuffer
            >>> first, second = (ReplayBuffer(storage=LazyTensorStorage(9)) for _ in range(2))
            >>> _ = first.extend(torch.arange(5))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     first.dumps(folder)
            ...     second.loads(folder)
            >>> second[:]
            tensor([0, 1, 2, 3, 4])
        """
        path = folder_name(path)
        with self._lock, self._storage.exclusive_writer():
            if self._save_hooks:
                dump_changed(self, path, self._save_hooks)
            else:
                dump_buffer(self, path)

    def loads(self, path: str | os.PathLike[str], *, rows_only: bool = False) -> None:
        """Stand as the buffer did that was written to a folder: the next samples are the same.

        In a storage of another size, or of another number of lanes, rows keep their order and an
        epoch begins anew.

        Args:
            path: The folder.
            rows_only: Take the rows alone. Sampler, writer, transforms, batch size and generator
                stay this buffer's, and an epoch begins anew. So rows that one program collected
                are sampled by another in its own way.

        Raises:
            FileNotFoundError: There is no dump.
            RuntimeError: Other processes hold lanes of a shared buffer.
            ValueError: A dump that was cut short or altered, of another version, or of a buffer of
                other parts.
            TypeError: `rows_only` is no bool.
            OSError: Too little memory or disk.
        """
        path = folder_name(path)
        if not isinstance(rows_only, bool):
            raise TypeError(f"rows_only: expected True or False, got {rows_only!r}.")
        with self._lock:
            if not load_changed(self, path, self._load_hooks):
                (load_rows if rows_only else load_buffer)(self, path)
            self._changed()

    dump = save = dumps
    load = loads

    @edge
    def register_save_hook(self, hook: Hook) -> None:
        """Let a function change the rows that `dumps` writes; only the rows are written then.

        Args:
            hook: From all rows, the oldest first, to the tensordict to write: `[len(buffer)]`, or
                `[*B, T]` from a storage of several dimensions. `rl_layout.TED2Flat` is one.
        """
        self._save_hooks.append(hook)

    def register_load_hook(self, hook: Hook) -> None:
        """Let a function change back what save hooks made of the rows.

        Args:
            hook: From the tensordict that was written to the rows to extend an empty buffer by, the
                oldest first. `rl_layout.Flat2TED` is one.
        """
        self._load_hooks.append(hook)
