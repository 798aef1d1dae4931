"""Composites that differ, stacked along a dimension without being merged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import torch
from tensordict import LazyStackedTensorDict

from rl_specs.composite.composite import Composite
from rl_specs.composite.lockable import Lockable
from rl_specs.composite.spec_tree import specs_of
from rl_specs.composite.stacked import Stack, Stacked
from rl_specs.core.shaped import stack
from rl_specs.core.tensor_spec import TensorSpec
from rl_tensordict import NestedKey, as_tuple, is_key


class StackedComposite(Stack, Composite):
    """Composites that differ, stacked along a dimension: `torch.stack` of unequal composites.

    Its data are lazily stacked tensordicts. `keys` lists what all of them have; other entries
    are exclusive to some and reached through `specs` or an index along the stacked dimension.

    Args:
        *specs: composites of one shape.
        dim: the new dimension.

    Raises:
        ValueError: there are no specs, or their shapes differ.

    Example:
        >>> from rl_specs import Unbounded
        >>> one, two = Composite(obs=Unbounded((3,))), Composite(obs=Unbounded((5,)))
        >>> StackedComposite(one, two, dim=0).rand()[1]["obs"].shape
        torch.Size([5])
    """

    def __init__(self, *specs: TensorSpec, dim: int) -> None:
        if not all(isinstance(spec, Composite) for spec in specs):
            msg = f"expected composites: got {[type(spec).__name__ for spec in specs]}"
            raise TypeError(msg)
        super().__init__(*specs, dim=dim)
        require_one_shape(specs)
        self._lockers, self._dim_names, self.data_cls = [], None, None
        self.step_mdp_static = all(spec.step_mdp_static for spec in self.specs)

    def _entries(self) -> dict[str, TensorSpec | None]:
        shared = set.intersection(*(set(spec._entries()) for spec in self.specs))
        # sets have no order: the keys come as the first spec has them
        return {name: self._stacked(name) for name in self.specs[0]._entries() if name in shared}

    def _stacked(self, key: NestedKey) -> Any:
        found = [spec[key] for spec in self.specs]
        if any(spec is None for spec in found):
            return None
        # torch.stack takes leaves of one class only
        mixed = len({type(spec) for spec in found if not isinstance(spec, Composite)}) > 1
        return Stacked(*found, dim=self.dim) if mixed else stack(found, self.dim)

    def _nodes(self) -> Iterable[Lockable]:
        return self.specs

    @property
    def shape(self) -> torch.Size:
        """Sizes of the stack. They follow from what is stacked, and cannot be set."""
        return self._shape

    @shape.setter
    def shape(self, value: Any) -> None:
        self._cannot("set the shape of", "stack other specs")

    @property
    def names(self) -> list[str | None]:
        """Names of the dimensions: a stack has none, and they cannot be set."""
        return [None] * self.ndim

    @names.setter
    def names(self, value: Iterable[str | None] | None) -> None:
        self._cannot("name the dimensions of", "name those of the stacked specs")

    @property
    def _specs(self) -> dict[str, TensorSpec | None]:  # type: ignore[override]
        return self._entries()

    def __getitem__(self, index: Any) -> Any:
        if not is_key(index):
            return super().__getitem__(index)
        return self._stacked(index)

    def __delitem__(self, key: NestedKey) -> None:
        self._check_unlocked()
        holders = [spec for spec in self.specs if key in spec]
        if not holders:
            msg = f"no spec for {key!r} in any of the stacked ones"
            raise KeyError(msg)
        for spec in holders:
            del spec[key]

    def set(self, name: NestedKey, spec: Any) -> Self:
        """Set one spec in every stacked one, in place.

        Args:
            name: a key, nested or not.
            spec: a spec with the stacked dimension, which is taken apart along it; or None.

        Returns:
            The spec itself.

        Raises:
            ValueError: its size along the stacked dimension is another.
        """
        self._check_unlocked()
        entry = Composite(dict(spec), shape=self._shape) if isinstance(spec, Mapping) else spec
        if entry is not None and not isinstance(entry, TensorSpec):
            msg = f"expected a spec for {name!r}: got {type(spec).__name__}"
            raise TypeError(msg)
        if entry is not None and entry.shape[self.dim : self.dim + 1] != (len(self.specs),):
            msg = (
                f"the spec of {name!r} needs size {len(self.specs)} in dimension {self.dim}: got "
                f"shape {tuple(entry.shape)}"
            )
            raise ValueError(msg)
        # part k of the new spec belongs to the k-th stacked composite
        parts = [None] * len(self.specs) if entry is None else entry.unbind(self.dim)
        for holder, part in zip(self.specs, parts, strict=True):
            holder.set(as_tuple(name), part)
        return self

    def update(self, dict_or_spec: Any) -> Self:
        """Set several specs in every stacked one, in place; nested ones are merged.

        Args:
            dict_or_spec: named specs, with the stacked dimension; or a stack like this one.

        Returns:
            The spec itself.
        """
        if isinstance(dict_or_spec, StackedComposite):
            for holder, other in zip(self.specs, dict_or_spec.specs, strict=True):
                holder.update(other)
            return self
        for key, spec in specs_of(dict_or_spec):
            if isinstance(spec, Composite) and key in self:
                for holder, part in zip(self.specs, spec.unbind(self.dim), strict=True):
                    holder[key].update(part)
            else:
                self.set(key, spec)
        return self

    def empty(self) -> Any:
        """Make a spec like this one, without any entry."""
        return stack([spec.empty() for spec in self.specs], self.dim)

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """Write plain values as a lazily stacked tensordict.

        Args:
            val: one dictionary for each spec.
            ignore_device: leave the entries on the CPU.

        Returns:
            A tensordict.

        Raises:
            ValueError: there are not as many values as specs.
        """
        if isinstance(val, Mapping) or len(val) != len(self.specs):
            msg = f"expected {len(self.specs)} dictionaries, one for each spec: got {val!r}"
            raise ValueError(msg)
        pairs = zip(self.specs, val, strict=True)
        return self._join([s.encode(v, ignore_device=ignore_device) for s, v in pairs], self.dim)

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """Write data as a list of dictionaries, one for each spec."""
        pairs = zip(self.specs, self._checked_parts(val), strict=True)
        return [spec.to_numpy(part, safe) for spec, part in pairs]

    def _join(self, values: list[Any], dim: int) -> Any:
        return LazyStackedTensorDict.maybe_dense_stack(values, dim)


def require_one_shape(specs: Sequence[TensorSpec]) -> None:
    """Raise for composites of different shapes."""
    if len({spec.shape for spec in specs}) > 1:
        msg = f"stacked composites need one shape: got {[tuple(s.shape) for s in specs]}"
        raise ValueError(msg)
