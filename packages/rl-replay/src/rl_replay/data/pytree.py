"""Nested dicts, lists and tuples of tensors: from a tree to its leaves, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Number
from typing import Any, NamedTuple

import numpy as np
import torch

from rl_replay.data.containers import container, container_name
from rl_tensordict import as_tensor
from rl_tensordict.types import KeyPath


class Branch(NamedTuple):
    """One container of a tree."""

    kind: str  # "dict", "list", "tuple", or the class of a named tuple as "module:name"
    names: tuple[str, ...]  # The keys or places of its children
    below: tuple[Branch | None, ...]  # a branch for each child, None for a leaf

    @property
    def is_of_dicts(self) -> bool:
        """Whether all of its containers are dicts."""
        return self.kind == "dict" and all(one is None or one.is_of_dicts for one in self.below)

    def fits(self, other: Branch | None) -> bool:
        """Whether a tree of another form has the same leaves; dicts may name them in any order."""
        if other is None or self.kind != other.kind:
            return False
        mine, theirs = (dict(zip(one.names, one.below, strict=True)) for one in (self, other))
        return mine.keys() == theirs.keys() and all(
            theirs[name] is None if branch is None else branch.fits(theirs[name])
            for name, branch in mine.items()
        )

    def __str__(self) -> str:
        """The form as it would be written, with dots for leaves."""
        parts = ["..." if branch is None else str(branch) for branch in self.below]
        if self.kind == "dict":
            named = (f"{name!r}: {part}" for name, part in zip(self.names, parts, strict=True))
            return f"{{{', '.join(named)}}}"
        inside = ", ".join(parts)
        if self.kind == "list":
            return f"[{inside}]"
        name = "" if self.kind == "tuple" else self.kind.rpartition(":")[2]
        return f"{name}({inside})"

    def to_plain(self) -> list[Any]:
        """The branch as lists and strings, for JSON."""
        below = [None if branch is None else branch.to_plain() for branch in self.below]
        return [self.kind, list(self.names), below]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> Branch:
        """The branch that `to_plain` wrote."""
        kind, names, below = plain
        if not isinstance(kind, str) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"no form of a tree: expected strings, got {kind!r} and {names!r}.")
        if len(names) != len(below):
            raise ValueError(f"no form of a tree: {len(names)} names of {len(below)} parts.")
        branches = tuple(None if one is None else cls.from_plain(one) for one in below)
        return cls(kind, tuple(names), branches)

    def class_names(self) -> set[str]:
        """The names of all named tuples in the tree."""
        mine = set() if self.kind in ("dict", "list", "tuple") else {self.kind}
        return mine.union(*(below.class_names() for below in self.below if below is not None))


def take_apart(tree: Any) -> tuple[Branch | None, dict[KeyPath, torch.Tensor]]:
    """The form of a tree, and its leaves by the names that lead to them."""
    leaves: dict[KeyPath, torch.Tensor] = {}
    return _take_apart(tree, (), leaves), leaves


def put_together(branch: Branch, leaf_at: Callable[[KeyPath], Any], path: KeyPath = ()) -> Any:
    """The tree of a form."""
    parts = [
        leaf_at((*path, name)) if below is None else put_together(below, leaf_at, (*path, name))
        for name, below in zip(branch.names, branch.below, strict=True)
    ]
    if branch.kind == "dict":
        return dict(zip(branch.names, parts, strict=True))
    if branch.kind == "list":
        return parts
    return tuple(parts) if branch.kind == "tuple" else container(branch.kind)(*parts)


def _take_apart(tree: Any, path: KeyPath, leaves: dict[KeyPath, torch.Tensor]) -> Branch | None:
    if isinstance(tree, Mapping):
        kind, parts = "dict", dict(tree)
    elif isinstance(tree, list | tuple):
        kind = "list" if isinstance(tree, list) else "tuple"
        if hasattr(tree, "_fields"):
            kind = container_name(type(tree))
        parts = {str(place): part for place, part in enumerate(tree)}
    else:
        leaves[path] = _as_leaf(tree, path)
        return None
    for name in parts:
        if not isinstance(name, str):
            raise TypeError(f"expected strings as keys, got {name!r} at {path}: use str(key).")
    below = [_take_apart(part, (*path, name), leaves) for name, part in parts.items()]
    return Branch(kind, tuple(parts), tuple(below))


def _as_leaf(value: Any, path: KeyPath) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, np.ndarray | np.generic | Number | bool):
        if isinstance(value, np.ndarray) and min(value.strides, default=0) < 0:
            value = value.copy()  # torch has no negative strides, as those of a flipped frame
        try:
            return as_tensor(value)
        except TypeError:  # texts and objects
            kind = f"an array of {getattr(value, 'dtype', type(value).__name__)}"
    else:
        kind = type(value).__name__
    where = f" at {path}" if path else ""
    raise TypeError(
        f"this storage holds tensors, got {kind}{where}: use ListStorage for other objects."
    )


def count_elements(data: Any, ndim: int) -> int:
    """The number of elements of a call of `extend`; 1 if it is not known yet."""
    # A tensordict counts all its batch dimensions, as its rows are stored one by one.
    if isinstance(data, list):
        return len(data)
    if hasattr(data, "batch_size"):
        return int(data.batch_size.numel())
    if isinstance(data, Mapping | tuple) and data:
        leaves = data.values() if isinstance(data, Mapping) else data
        return count_elements(next(iter(leaves)), ndim)
    shape = getattr(data, "shape", ())
    return int(torch.Size(shape[:ndim]).numel()) if shape else 1
