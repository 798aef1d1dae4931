"""Named specs: the description of a tensordict."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from textwrap import indent
from typing import Any, Self

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_specs.composite.entries import (
    MISSING,
    encode_entry,
    has_entries,
    is_dict,
    plain_entry,
    read_entry,
    require_entries,
)
from rl_specs.composite.fit import on_device, with_lead
from rl_specs.composite.spec_tree import SpecTree
from rl_specs.core.placement import as_device, destination
from rl_specs.core.sizes import NO_SIZE, TensorView, as_size, safe, stand_in, viewed_shape
from rl_specs.core.tensor_spec import TensorSpec
from rl_tensordict import build


class Composite(SpecTree):
    """Named specs that share their leading batch dimensions.

    Its data are tensordicts. A member holds a member of every spec, and may hold more.
    `zero()` is a member where every leaf's is. Specs are kept, not copied.

    Args:
        *args: at most one dictionary or `Composite` of specs.
        shape: sizes that every spec begins with, -1 where dynamic.
        device: device of every spec, or None if they may differ.
        data_cls: class of the data; None for `TensorDict`.
        step_mdp_static: whether a step of an environment leaves this part alone.
        names: names of the dimensions, or None.
        batch_size: the same as `shape`.
        **leaves: named specs.

    Raises:
        KeyError: a name is reserved.
        TypeError: an argument is no dictionary, or holds no specs.
        ValueError: a spec has another shape or device.

    Example:
        >>> from rl_specs import Categorical, Unbounded
        >>> spec = Composite(obs=Unbounded((5, 3)), action=Categorical(2, (5,)), shape=(5,))
        >>> spec.rand()["obs"].shape
        torch.Size([5, 3])
        >>> spec.is_in({"obs": torch.zeros(5, 3)})
        False
    """

    def __init__(
        self,
        *args: Any,
        shape: Any = None,
        device: Any = None,
        data_cls: type | None = None,
        step_mdp_static: bool = False,
        names: Iterable[str | None] | None = None,
        batch_size: Any = None,
        **leaves: Any,
    ) -> None:
        if shape is not None and batch_size is not None:
            msg = f"pass shape or batch_size, not both: got {shape} and {batch_size}"
            raise TypeError(msg)
        if len(args) > 1 or not all(isinstance(arg, Mapping | Composite) for arg in args):
            found = [type(arg).__name__ for arg in args]
            msg = f"expected at most one dictionary of specs: got {found}"
            raise TypeError(msg)
        super().__init__(
            batch_size if shape is None else shape,
            None,
            None if device is None else as_device(device),
        )
        self._specs, self._lockers, self._dim_names = {}, [], None
        self.data_cls = data_cls
        self.step_mdp_static = step_mdp_static
        for name, spec in (*(args[0].items() if args else ()), *leaves.items()):
            self.set(name, spec)
        self.names = names

    @property
    def shape(self) -> torch.Size:
        """Sizes that every spec begins with, -1 where dynamic. Setting it lifts nested ones."""
        return self._shape

    @shape.setter
    def shape(self, value: Any) -> None:
        self._check_unlocked()
        trial = self._replace(_shape=as_size(value), _dim_names=None)
        # all entries are fitted before this one changes: an entry that does not fit leaves it whole
        specs = {name: trial._adopted(name, spec) for name, spec in self._specs.items()}
        self.__dict__.update({**trial.__dict__, "_specs": specs})

    @property
    def batch_size(self) -> torch.Size:
        """Sizes that every spec begins with: the same as `shape`."""
        return self.shape

    @batch_size.setter
    def batch_size(self, value: Any) -> None:
        self.shape = value

    def is_in(self, val: Any) -> bool:
        """Tell whether a tensordict, or a dictionary, holds a member of every spec."""
        if type(val) is not TensorDict and not has_entries(val):
            return False
        if self.data_cls is not None and not isinstance(val, self.data_cls):
            return False
        if not is_dict(val) and not self._matches(val.batch_size):
            return False
        try:
            return self._all_in(val)
        except RuntimeError:
            # entries of a lazy stack that differ in shape are no tensor
            return False

    def type_check(self, value: Any, key: Any = None) -> None:
        """Check the dtypes of the entries.

        Args:
            value: a tensordict, or a tensor where `key` names one spec.
            key: the keys to check; None for all.

        Raises:
            KeyError: an entry is missing.
            TypeError: an entry has another dtype.
        """
        if isinstance(value, Tensor):
            if key is None:
                msg = f"a tensor has one dtype: pass key, one of {list(self.keys(True, True))}"
                raise TypeError(msg)
            self[key].type_check(value, key)
            return
        require_entries(value)
        chosen = self._entries() if key is None else [key] if isinstance(key, str) else key
        for name in chosen:
            spec = self[name]
            if spec is not None:
                found = read_entry(value, name)
                spec.type_check(found, *(() if isinstance(spec, Composite) else (name,)))

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """Write a dictionary of plain values as a tensordict, entry by entry.

        Args:
            val: named values; some may be missing.
            ignore_device: leave the entries on the CPU.

        Returns:
            A new tensordict.

        Raises:
            KeyError: there is no spec for an entry.
            TypeError: the value is no dictionary.
            ValueError: an entry does not fit.
        """
        require_entries(val)
        specs, out = self._entries(), {}
        for name, value in val.items():
            if name not in specs:
                msg = f"no spec for the entry {name!r}: expected some of {list(specs)}"
                raise KeyError(msg)
            out[name] = encode_entry(name, specs[name], value, ignore_device)
        device = None if ignore_device else self._device
        return self._build(out, self._batch_of(val, out), device)

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """Write a tensordict as a dictionary of plain values, entry by entry.

        Args:
            val: a tensordict; entries without a spec are refused.
            safe: check the domains first; None for what `CHECK_SPEC_ENCODE` says.

        Returns:
            Named values, nested as the spec is.

        Raises:
            KeyError: there is no spec for an entry.
            TypeError: the value is no tensordict.
        """
        require_entries(val)
        specs = {name: self[name] for name in val.keys()}  # noqa: SIM118 - a tensordict iterates rows
        return {
            name: plain_entry(val, name) if spec is None else spec.to_numpy(val.get(name), safe)
            for name, spec in specs.items()
        }

    def cardinality(self) -> float:
        """Count the combinations of one batch element."""
        return math.prod(spec.cardinality() for spec in self._row()._leaves().values())

    def enumerate(self, use_mask: bool = False) -> Any:
        """List the combinations, the same in every batch element: `[number, *shape]`."""
        row = self._row()
        lists = {name: spec.enumerate(use_mask) for name, spec in row._leaves().items()}
        numbers = [torch.arange(len(values), device="cpu") for values in lists.values()]
        places = torch.meshgrid(*numbers, indexing="ij") if numbers else ()
        count = math.prod(len(values) for values in lists.values())
        entries = {
            name: values[place.flatten()]
            for (name, values), place in zip(lists.items(), places, strict=True)
        }
        out = row._build(entries, torch.Size((count,)), self._device)
        if not self.ndim:
            return out
        return out.reshape(count, *(1,) * self.ndim).expand(count, *self._safe)

    def to(self, dest: Any) -> Any:
        """Move or cast every spec."""
        if dest is None:
            return self
        _, device = destination(dest, None, self._device)
        specs = self._each(lambda spec: spec.to(dest))
        if device == self._device and all(specs[n] is s for n, s in self._entries().items()):
            return self
        return self._copied(_specs=specs, _device=device)

    def clone(self) -> Self:
        """Copy the spec, with all that it holds. The copy is not locked."""
        return self._copied(_specs=self._each(lambda spec: spec.clone()))

    def empty(self) -> Self:
        """Make a spec like this one, without any entry."""
        return self._copied(_specs={})

    def clear_device_(self) -> Self:
        """Forget the device, in place, here and in nested trees. Leaves keep theirs."""
        self._device = None
        for spec in self._leaves().values():
            spec.clear_device_()
        return self

    def index(self, index: Any, tensor_to_index: Any) -> Any:
        """Raise: a dictionary of values is no choice."""
        self._cannot("index with", "index with one leaf, such as spec['action'].index(...)")

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is type(self)
            and self._shape == other._shape
            and self._device == other._device
            and self.data_cls == other.data_cls
            and self.names == other.names
            and self._specs == other._specs
        )

    def __repr__(self) -> str:
        lines = [f"{name}: {spec!r}" for name, spec in self._entries().items()]
        lines.append(f"shape={tuple(self.shape)}, device={self.device}")
        if self.data_cls is not None:
            lines.append(f"data_cls={self.data_cls.__name__}")
        body = indent(",\n".join(lines), "    ")
        return f"{type(self).__name__}(\n{body})"

    def _filled(self, make: Callable[[TensorSpec, torch.Size], Any], shape: Any) -> Any:
        sizes = NO_SIZE if shape is None else as_size(shape)
        entries = {n: make(spec, sizes) for n, spec in self._specs.items() if spec is not None}
        return self._build(entries, sizes + self._safe, self._device)

    def _build(self, entries: dict[str, Any], batch: torch.Size, device: Any) -> Any:
        """Put entries that fit into the data class."""
        if self.data_cls is not None and not issubclass(self.data_cls, TensorDictBase):
            return self.data_cls.from_dict(entries, batch_size=batch, device=device)  # type: ignore[attr-defined]
        names = self._dim_names
        if names is not None:
            names = [*[None] * (len(batch) - len(names)), *names]
        return build(entries, batch, names, device)

    def _all_in(self, val: Any) -> bool:
        # reading the items once costs as much as two look-ups in a tensordict
        get = dict(val.items()).get if type(val) is TensorDict else val.get
        for name, spec in self._specs.items():
            if spec is None:
                continue
            entry = get(name, MISSING)
            if entry is MISSING:
                if not isinstance(spec, Composite) or not spec.is_empty():
                    return False
            elif not spec.is_in(entry):
                return False
        return True

    def _mismatch(self, val: Any) -> str:
        if not has_entries(val):
            return f"expected a tensordict or a dictionary, got {type(val).__name__}"
        if self.data_cls is not None and not isinstance(val, self.data_cls):
            return f"expected a {self.data_cls.__name__}, got a {type(val).__name__}"
        if not is_dict(val) and not self._matches(val.batch_size):
            return self._batch_mismatch(val)
        try:
            return self._entry_mismatch(val)
        except RuntimeError as error:
            return f"expected entries that stack, got {error}"

    def _entry_mismatch(self, val: Any) -> str:
        for name, spec in self._leaves().items():
            entry = val.get(name, MISSING)
            if entry is MISSING:
                return f"expected an entry {name!r}, found only {list(val.keys())}"
            if not spec.is_in(entry):
                return f"entry {name!r}: {spec._mismatch(entry)}"
        return ""

    def _batch_mismatch(self, val: Any) -> str:
        return f"expected batch size {tuple(self._shape)}, got {tuple(val.batch_size)}"

    def _project(self, val: Any) -> Any:
        require_entries(val)
        if not is_dict(val) and not self._matches(val.batch_size):
            raise ValueError(self._batch_mismatch(val))
        out = val.copy()
        for name, spec in self._leaves().items():
            entry = read_entry(val, name)
            found = spec.project(entry)
            if found is not entry:
                out.update({name: found})
        return out

    def _batch_of(self, val: Any, entries: dict[str, Any]) -> torch.Size:
        """Find the batch size of encoded entries, which may have further leading dimensions."""
        if isinstance(val, TensorDictBase):
            return torch.Size(val.batch_size)
        for name, spec in self._leaves().items():
            entry = entries.get(name)
            if entry is not None:
                return torch.Size(entry.shape[: len(entry.shape) - spec.ndim + self.ndim])
        return self._safe

    def _each(self, change: Callable[[TensorSpec], Any]) -> dict[str, Any]:
        """Change every spec; None stays None."""
        return {n: None if spec is None else change(spec) for n, spec in self._entries().items()}

    def _leaves(self) -> dict[str, TensorSpec]:
        """List the specs right below, trees or not."""
        return {name: spec for name, spec in self._entries().items() if spec is not None}

    def _row(self) -> Self:
        """Describe one batch element."""
        return self[(0,) * self.ndim] if self.ndim else self

    def _copied(self, **changes: Any) -> Self:
        """Copy, unlocked. Without this a copy would share the lock and the dictionary."""
        fresh = {"_locked": False, "_lockers": [], "_specs": dict(self._specs)}
        return self._replace(**{**fresh, **changes})

    def _new(self, specs: Mapping[str, Any]) -> Composite:
        return Composite(dict(specs), shape=self._shape, device=self._device, names=self._dim_names)

    def _adopted(self, name: str, spec: TensorSpec | None) -> TensorSpec | None:
        if spec is None:
            return None
        spec = with_lead(name, on_device(name, spec, self._device), self._shape)
        return self._named_like(spec)

    def _carry(self, view: TensorView, ndim: int) -> Self:
        lead = self._shape[:ndim]
        names = self._dim_names
        if names is not None:
            # tensordict knows what becomes of names
            named: Any = TensorDict({}, stand_in(lead), names=names[:ndim])
            renamed: Any = view(named)
            names = [*renamed.names, *names[ndim:]]
        return self._copied(
            _shape=viewed_shape(view, lead) + self._shape[ndim:],
            _specs=self._each(lambda spec: spec._carry(view, ndim)),
            _dim_names=names,
        )

    def _make_dynamic(self, dim: int) -> None:
        self._check_unlocked()
        specs = self._each(copy)
        for spec in specs.values():
            if spec is not None:
                spec._make_dynamic(dim)
        shape = torch.Size((*self._shape[:dim], -1, *self._shape[dim + 1 :]))
        self._shape, self._safe, self._specs = shape, safe(shape), specs
