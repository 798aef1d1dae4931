"""Saving and restoring a buffer: in memory, or in a folder, there with or without hooks."""

from __future__ import annotations

import os
from typing import Any

from rl_replay.buffer.batches import BatchMaker
from rl_replay.buffer.parts import BufferParts
from rl_replay.checkpoint.buffer import dump_buffer, load_buffer, load_rows
from rl_replay.checkpoint.hooks import Hook, dump_changed, load_changed
from rl_replay.checkpoint.state_dict import load_state, state_of


class Checkpoint:
    """Saves a buffer as it is without its prefetched batches, and restores it.

    Attributes:
        save_hooks: They change the rows that are written, in this order.
        load_hooks: They change rows back that such hooks had changed.
    """

    def __init__(self, parts: BufferParts, batches: BatchMaker) -> None:
        self._parts, self._batches = parts, batches
        self.save_hooks: list[Hook] = []
        self.load_hooks: list[Hook] = []

    def state(self) -> dict[str, Any]:
        """Everything that the next samples depend on."""
        parts = self._parts
        with parts.local.lock, parts.storage.exclusive_writer():
            self._batches.rewind()
            return state_of(parts)

    def load_state(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        parts = self._parts
        with parts.local.lock:
            self._batches.rewind()
            load_state(parts, state)
            parts.changes += 1

    def dump(self, path: str) -> None:
        """Writes the buffer to a folder; with hooks only the rows that they make."""
        parts = self._parts
        with parts.local.lock, parts.storage.exclusive_writer():
            if self.save_hooks:
                dump_changed(parts, path, self.save_hooks)
                return
            self._batches.rewind()
            dump_buffer(parts, path)

    def load(self, path: str | os.PathLike[str], *, rows_only: bool) -> None:
        """Restores what `dump` wrote."""
        parts = self._parts
        with parts.local.lock:
            self._batches.rewind()
            if not load_changed(parts, path, self.load_hooks):
                (load_rows if rows_only else load_buffer)(parts, path)
            parts.changes += 1
