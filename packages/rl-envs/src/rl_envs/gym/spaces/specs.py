"""Gymnasium spaces as specs, and specs as spaces."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from rl_envs.gym.spaces.tree import Space, parts_of_space
from rl_envs.gym.text import Alphabet
from rl_specs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
    Unbounded,
)
from rl_tensordict.types import Array

SAME = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
# torch cannot draw or compare wide unsigned integers
WIDER = {"uint16": torch.int32, "uint32": torch.int64, "uint64": torch.int64}
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in SAME} | WIDER


def spec_of_space(space: Space, *, one_hot: bool = False) -> TensorSpec:
    """Describe the data of a Gymnasium space.

    `Box` becomes `Bounded`, or `Unbounded` where it has no bound at all; `Discrete` and
    `MultiDiscrete` become categorical or one-hot (rows of choices in two dimensions stay
    categorical); `MultiBinary` becomes `Binary`; `Dict` and `Tuple` become `Composite`, the parts
    of a tuple named "0", "1", and so on. Choices count from 0 also where the space starts
    elsewhere. `Text` becomes numbers of characters, int64 `[max_length]`, which `Alphabet` reads.
    Unsigned integers that torch cannot compute with become signed ones that hold them.

    Args:
        space: a space.
        one_hot: write choices as one-hot vectors, bool; otherwise as int64 numbers.

    Returns:
        The spec of one value, on the CPU, where the data of a space is.

    Raises:
        TypeError: the space, or one in it, has no data of a fixed shape or no dtype of torch's; or
            a name in it is no string.

    Example:
        >>> spec_of_space(spaces.Discrete(3), one_hot=True).shape
        torch.Size([3])
        >>> list(spec_of_space(spaces.Tuple([spaces.Text(5), spaces.Discrete(3)])).keys())
        ['0', '1']
    """
    return _spec(space, one_hot, ())


def _spec(space: Space, one_hot: bool, path: tuple[Any, ...]) -> TensorSpec:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = parts_of_space(space)
        return Composite({str(name): _spec(one, one_hot, (*path, name)) for name, one in parts})
    if isinstance(space, spaces.Box):
        return _box(space, path)
    if isinstance(space, spaces.Discrete):
        n = int(space.n)
        return OneHot(n, device="cpu") if one_hot else Categorical(n, (), device="cpu")
    if isinstance(space, spaces.MultiDiscrete):
        if one_hot and space.nvec.ndim == 1:
            return MultiOneHot(space.nvec.tolist(), device="cpu")
        # rows keep their column: an action has the shape of its spec
        counts = torch.as_tensor(space.nvec, device="cpu")
        return MultiCategorical(counts, device="cpu", remove_singleton=False)
    if isinstance(space, spaces.MultiBinary):
        return Binary(shape=space.shape, dtype=torch.int8, device="cpu")
    if isinstance(space, spaces.Text):
        return Alphabet(space).spec
    known = "Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict or Tuple"
    msg = (
        f"expected a {known} space: got {type(space).__name__}{_place(path)}. Wrap the environment "
        f"so that its data has a fixed shape."
    )
    raise TypeError(msg)


def _place(path: tuple[Any, ...]) -> str:
    return "" if not path else f" at {path[0]!r}" if len(path) == 1 else f" at {path!r}"


def _box(space: spaces.Box, path: tuple[Any, ...]) -> TensorSpec:
    dtype = _dtype(space, path)
    if dtype == torch.bool and not space.low.any() and space.high.all():
        return Binary(shape=space.shape, dtype=dtype, device="cpu")
    free = np.isinf(space.low).all() and np.isinf(space.high).all()
    if free and dtype.is_floating_point:
        return Unbounded(space.shape, dtype=dtype, device="cpu")
    held = torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
    low, high = (torch.from_numpy(np.array(b, dtype=held)) for b in (space.low, space.high))
    return Bounded(low, high, space.shape, device="cpu", dtype=dtype)


def _dtype(space: spaces.Box, path: tuple[Any, ...]) -> torch.dtype:
    """The dtype that holds every value of a box."""
    name = space.dtype.name
    if name == "uint64" and (space.high > np.iinfo(np.int64).max).any():
        name = "uint64 above the largest int64"
    found = DTYPES.get(name)
    if found is None:
        msg = f"torch has no dtype for a Box of {name}{_place(path)}: cast it by a wrapper."
        raise TypeError(msg)
    return found


def spec_under(name: str, space: Space, *, one_hot: bool = False) -> Composite:
    """Describe the data of a space by the keys that `leaves_of_space` gives it."""
    spec = spec_of_space(space, one_hot=one_hot)
    if isinstance(space, spaces.Dict):
        assert isinstance(spec, Composite)
        return spec
    return Composite({name: spec})


def space_of_spec(spec: TensorSpec) -> Space:
    """Describe the data of a spec as a Gymnasium space.

    Args:
        spec: a spec of fixed sizes.

    Returns:
        The space of one value. One-hot specs become `Discrete` and `MultiDiscrete`; a `Composite`
        becomes a `Dict`, or a `Tuple` where its names are "0", "1", and so on.

    Raises:
        TypeError: there is no space for it.

    Example:
        >>> space_of_spec(OneHot(3))
        Discrete(3)
    """
    return _space_of(spec)


@singledispatch
def _space_of(spec: Any) -> Space:
    msg = f"there is no Gymnasium space for {type(spec).__name__}."
    raise TypeError(msg)


@_space_of.register
def _(spec: Bounded) -> Space:
    low, high = (_broadcast(bound, spec) for bound in (spec.space.low, spec.space.high))
    return spaces.Box(low, high, tuple(spec.shape), low.dtype.type)


@_space_of.register
def _(spec: Unbounded) -> Space:
    dtype = spec.zero().cpu().numpy().dtype
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, tuple(spec.shape), dtype.type)
    limits = np.iinfo(dtype)
    return spaces.Box(int(limits.min), int(limits.max), tuple(spec.shape), dtype.type)


@_space_of.register
def _(spec: Categorical) -> Space:
    if spec.ndim:
        return spaces.MultiDiscrete(np.full(tuple(spec.shape), spec.n))
    return spaces.Discrete(spec.n)


@_space_of.register
def _(spec: OneHot) -> Space:
    return space_of_spec(spec.to_categorical_spec())


@_space_of.register
def _(spec: MultiCategorical) -> Space:
    return spaces.MultiDiscrete(np.asarray(spec.nvec.cpu()))


@_space_of.register
def _(spec: MultiOneHot) -> Space:
    return space_of_spec(spec.to_categorical_spec())


@_space_of.register
def _(spec: Binary) -> Space:
    if spec.dtype == torch.bool:
        return spaces.Box(0, 1, tuple(spec.shape), np.bool_)
    return spaces.MultiBinary(spec.shape[0] if spec.ndim == 1 else tuple(spec.shape))


@_space_of.register
def _(spec: Composite) -> Space:
    named: dict[Any, Any] = dict(spec.items())
    parts: dict[Any, Space] = {name: space_of_spec(inner) for name, inner in named.items()}
    if parts and list(parts) == [str(place) for place in range(len(parts))]:
        return spaces.Tuple(parts.values())
    return spaces.Dict(parts)


def _broadcast(bound: torch.Tensor, spec: TensorSpec) -> Array:
    array: Array = bound.to(spec.dtype).expand(spec.shape).cpu().numpy()
    return array
