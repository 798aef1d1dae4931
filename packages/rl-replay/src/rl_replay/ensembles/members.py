"""A fixed list of parts, one for each buffer of an ensemble, and which of them an index means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch

Member = TypeVar("Member")


class Members(Generic[Member]):
    """A fixed list that an integer indexes, and a slice, a list or a tensor makes smaller."""

    _kind: ClassVar[type] = object  # what each of them is

    def __init__(self, *members: Member) -> None:
        if not members:
            raise ValueError(f"a {type(self).__name__} of nothing: give at least one member.")
        for member in members:
            if not isinstance(member, self._kind):
                kind = self._kind.__name__.lower()
                raise TypeError(f"expected {kind}s, got {type(member).__name__}.")
        self._members = members

    def chosen(self, places: list[int]) -> Self:
        """The same kind of list, of some members."""
        return type(self)(*(self._members[place] for place in places))

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members)

    def __getitem__(self, index: Any) -> Any:
        """A member by an integer, or an ensemble of some by a slice, a list or a tensor `[n]`."""
        found = places_of(index, len(self))
        return self._members[found] if isinstance(found, int) else self.chosen(found)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._members))})"


def places_of(index: Any, count: int) -> int | list[int]:
    """The places of members that an integer, a slice, a list or a tensor `[n]` means."""
    if isinstance(index, torch.Tensor):
        if index.is_floating_point() or index.is_complex() or index.dtype is torch.bool:
            raise TypeError(f"members are chosen by integers, got {index.dtype}.")
        if index.ndim > 1:
            raise ValueError(
                f"members are chosen by a tensor [n], got one of shape {list(index.shape)}: "
                "flatten it."
            )
        index = index.tolist()
    if isinstance(index, slice):
        return list(range(count))[index]
    if isinstance(index, list | tuple | range):
        return [_place(one, count) for one in index]
    return _place(index, count)


def _place(index: Any, count: int) -> int:
    if isinstance(index, bool) or not hasattr(index, "__index__"):
        raise TypeError(
            f"a member is chosen by an integer, several by a slice, a list or a tensor: got "
            f"{index!r}."
        )
    place: int = index.__index__()
    if not -count <= place < count:
        raise IndexError(f"there are {count} members, and no number {place}.")
    return place % count
