"""A dictionary of specs, nested: its keys, its entries, and the names of its dimensions."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any, Self, TypeAlias

from rl_specs.composite.entries import require_entries
from rl_specs.composite.lockable import Lockable
from rl_specs.core.tensor_spec import TensorSpec
from rl_tensordict import NestedKey, as_key, as_tuple, is_key

IsLeaf: TypeAlias = Callable[[type], bool]

# these would read as attributes or arguments of the dictionary itself
RESERVED = frozenset({"shape", "device", "dtype", "space"})
_REQUIRED = object()


class SpecTree(Lockable, TensorSpec):
    """Named specs, some of them trees again. None means any value.

    A subclass says with `_adopted` what may come in, and with `_new` what a nested one is.
    """

    _specs: dict[str, TensorSpec | None]
    _dim_names: list[str | None] | None
    step_mdp_static: bool

    def _adopted(self, name: str, spec: TensorSpec | None) -> TensorSpec | None:
        """Check a spec that comes in, and fit it without changing it."""
        raise NotImplementedError

    def _new(self, specs: Mapping[str, Any]) -> SpecTree:
        """Make a tree that fits in this one."""
        raise NotImplementedError

    def _entries(self) -> dict[str, TensorSpec | None]:
        return self._specs

    def _nodes(self) -> Iterable[Lockable]:
        return [spec for spec in self._specs.values() if isinstance(spec, SpecTree)]

    def __getitem__(self, index: Any) -> Any:
        if not is_key(index):
            return super().__getitem__(index)
        node: Any = self
        path = as_tuple(index)
        for depth, name in enumerate(path):
            entries = node._entries() if isinstance(node, SpecTree) else {}
            if name not in entries:
                where = f" under {path[:depth]}" if depth else ""
                msg = f"no spec for {index!r}: expected one of {list(entries)}{where}"
                raise KeyError(msg)
            node = entries[name]
        return node

    def __setitem__(self, key: NestedKey, spec: Any) -> None:
        self.set(key, spec)

    def __delitem__(self, key: NestedKey) -> None:
        self._check_unlocked()
        path = as_tuple(key)
        holder = self[path[:-1]] if len(path) > 1 else self
        if not isinstance(holder, SpecTree) or path[-1] not in holder._entries():
            msg = f"no spec for {key!r}: expected one of {list(self.keys(True))}"
            raise KeyError(msg)
        if holder is not self:
            del holder[path[-1]]
        else:
            del self._specs[path[-1]]

    def __contains__(self, key: object) -> bool:
        return is_key(key) and as_key(as_tuple(key)) in self.keys(include_nested=True)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries())

    def __len__(self) -> int:
        return len(self._entries())

    def set(self, name: NestedKey, spec: Any) -> Self:
        """Set one spec, in place. Missing levels of a nested key are made.

        Args:
            name: a key, nested or not.
            spec: a spec, a dictionary of specs, or None for anything at all. It is not changed:
                where it needs another shape or device, a copy is set.

        Returns:
            The spec itself.

        Raises:
            KeyError: the key is reserved, or leads through a leaf.
            RuntimeError: the spec is locked.
            TypeError: key or spec are of the wrong type.
            ValueError: shape or device do not fit.
        """
        self._check_unlocked()
        path = as_tuple(name)
        if path[0] in RESERVED:
            msg = f"{path[0]!r} is the name of an attribute of the spec itself: choose another key"
            raise KeyError(msg)
        if len(path) == 1:
            entry = self._new(spec) if isinstance(spec, Mapping) else spec
            if entry is not None and not isinstance(entry, TensorSpec):
                msg = f"expected a spec for {name!r}: got {type(spec).__name__}"
                raise TypeError(msg)
            self._specs[path[0]] = self._adopted(path[0], entry)
            return self
        inner = self._specs.get(path[0])
        if inner is None:
            # adopted like any entry: it takes over shape, device and names
            inner = self._specs[path[0]] = self._adopted(path[0], self._new({}))
        if not isinstance(inner, SpecTree):
            msg = f"cannot set {name!r}: {path[0]!r} holds a {type(inner).__name__}, a leaf"
            raise KeyError(msg)
        inner.set(path[1:], spec)
        return self

    def get(self, item: NestedKey, default: Any = None) -> Any:
        """Read one spec.

        Args:
            item: a key, nested or not.
            default: returned if the key is missing.

        Returns:
            The spec.
        """
        try:
            return self[item]
        except KeyError:
            return default

    def pop(self, key: NestedKey, default: Any = _REQUIRED) -> Any:
        """Remove one spec, in place.

        Args:
            key: a key, nested or not.
            default: returned if the key is missing.

        Returns:
            The spec.

        Raises:
            KeyError: there is none, and no default.
            RuntimeError: the spec is locked.
        """
        if key not in self and default is not _REQUIRED:
            return default
        found = self[key]
        del self[key]
        return found

    def separates(self, *keys: NestedKey, default: Any = None) -> SpecTree | None:
        """Move some specs into a tree of their own, in place.

        Args:
            *keys: keys to move, nested or not.
            default: set if the key is missing; None to skip it.

        Returns:
            The new tree, or None if nothing was moved.
        """
        found = {as_tuple(key): self.pop(key, default) for key in keys}
        found = {key: spec for key, spec in found.items() if spec is not None}
        if not found:
            return None
        out = self._new({})
        for key, spec in found.items():
            out.set(key, spec)
        return out

    def update(self, dict_or_spec: Any) -> Self:
        """Set several specs, in place; nested ones are merged.

        Args:
            dict_or_spec: named specs. They are moved to the device of the tree.

        Returns:
            The spec itself.
        """
        for key, spec in specs_of(dict_or_spec):
            inner = self.get(key)
            # groups merge, leaves replace
            if isinstance(inner, SpecTree) and isinstance(spec, Mapping | SpecTree):
                inner.update(spec)
            elif isinstance(spec, TensorSpec) and self._device is not None:
                self.set(key, spec.to(self._device))
            else:
                self.set(key, spec)
        return self

    def keys(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        *,
        is_leaf: IsLeaf | None = None,
        step_mdp_static_only: bool = False,
    ) -> KeysView[NestedKey]:
        """List the keys.

        Args:
            include_nested: list keys of nested trees too, as tuples.
            leaves_only: leave out the nested trees themselves.
            is_leaf: tells from a type whether it counts as a leaf; None for all but trees.
            step_mdp_static_only: list trees that a step leaves alone as a whole.

        Returns:
            The keys.
        """
        return self._flat(include_nested, leaves_only, is_leaf, step_mdp_static_only).keys()

    def items(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        *,
        is_leaf: IsLeaf | None = None,
        step_mdp_static_only: bool = False,
    ) -> ItemsView[NestedKey, TensorSpec | None]:
        """List keys and specs. The arguments are those of `keys`."""
        return self._flat(include_nested, leaves_only, is_leaf, step_mdp_static_only).items()

    def values(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        *,
        is_leaf: IsLeaf | None = None,
        step_mdp_static_only: bool = False,
    ) -> ValuesView[TensorSpec | None]:
        """List the specs. The arguments are those of `keys`."""
        return self._flat(include_nested, leaves_only, is_leaf, step_mdp_static_only).values()

    def rand_update(self, val: Any) -> Any:
        """Write random members into a tensordict, in place, and return it."""
        return self._updated(val, self.rand())

    def zeros_update(self, val: Any) -> Any:
        """Write zeros into a tensordict, in place, and return it."""
        return self._updated(val, self.zero())

    def ones_update(self, val: Any) -> Any:
        """Write ones into a tensordict, in place, and return it."""
        return self._updated(val, self.one())

    def _updated(self, val: Any, entries: Any) -> Any:
        require_entries(val)
        found = val.update(entries)
        return val if found is None else found

    def cast(self, val: Any) -> Any:
        """Write the entries that have a spec in its dtype, on a copy where one changes."""
        out = val
        require_entries(val)
        for name, spec in self._entries().items():
            entry = val.get(name, None)
            found = entry if spec is None or entry is None else spec.cast(entry)
            if found is not entry:
                out = val.copy() if out is val else out
                out.update({name: found})
        return out

    def is_empty(self, recurse: bool = False) -> bool:
        """Tell whether there are no specs; with `recurse`, trees without leaves count as none."""
        if recurse:
            return not self.keys(include_nested=True, leaves_only=True)
        return not self._entries()

    @property
    def names(self) -> list[str | None]:
        """Names of the dimensions, None for unnamed ones."""
        return [None] * self.ndim if self._dim_names is None else list(self._dim_names)

    @names.setter
    def names(self, value: Iterable[str | None] | None) -> None:
        self._check_unlocked()
        names = None if value is None else list(value)
        if names is not None and len(names) != self.ndim:
            msg = f"expected {self.ndim} names, one for each dimension: got {names}"
            raise ValueError(msg)
        self._dim_names = names
        self._specs = {name: self._named_like(spec) for name, spec in self._specs.items()}

    def refine_names(self, *names: Any) -> Self:
        """Name dimensions that have no name yet, in place.

        Args:
            *names: one for each dimension, None to leave one unnamed; an ellipsis means as
                many dimensions as are left, which keep their names.

        Returns:
            The spec itself.

        Raises:
            ValueError: a dimension has another name already, or the number of names is wrong.
        """
        wanted = list(names)
        if Ellipsis in wanted:
            place = wanted.index(Ellipsis)
            skipped = self.ndim - len(wanted) + 1
            # the ellipsis is as many names as the arguments leave out
            wanted[place : place + 1] = self.names[place : place + skipped]
        clash = [(old, new) for old, new in zip(self.names, wanted, strict=False) if old]
        if any(new not in (old, None) for old, new in clash):
            msg = f"a name cannot be refined to another one: names are {self.names}, got {names}"
            raise ValueError(msg)
        self.names = wanted
        return self

    def _named_like(self, spec: TensorSpec | None) -> TensorSpec | None:
        """Name the dimensions of a nested tree as here, on a copy."""
        if self._dim_names is None or not isinstance(spec, SpecTree):
            return spec
        names = [*self._dim_names, *spec.names[self.ndim :]]
        if spec.names == names:
            return spec
        out = spec.clone()
        out.names = names
        return out  # type: ignore[no-any-return]

    def _flat(
        self, include_nested: bool, leaves_only: bool, is_leaf: IsLeaf | None, static_only: bool
    ) -> dict[NestedKey, TensorSpec | None]:
        out: dict[NestedKey, TensorSpec | None] = {}
        for name, spec in self._entries().items():
            # a static tree is listed as one entry, as a step moves it as one
            static = static_only and isinstance(spec, SpecTree) and spec.step_mdp_static
            leaf = not isinstance(spec, SpecTree) if is_leaf is None else is_leaf(type(spec))
            if leaf or static or not leaves_only:
                out[name] = spec
            if include_nested and isinstance(spec, SpecTree) and not static:
                # names below become paths that begin here
                inner = spec._flat(True, leaves_only, is_leaf, static_only)
                out.update({(name, *as_tuple(key)): entry for key, entry in inner.items()})
        return out


def specs_of(given: Any) -> Iterable[tuple[Any, Any]]:
    """The entries of a dictionary of specs."""
    if not isinstance(given, Mapping | SpecTree):
        msg = f"expected a dictionary of specs: got {type(given).__name__}"
        raise TypeError(msg)
    return given.items()
