"""How the entries of a key are laid out in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from rl_tensordict import NestedKey
from rl_tensordict.arguments import check_collection
from rl_tensordict.types import Words
from rl_trees.row_words import bytes_of, words_of


@dataclass(frozen=True)
class KeyEntry:
    """One entry of a key: its name, dtype, and the shape of one row."""

    key: NestedKey
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def width(self) -> int:
        """Bytes of one row."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.key!r} {str(self.dtype).removeprefix('torch.')} {list(self.shape)}"


@dataclass(frozen=True)
class KeyLayout:
    """The entries of a key, one after the other, and zeros up to a whole word."""

    entries: tuple[KeyEntry, ...]

    @classmethod
    def of(cls, names: Sequence[NestedKey], columns: Sequence[torch.Tensor]) -> KeyLayout:
        """The layout of columns `[N, ...]`."""
        rows = zip(names, columns, strict=True)
        return cls(tuple(KeyEntry(name, x.dtype, tuple(x.shape[1:])) for name, x in rows))

    @property
    def names(self) -> list[NestedKey]:
        """The names of the entries."""
        return [entry.key for entry in self.entries]

    @property
    def width(self) -> int:
        """Words of a key."""
        # rounded up: the last word is filled with zeros
        return -(-sum(entry.width for entry in self.entries) // 8)

    def encode(self, columns: Sequence[torch.Tensor]) -> Words:
        """Keys as words `[N, width]`."""
        for entry, x in zip(self.entries, columns, strict=True):
            if x.dtype != entry.dtype or tuple(x.shape[1:]) != entry.shape:
                given = KeyEntry(entry.key, x.dtype, tuple(x.shape[1:]))
                raise ValueError(
                    f"keys are {entry}, as the first ones were, got {given}: cast or reshape "
                    "them, or use another map."
                )
        return words_of([bytes_of(x) for x in columns])

    def decode(self, words: Words) -> TensorDict:
        """Keys `[N]` with their entries, as they were encoded."""
        rows, begin = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), -1), 0
        keys = TensorDict({}, [len(words)])
        for entry in self.entries:
            part = torch.from_numpy(rows[:, begin : begin + entry.width].copy())
            shape = (len(words), *entry.shape)
            keys.set(entry.key, part.reshape(-1).view(entry.dtype).reshape(shape))
            begin += entry.width
        return keys

    def to_json(self) -> list[Any]:
        """Plain lists and words that `from_json` takes."""
        return [
            [entry.key, str(entry.dtype).removeprefix("torch."), list(entry.shape)]
            for entry in self.entries
        ]

    @classmethod
    def from_json(cls, entries: Any) -> KeyLayout:
        """The layout that `to_json` gave."""
        try:
            return cls(tuple(_entry(*entry) for entry in entries))
        except (TypeError, AttributeError) as error:
            raise ValueError(f"this is no layout of keys: {entries!r}.") from error


def _entry(key: Any, dtype: Any, shape: Any) -> KeyEntry:
    """An entry from its parts in JSON."""
    names = [key] if isinstance(key, str) else key
    kind = getattr(torch, dtype)
    sizes = all(isinstance(size, int) and size >= 0 for size in shape)
    if not all(isinstance(name, str) for name in names) or not isinstance(kind, torch.dtype):
        raise TypeError
    if not sizes:
        raise TypeError
    return KeyEntry(key if isinstance(key, str) else tuple(key), kind, tuple(shape))


def columns_of(
    tensordict: TensorDictBase, names: Sequence[NestedKey], *, canonical: bool = False
) -> list[torch.Tensor]:
    """The entries of a key as columns `[N, ...]`, with all batch dimensions in one."""
    check_collection("keys", tensordict)
    columns = []
    for name in names:
        x = tensordict.get(name, None)
        if not isinstance(x, torch.Tensor):
            there = sorted(map(str, tensordict.keys(True, True)))
            raise KeyError(
                f"the key is made of {list(names)}, and {name!r} is missing. There are: "
                f"{', '.join(there)}."
            )
        x = x.reshape(tensordict.batch_size.numel(), *x.shape[tensordict.ndim :])
        columns.append(_canonical(x) if canonical and x.is_floating_point() else x)
    return columns


def _canonical(x: torch.Tensor) -> torch.Tensor:
    """Numbers with 0.0 for -0.0, and one NaN for all."""
    return torch.where(x.isnan(), torch.full_like(x, torch.nan), x + 0.0)
