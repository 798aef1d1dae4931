"""Dicts of arrays and numbers, as a loop over an environment has them, read as rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase

from rl_layout import keys
from rl_replay.data.pytree import Branch, take_apart
from rl_replay.data.structure import Structure, common_shape
from rl_slabs import RowSchema
from rl_slabs.internals import ValidatedLeaves, carrier, name_of
from rl_tensordict import CPU, build, nest

_FLAGS = frozenset({*keys.DONE_KEYS, keys.IS_INIT})
_SINGLETON = _FLAGS | {keys.REWARD}
"""Leaves that end in a singleton dimension in tensordicts, where a dict may have numbers."""

_ROOTS = ((), (keys.NEXT,))
"""Where the flags of the rows themselves are."""

_NUMBERS = frozenset("fiub")  # kinds of numpy that rewards are cast from


class RowDict:
    """A dict in the place of a tensordict: rewards, flags and `is_init` become singletons."""

    def __init__(self, entries: Mapping[str, Any], dims: int) -> None:
        self.entries, self.dims = entries, dims

    def __repr__(self) -> str:
        return repr(self.entries)

    def tensordict(self) -> TensorDictBase:
        """The tensordict, with `dims` batch dimensions."""
        leaves, dims = take_apart(_with_arrays(self.entries))[1], self.dims
        for path, leaf in leaves.items():
            name = path[-1]
            # one environment may return 0, -100 and np.float64(0.5) as rewards
            made = leaf.to(torch.get_default_dtype()) if name == keys.REWARD else leaf
            made = _flag(path, made, dims) if name in _FLAGS else made
            leaves[path] = made.unsqueeze(-1) if leaf.ndim == dims and name in _SINGLETON else made
        return build(nest(leaves), common_shape(leaves, dims))


def _with_arrays(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The entries with lists of numbers as tensors; a tensordict reads them so, too."""
    found = dict(entries)
    for name, value in entries.items():
        if isinstance(value, Mapping):
            found[name] = _with_arrays(value)
        elif isinstance(value, list) and (made := _tensor_of(value)) is not None:
            found[name] = made
    return found


def _tensor_of(values: list[Any]) -> torch.Tensor | None:
    """A list of numbers, or of such lists, as a tensor; None for a list of other things."""
    inner: Any = values
    while isinstance(inner, list) and inner:
        inner = inner[0]
    if not isinstance(inner, int | float | np.generic):
        return None
    try:
        return torch.tensor(values, device=CPU)
    except (TypeError, ValueError, RuntimeError):
        return None


def _flag(path: tuple[str, ...], leaf: torch.Tensor, dims: int) -> torch.Tensor:
    """A flag as bool, one a row: arrays of datasets hold 0 and 1, as floats or bytes."""
    # a flag of a group, as of agents, is one for each member
    if path[:-1] in _ROOTS and leaf.shape[dims:].numel() > 1:
        cure = (
            "for the rows of several environments use extend(), or a storage with ndim=2, whose "
            "columns are environments."
        )
        if dims:
            cure = (
                "concatenate episodes or environments, reshape(-1, ...), or pass "
                "TensorDict(..., batch_size=[E, T], names=[None, 'time'])."
            )
        raise ValueError(
            f"{'.'.join(path)!r} has shape {list(leaf.shape)}, and a row has one flag: {cure}"
        )
    if leaf.dtype is torch.bool:
        return leaf
    flag = leaf != 0
    if not torch.equal(flag.to(leaf.dtype), leaf):
        other = leaf[flag & (leaf != 1)].flatten()[0].item()
        raise ValueError(f"{'.'.join(path)!r} is a flag, 0 or 1 in each step: got {other}.")
    return flag


def without_wrapper(data: Any) -> Any:
    """The tensordict of a `RowDict`; other data as they are."""
    return data.tensordict() if isinstance(data, RowDict) else data


class DictReader:
    """Reads dicts whose leaves match a schema exactly, in one pass; the rest is left to others."""

    def __init__(self, schema: RowSchema, structure: Structure) -> None:
        tree = structure.tree
        # rows are read as `RowDict` is, or as the trees that they are
        self._as_tensordict = structure.form == "tensordict"
        known = self._as_tensordict or (isinstance(tree, Branch) and tree.is_of_dicts)
        # numpy has no name for the dtypes that are carried as integers
        known &= all(carrier(field.dtype) is field.dtype for field in schema.fields)
        self._kind = (RowDict if self._as_tensordict else dict) if known else None
        self._places: dict[str, Any] = {}
        for field in schema.fields if known else ():
            group = self._places
            for name in field.path[:-1]:
                group = group.setdefault(name, {})
            group[field.path[-1]] = field, np.dtype(name_of(field.dtype))

    def of(self, data: Any, dims: int) -> ValidatedLeaves | None:
        """The leaves, with 0 or 1 batch dimensions."""
        if type(data) is not self._kind:
            return None
        entries = data.entries if isinstance(data, RowDict) else data
        found, lead = ValidatedLeaves(), list[tuple[int, ...]]([()][dims:])
        try:
            fits = self._collect(entries, self._places, lead, found)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            return None
        return found if fits and len(lead[0]) == dims else None

    def _collect(
        self,
        data: Mapping[str, Any],
        places: dict[str, Any],
        lead: list[tuple[int, ...]],
        found: ValidatedLeaves,
    ) -> bool:
        """Adds the leaves of a group; `lead` gets the batch shape of the first one."""
        if len(data) != len(places):
            return False
        for name, value in data.items():
            place = places.get(name)
            if type(place) is not tuple:
                group = type(place) is dict and type(value) is dict
                if not group or not self._collect(value, place, lead, found):  # type: ignore[arg-type]
                    return False
                continue
            field, kind = place
            array = self._array(name, value, field.dtype, kind)
            if array is None:
                return False
            if not lead:
                lead.append(array.shape[:1])
            if self._as_tensordict and name in _SINGLETON and array.ndim == len(lead[0]):
                array = array[..., None]
            if array.shape != lead[0] + field.shape or array.shape[:1] == (0,):
                return False
            found[field.key] = array
        return True

    def _array(
        self, name: str, value: Any, dtype: torch.dtype, kind: np.dtype[Any]
    ) -> NDArray[Any] | None:
        """A value as an array of the dtype that a tensor of it would have; None unless it fits."""
        standard = dtype is torch.get_default_dtype()
        if type(value) is torch.Tensor:
            array = value.numpy()  # refused for one with a gradient, or on a device
        elif isinstance(value, np.ndarray | np.generic | bool | int):
            array = np.asarray(value)
        elif type(value) is float and standard:
            array = np.asarray(value, kind)
        else:
            return None
        if self._as_tensordict and name == keys.REWARD:
            numeric = standard and array.dtype.kind in _NUMBERS
            return array.astype(kind, copy=False) if numeric else None
        if self._as_tensordict and name in _FLAGS and array.dtype != np.bool_:
            return None  # the general way looks whether they are flags
        return array if array.dtype == kind else None
