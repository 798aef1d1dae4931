"""What one row holds: the dtype, the shape and the place of each leaf."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any, Protocol, Self

import torch
from tensordict import TensorDictBase

from rl_slabs.arguments import key_list, whole
from rl_slabs.dtypes import carrier, dtype_named, name_of
from rl_tensordict import as_tuple, leaves_of
from rl_tensordict.types import NestedKey

PACKED_LEAF_BYTES = 256
"""Leaves of at most this many bytes a row share one packed row; larger ones have own arrays."""


class HasZero(Protocol):
    """Anything whose `zero()` is a tensordict of the right leaves, such as a composite spec."""

    def zero(self) -> TensorDictBase:
        """A tensordict of zeros, batch dimensions in front."""
        ...


@dataclass(frozen=True)
class Field:
    """One leaf of a row.

    Attributes:
        path: The names that lead to the leaf, outermost first.
        dtype: Its dtype.
        shape: Its shape in one row, batch dimensions dropped.
        offset: Bytes from the start of the packed row, or None for a leaf with an own array.

    Example:
        >>> field = RowSchema({("next", "reward"): (torch.float32, (1,))})["next", "reward"]
        >>> field.key, field.nbytes, field.offset
        (('next', 'reward'), 4, 0)
    """

    path: tuple[str, ...]
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int | None

    @property
    def key(self) -> NestedKey:
        """The leaf's key as tensordict spells it: a string, or a tuple for a nested key."""
        return self.path[0] if len(self.path) == 1 else self.path

    @property
    def nbytes(self) -> int:
        """Bytes of the leaf in one row."""
        return self.dtype.itemsize * prod(self.shape)

    def __str__(self) -> str:
        return f"{name_of(self.dtype)} {list(self.shape)}"


class RowSchema:
    """What one row holds. Immutable; equal where leaves, dtypes, shapes and places are.

    Leaves of at most 256 bytes a row are in one packed row, those with the largest items first,
    so that each is aligned; the row is padded to 8 bytes (16 with complex128). Larger leaves have
    arrays of their own. The order in which leaves were given does not matter.

    Attributes:
        fields: Every leaf; the packed ones first, in the order in which they lie.
        row_bytes: Bytes of a packed row, padding included.

    Args:
        leaves: Each leaf's key, and its dtype and shape in one row.
        packed_bytes: Leaves of at most so many bytes are packed; with 0 each has its own array, as
            rows over tensors made elsewhere need.

    Raises:
        ValueError: No leaf at all, a negative size, or a key that is both a leaf and a group.
        TypeError: A dtype that a row cannot hold.

    Example:
        >>> RowSchema({"observation": (torch.float32, (3,)), "done": (torch.bool, (1,))})
        RowSchema: 2 leaves, 16 bytes a row
          offset  bytes  leaf
               0     12  observation: float32 [3]
              12      1  done: bool [1]
    """

    __slots__ = ("_by_path", "fields", "packed_bytes", "row_bytes")

    def __init__(
        self,
        leaves: Mapping[NestedKey, tuple[torch.dtype, Iterable[int]]],
        *,
        packed_bytes: int = PACKED_LEAF_BYTES,
    ) -> None:
        try:
            found = [
                Field(_path(key), dtype, tuple(int(size) for size in shape), None)
                for key, (dtype, shape) in leaves.items()
            ]
        # a tensor as the leaves, or as a dtype, raises a RuntimeError, as does a lazy iterator
        except (TypeError, AttributeError, ValueError, RuntimeError, OverflowError) as error:
            raise TypeError(
                f"expected a dtype and a shape for each key, such as (torch.float32, (3,)): {error}"
            ) from None
        packed_bytes = whole(packed_bytes, "packed_bytes")
        _check(found)
        small = [field for field in found if field.nbytes <= packed_bytes and packed_bytes]
        packed, row_bytes = _pack(small)
        large = [field for field in found if field not in small]
        self.packed_bytes = packed_bytes
        self.fields: tuple[Field, ...] = (*packed, *sorted(large, key=lambda field: field.path))
        self.row_bytes: int = row_bytes
        self._by_path = {field.path: field for field in self.fields}

    @classmethod
    def from_tensordict(
        cls, tensordict: TensorDictBase, *, packed_bytes: int = PACKED_LEAF_BYTES
    ) -> Self:
        """The schema of one row of a tensordict: its batch dimensions are dropped.

        Args:
            tensordict: Leaves `[*B, *shape]`.
            packed_bytes: See the class.

        Raises:
            TypeError: Not a tensordict, or a leaf that is no dense tensor.

        Example:
            >>> from tensordict import TensorDict
            >>> batch = TensorDict({"action": torch.zeros(5, 2)}, batch_size=[5])
            >>> RowSchema.from_tensordict(batch)["action"].shape
            (2,)
        """
        batch_dims = getattr(tensordict, "batch_dims", None)
        if batch_dims is None:
            raise TypeError(
                f"expected a tensordict of rows, got {type(tensordict).__name__}. "
                "Wrap the leaves: TensorDict(leaves, batch_size=[rows])."
            )
        leaves = leaves_of(tensordict)
        rows = {path: (leaf.dtype, leaf.shape[batch_dims:]) for path, leaf in leaves.items()}
        return cls(rows, packed_bytes=packed_bytes)  # type: ignore[arg-type]

    @classmethod
    def from_spec(cls, spec: HasZero) -> Self:
        """The schema of one row of what a composite spec describes, by its `zero()`.

        Raises:
            TypeError: `spec` has no `zero()` that returns a tensordict.

        Example:
            >>> from tensordict import TensorDict
            >>> class Spec:
            ...     def zero(self): return TensorDict({"done": torch.zeros(7, 1)}, batch_size=[7])
            >>> RowSchema.from_spec(Spec())["done"].shape
            (1,)
        """
        if not callable(getattr(spec, "zero", None)):
            raise TypeError(
                f"expected a composite spec, got {type(spec).__name__} without a zero() method. "
                "For a tensordict use RowSchema.from_tensordict."
            )
        return cls.from_tensordict(spec.zero())

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """The schema that `to_dict` wrote.

        Raises:
            ValueError: A part is missing or unknown, or the places are not the ones that this
                version gives to the same leaves.

        Example:
            >>> schema = RowSchema({"reward": (torch.float64, (1,))})
            >>> RowSchema.from_dict(schema.to_dict()) == schema
            True
        """
        try:
            leaves: dict[NestedKey, tuple[torch.dtype, Iterable[int]]] = {
                tuple(part["path"]): (dtype_named(part["dtype"]), tuple(part["shape"]))
                for part in plain["fields"]
            }
            schema = cls(leaves, packed_bytes=plain.get("packed_bytes", PACKED_LEAF_BYTES))
        except (KeyError, TypeError, IndexError, RuntimeError) as error:
            raise ValueError(
                f"not a row schema: expected what RowSchema.to_dict() returns, got {plain!r}."
            ) from error
        if schema.to_dict() != plain:
            raise ValueError(
                f"the places of the leaves differ: this version lays them out as "
                f"{schema.to_dict()}, got {plain}. Write the rows anew with this version."
            )
        return schema

    def to_dict(self) -> dict[str, Any]:
        """The schema as lists, strings and integers, for JSON.

        Example:
            >>> RowSchema({"done": (torch.bool, (1,))}).to_dict()["fields"]
            [{'path': ['done'], 'dtype': 'bool', 'shape': [1], 'offset': 0}]
        """
        fields = [
            {
                "path": list(field.path),
                "dtype": name_of(field.dtype),
                "shape": list(field.shape),
                "offset": field.offset,
            }
            for field in self.fields
        ]
        plain: dict[str, Any] = {"row_bytes": self.row_bytes, "fields": fields}
        if self.packed_bytes != PACKED_LEAF_BYTES:
            plain["packed_bytes"] = self.packed_bytes
        return plain

    @property
    def packed(self) -> tuple[Field, ...]:
        """The leaves that share the packed row."""
        return tuple(field for field in self.fields if field.offset is not None)

    @property
    def large(self) -> tuple[Field, ...]:
        """The leaves with arrays of their own."""
        return tuple(field for field in self.fields if field.offset is None)

    @property
    def nbytes(self) -> int:
        """Bytes of one row, own arrays and padding included."""
        return self.row_bytes + sum(field.nbytes for field in self.large)

    def select(self, keys: Iterable[NestedKey]) -> tuple[Field, ...]:
        """The leaves that `keys` name, in the schema's order; a group's key means all in it.

        Raises:
            KeyError: A key that is neither a leaf nor a group.
            TypeError: One string instead of a list.

        Example:
            >>> schema = RowSchema({("next", "reward"): (torch.float32, (1,))})
            >>> [field.key for field in schema.select(["next"])]
            [('next', 'reward')]
        """
        chosen: set[tuple[str, ...]] = set()
        for path in map(_path, key_list(keys)):
            under = [field.path for field in self.fields if field.path[: len(path)] == path]
            if not under:
                raise KeyError(
                    f"no leaf {path} in these rows: choose some of {list(self)}, as a list."
                )
            chosen.update(under)
        return tuple(field for field in self.fields if field.path in chosen)

    def require_equal(self, other: RowSchema) -> None:
        """Nothing where the two schemas are equal, else an error that lists every difference.

        Raises:
            ValueError: The schemas differ.
            TypeError: `other` is no schema.

        Example:
            >>> half, single = (RowSchema({"a": (t, ())}) for t in (torch.half, torch.float))
            >>> half.require_equal(single)  # doctest: +ELLIPSIS
            Traceback (most recent call last):
            ValueError: the schemas differ (expected, got): a: float16 [], float32 []. ...
        """
        if self == other:
            return
        if not isinstance(other, RowSchema):
            raise TypeError(
                f"expected a RowSchema, got {type(other).__name__}. "
                "Use RowSchema.from_tensordict(batch)."
            )
        paths = dict.fromkeys(chain(self._by_path, other._by_path))
        pairs = [(path, self._by_path.get(path), other._by_path.get(path)) for path in paths]
        said = "; ".join(
            f"{'.'.join(path)}: {mine or 'no such leaf'}, {theirs or 'no such leaf'}"
            for path, mine, theirs in pairs
            if (mine and str(mine)) != (theirs and str(theirs))
        )
        raise ValueError(
            f"the schemas differ (expected, got): {said}. "
            "Cast, reshape or select the leaves, or make a slab with the second schema."
        )

    def __getitem__(self, key: NestedKey) -> Field:
        try:
            return self._by_path[_path(key)]
        except KeyError:
            raise KeyError(f"no leaf {key!r} in these rows: choose from {list(self)}.") from None

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str | tuple) and _path(key) in self._by_path

    def __iter__(self) -> Iterator[NestedKey]:
        return (field.key for field in self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowSchema) and self.fields == other.fields

    def __hash__(self) -> int:
        return hash(self.fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_dict, (self.to_dict(),)

    def __repr__(self) -> str:
        lines = [
            f"{'own' if field.offset is None else field.offset:>8}{field.nbytes:>7}  "
            f"{'.'.join(field.path)}: {field}"
            for field in self.fields
        ]
        head = f"RowSchema: {len(self)} leaves, {self.nbytes} bytes a row"
        return "\n".join([head, "  offset  bytes  leaf", *lines])


def _path(key: Any) -> tuple[str, ...]:
    try:
        return as_tuple(tuple(key) if isinstance(key, list) else key)
    except TypeError:
        msg = f"expected a string or a tuple of strings as key, got {key!r}."
        raise KeyError(msg) from None


def _check(fields: list[Field]) -> None:
    if not fields:
        raise ValueError("a row needs at least one leaf, got none. Give a tensordict with leaves.")
    paths = {field.path for field in fields}
    if len(paths) < len(fields):
        raise ValueError(f"a key is given twice among {[field.key for field in fields]}.")
    for field in fields:
        carrier(field.dtype)
        if min(field.shape, default=0) < 0:
            raise ValueError(
                f"leaf {field.path} has shape {list(field.shape)}: every row has one fixed shape. "
                "Replace the -1 by its size, or keep the leaf outside."
            )
        if any(field.path[:depth] in paths for depth in range(1, len(field.path))):
            raise ValueError(
                f"{field.path} is nested below another leaf's key: rename one of the two."
            )


def _pack(fields: list[Field]) -> tuple[list[Field], int]:
    # equal dtypes lie side by side, so that one split per dtype gives all of them
    fields = sorted(fields, key=lambda f: (-f.dtype.itemsize, name_of(f.dtype), f.path))
    placed, end = [], 0
    for field in fields:
        placed.append(Field(field.path, field.dtype, field.shape, end))
        end += field.nbytes
    if any(field.dtype.itemsize == 16 for field in fields):
        # a row without bytes has no stride that such a leaf could be a view of
        return placed, max(1, -(-end // 16)) * 16
    return placed, -(-end // 8) * 8
