"""The structure of the caller's data: from data to flat rows of leaves, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, NamedTuple, Self, get_args

import torch
from tensordict import TensorDict, TensorDictBase, is_tensor_collection

from rl_layout import keys
from rl_replay.data.containers import container, container_name
from rl_replay.data.pytree import Branch, put_together, take_apart
from rl_replay.linking.markers import Extent
from rl_slabs.internals import leaves_of
from rl_tensordict import NestedKey, UnfitValue, build, entries_of, nest
from rl_tensordict.types import KeyPath

Form = Literal["tensordict", "tensorclass", "tensor", "tree"]

TENSOR_KEY = "_data"
"""The one leaf of rows that are plain tensors."""

SAMPLE_KEYS: tuple[NestedKey, ...] = (
    keys.INDEX,
    keys.PRIORITY_WEIGHT,
    keys.ROW,
    keys.SLICE_IDS,
    keys.STORAGE_ID,
)
"""Keys of samples alone: dropped where a sample is stored again."""


@dataclass(frozen=True)
class Arrangement:
    """How the batch dimensions of data map onto the rows of a storage."""

    ndim: int = 1  # Dimensions of the storage
    dim_extend: int = 0  # The dimension of the data along which a storage grows

    def flat(self, leaf: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """Lay a leaf `[*shape, ...]` out as rows `[n, ...]`."""
        if self.dim_extend:
            leaf = leaf.transpose(0, self.dim_extend)
        return leaf.reshape(shape.numel(), *leaf.shape[len(shape) :])

    def columns(self, shape: torch.Size) -> torch.Size:
        """The dimensions of the storage after the first, for data `[*shape]`."""
        return torch.Size(self.swapped(shape)[1:])

    def swapped(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """A shape with the dimension that grows in front, or back again."""
        changed = list(shape)
        changed[0], changed[self.dim_extend] = changed[self.dim_extend], changed[0]
        return tuple(changed)


class Batch(NamedTuple):
    """Data laid out as rows."""

    cells: TensorDictBase  # The rows [n]
    shape: torch.Size  # The batch dimensions that the data had, as many as the storage has
    extent: Extent  # Which rows are neighbours in time


class Structure:
    """The caller's form of a row: a tensordict, a tensorclass, a tensor or a tree of tensors."""

    # Immutable; made from the first data that are stored.

    def __init__(
        self,
        form: Form,
        element: torch.Size = torch.Size(),  # noqa: B008 - immutable
        groups: Mapping[KeyPath, tuple[torch.Size, str | None]] | None = None,
        tree: Branch | str | None = None,
    ) -> None:
        self.form = form
        self.element = element
        self.groups = dict(groups or {})
        self.tree = tree
        self.is_plain = form == "tensordict" and not element and not groups

    @classmethod
    def of(cls, data: Any, *, element: torch.Size | None = None) -> Self:
        """The structure of rows like these."""
        if not is_tensor_collection(data):
            tree = None if isinstance(data, torch.Tensor) else take_apart(data)[0]
            return cls("tensor") if tree is None else cls("tree", tree=tree)
        batch_dims = data.batch_dims - len(element or ())
        groups = dict(_groups(data, batch_dims))
        is_class = not isinstance(data, TensorDictBase)
        return cls(
            "tensorclass" if is_class else "tensordict",
            element or torch.Size(),
            groups,
            container_name(type(data)) if is_class else None,
        )

    @property
    def is_tensordict(self) -> bool:
        """Whether rows are returned as tensordicts or tensorclasses."""
        return self.form in ("tensordict", "tensorclass")

    def take_apart(self, data: Any, arrangement: Arrangement) -> Batch:
        """Lays data out as rows; nothing is copied where the memory is in that order already."""
        if self.is_tensordict:
            return self._take_tensordict(data, arrangement)
        leaves = self.leaves_by_path(data)
        shape = common_shape(leaves, arrangement.ndim)
        if not shape.numel():
            raise _nothing(list(shape))
        if arrangement.ndim > 1:
            leaves = {path: arrangement.flat(leaf, shape) for path, leaf in leaves.items()}
        cells = build(nest(leaves), torch.Size([shape.numel()]))
        return Batch(cells, shape, Extent.of(tuple(shape), arrangement.dim_extend))

    def put_together(self, cells: TensorDict) -> Any:
        """Rows in the form of the caller's data."""
        if self.is_plain:
            return cells
        if self.form == "tensor":
            return cells.get(TENSOR_KEY)
        if self.form == "tree":
            if not isinstance(self.tree, Branch):
                raise TypeError(f"a tree needs its form, got {self.tree!r}.")
            return put_together(self.tree, cells.get)
        if self.element or self.groups:
            cells = self._regrouped(cells, (), cells.batch_size)
        return cells if self.form == "tensordict" else _with_class(cells, str(self.tree))

    def to_plain(self) -> dict[str, Any]:
        """The structure as lists, strings and integers, for JSON."""
        return {
            "form": self.form,
            "element": list(self.element),
            "groups": [
                [list(path), list(dims), kind] for path, (dims, kind) in self.groups.items()
            ],
            "tree": self.tree.to_plain() if isinstance(self.tree, Branch) else self.tree,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """The structure that `to_plain` wrote."""
        tree, form = plain["tree"], plain["form"]
        needed = {"tree": list, "tensorclass": str}.get(form, type(None))
        if form not in get_args(Form) or not isinstance(tree, needed):
            raise ValueError(f"no structure of rows: {form!r} with the tree {tree!r}.")
        return cls(
            form,
            torch.Size(plain["element"]),
            {tuple(path): (torch.Size(dims), kind) for path, dims, kind in plain["groups"]},
            Branch.from_plain(tree) if isinstance(tree, list) else tree,
        )

    def class_names(self) -> set[str]:
        """The names of the named tuples and tensorclasses that rows are."""
        names = {kind for _, kind in self.groups.values() if kind is not None}
        if isinstance(self.tree, Branch):
            return names | self.tree.class_names()
        return names if self.tree is None else names | {self.tree}

    def require_classes(self) -> Self:
        """This structure; raises unless its classes are known in this process."""
        for name in sorted(self.class_names()):
            container(name)
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Structure) and self.to_plain() == other.to_plain()

    def __hash__(self) -> int:
        return hash((self.form, self.element))

    def __repr__(self) -> str:
        return f"Structure({self.form})"

    def _take_tensordict(self, data: Any, arrangement: Arrangement) -> Batch:
        plain = type(data) is TensorDict  # the other two questions take 1 us each
        if not plain and not is_tensor_collection(data):
            raise TypeError(
                f"this storage holds {self.form} rows, got {type(data).__name__}: wrap the data, "
                "or call empty() first."
            )
        inner = len(self.element)
        batch = data.batch_size
        shape = batch[: len(batch) - inner] if inner else batch
        if batch[len(shape) :] != self.element or len(shape) < arrangement.ndim:
            raise _too_few(batch, arrangement.ndim, self.element)
        named = is_time(data, len(shape) - 1)
        if plain or isinstance(data, TensorDictBase):
            data = without_sample_keys(data)
        else:
            data = build(dict(data.items()), data.batch_size)
        length = shape[-1]
        if len(shape) > arrangement.ndim:
            kept = shape[len(shape) - arrangement.ndim + 1 :] if arrangement.ndim > 1 else ()
            shape = torch.Size([prod(shape[: len(shape) - len(kept)]), *kept])
            data = _merged(data, shape, dims=len(batch) - inner)
        count = shape.numel()
        if not count:
            raise _nothing(list(batch))
        if arrangement.dim_extend:
            leaves = leaves_of(data)
            flat = {path: arrangement.flat(leaf, shape) for path, leaf in leaves.items()}
            data = build(nest(flat), torch.Size([count]))
        elif len(shape) > 1 or inner:
            data = _merged(data, torch.Size([count]), dims=len(shape))
        extent = (
            Extent(count, 1, length, named)
            if arrangement.ndim == 1
            else Extent.of(tuple(shape), arrangement.dim_extend, named=named)
        )
        return Batch(data, shape, extent)

    def cells(self, data: Any, shape: torch.Size) -> TensorDictBase:
        """Data as rows `[*shape]`; tensordicts may have some of the leaves only."""
        if self.is_tensordict and is_tensor_collection(data):
            return self.take_apart(data, Arrangement()).cells
        if Structure.of(data).form != self.form:
            raise self.mismatch(data)
        return build(nest(self.leaves_by_path(data)), shape)

    def leaves_by_path(self, data: Any) -> dict[KeyPath, torch.Tensor]:
        """The leaves of a tensor or tree; raises unless it has this structure."""
        tree, leaves = take_apart(data) if not is_tensor_collection(data) else (None, None)
        if leaves is None or (tree is None) != (self.form == "tensor"):
            raise self.mismatch(data)
        if self.form == "tensor":
            return {(TENSOR_KEY,): leaves[()]}
        if tree != self.tree and not (isinstance(self.tree, Branch) and self.tree.fits(tree)):
            raise self.mismatch(data)
        return leaves

    def mismatch(self, data: Any) -> TypeError:
        """The error for data of another structure."""
        stored = str(self.tree) if isinstance(self.tree, Branch) else f"a {self.form}"
        got: object = None if is_tensor_collection(data) else take_apart(data)[0]
        return TypeError(
            f"expected data like the first that were stored, {stored}, got "
            f"{got or type(data).__name__}: convert them, or call empty() first."
        )

    def _regrouped(self, cells: TensorDictBase, path: KeyPath, batch: torch.Size) -> Any:
        """The same leaves, with the batch dimensions and classes that groups had."""
        dims, kind = self.groups.get(path, (torch.Size(), None))
        entries = {
            name: self._regrouped(value, (*path, name), batch)
            if isinstance(value, TensorDictBase)
            else value
            for name, value in cells.items()
        }
        made = build(entries, batch + self.element + dims)
        return made if kind is None else _with_class(made, kind)


def is_time(data: Any, dim: int) -> bool:
    """Whether a batch dimension of a tensordict is named so."""
    return bool(data.names[dim] == keys.TIME)


def _groups(data: Any, batch_dims: int) -> Iterator[tuple[KeyPath, tuple[torch.Size, str | None]]]:
    """Nested tensordicts with batch dimensions or classes of their own."""
    for name, value in data.items():
        if not is_tensor_collection(value) or not hasattr(value, "items"):
            continue
        own = value.batch_size[data.batch_dims :]
        kind = None if isinstance(value, TensorDictBase) else container_name(type(value))
        if own or kind is not None:
            yield (name,), (own, kind)
        for path, (deeper, below) in _groups(value, batch_dims):
            yield (name, *path), (own + deeper, below)


def _with_class(cells: TensorDictBase, name: str) -> Any:
    return container(name).from_tensordict(cells)


def without_sample_keys(data: TensorDictBase) -> TensorDictBase:
    """Rows without the entries that only samples have."""
    names = _names(data)
    if keys.INDEX not in names and keys.PRIORITY_WEIGHT not in names:
        group = data.get(keys.COLLECTOR) if keys.COLLECTOR in names else None
        if group is None or not {keys.ROW[1], keys.SLICE_IDS[1], keys.STORAGE_ID[1]} & set(
            _names(group)
        ):
            return data
    return data.exclude(*SAMPLE_KEYS)


def _names(data: Any) -> Any:
    return entries_of(data) if type(data) is TensorDict else data.keys()


def _merged(data: TensorDictBase, shape: torch.Size, dims: int) -> TensorDictBase:
    """The same rows with their first `dims` dimensions as `shape`."""
    leaves = leaves_of(data)
    flat = {path: leaf.reshape(shape + leaf.shape[dims:]) for path, leaf in leaves.items()}
    return build(nest(flat), shape)


def common_shape(leaves: Mapping[KeyPath, torch.Tensor], ndim: int) -> torch.Size:
    """The first dimensions of all leaves; raises unless they are equal."""
    shapes = {leaf.shape[:ndim] for leaf in leaves.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) < ndim:
        found = {".".join(path) or "tensor": list(leaf.shape) for path, leaf in leaves.items()}
        raise ValueError(
            f"the first {ndim} dimension(s) of all leaves must be equal, got shapes {found}: "
            "stack the data, or use add() for one element."
        )
    return shapes.pop()


def _nothing(shape: list[int]) -> ValueError:
    return UnfitValue(f"there is nothing to store: got data of batch size {shape}. Leave it out.")


def _too_few(batch: torch.Size, ndim: int, element: torch.Size) -> ValueError:
    inner = f" before the {list(element)} of each row" if element else ""
    return ValueError(
        f"expected at least {ndim} batch dimension(s){inner}, got batch size {list(batch)}: "
        "use add() for one element, or reshape the data."
    )
