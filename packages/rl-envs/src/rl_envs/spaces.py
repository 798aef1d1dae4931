"""Gymnasium spaces as specs, specs as spaces, and values between the two."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

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

Space = gymnasium.Space[Any]
Array = np.ndarray[Any, Any]


def spec_of_space(space: Space, *, one_hot: bool = False) -> TensorSpec:
    """Describe the data of a Gymnasium space.

    `Box` becomes `Bounded`, or `Unbounded` where it has no bound at all; `Discrete` and
    `MultiDiscrete` become categorical or one-hot; `MultiBinary` becomes `Binary`; `Dict` becomes
    `Composite`. Numbers count from 0 also where the space starts elsewhere.

    Args:
        space: a space.
        one_hot: write choices as one-hot vectors, bool; otherwise as int64 numbers.

    Returns:
        The spec of one value.

    Raises:
        TypeError: the space has no data of a fixed shape.

    Example:
        >>> spec_of_space(spaces.Discrete(3), one_hot=True).shape
        torch.Size([3])
    """
    if isinstance(space, spaces.Box):
        return _box(space)
    if isinstance(space, spaces.Discrete):
        return OneHot(int(space.n)) if one_hot else Categorical(int(space.n), ())
    if isinstance(space, spaces.MultiDiscrete):
        if one_hot and space.nvec.ndim == 1:
            return MultiOneHot(space.nvec.tolist())
        return MultiCategorical(torch.as_tensor(space.nvec))
    if isinstance(space, spaces.MultiBinary):
        return Binary(shape=space.shape, dtype=torch.int8)
    if isinstance(space, spaces.Dict):
        return Composite(
            {name: spec_of_space(inner, one_hot=one_hot) for name, inner in space.spaces.items()}
        )
    msg = (
        f"expected a Box, Discrete, MultiDiscrete, MultiBinary or Dict space: got "
        f"{type(space).__name__}. Wrap the environment so that its data has a fixed shape."
    )
    raise TypeError(msg)


def _box(space: spaces.Box) -> TensorSpec:
    dtype = torch.from_numpy(np.empty(0, space.dtype)).dtype
    free = np.isinf(space.low).all() and np.isinf(space.high).all()
    if free and dtype.is_floating_point:
        return Unbounded(space.shape, dtype=dtype)
    low, high = (torch.from_numpy(np.array(bound)) for bound in (space.low, space.high))
    return Bounded(low, high, space.shape, dtype=dtype)


@singledispatch
def space_of_spec(spec: TensorSpec) -> Space:
    """Describe the data of a spec as a Gymnasium space.

    Args:
        spec: a spec of fixed sizes.

    Returns:
        The space of one value. One-hot specs become `Discrete` and `MultiDiscrete`.

    Raises:
        TypeError: there is no space for it.

    Example:
        >>> space_of_spec(OneHot(3))
        Discrete(3)
    """
    msg = f"there is no Gymnasium space for {type(spec).__name__}."
    raise TypeError(msg)


@space_of_spec.register
def _(spec: Bounded) -> Space:
    low, high = (_broadcast(bound, spec) for bound in (spec.space.low, spec.space.high))
    return spaces.Box(low, high, tuple(spec.shape), low.dtype.type)


@space_of_spec.register
def _(spec: Unbounded) -> Space:
    dtype = spec.zero().numpy().dtype
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, tuple(spec.shape), dtype.type)
    limits = np.iinfo(dtype)
    return spaces.Box(int(limits.min), int(limits.max), tuple(spec.shape), dtype.type)


@space_of_spec.register
def _(spec: Categorical) -> Space:
    if spec.ndim:
        return spaces.MultiDiscrete(np.full(tuple(spec.shape), spec.n))
    return spaces.Discrete(spec.n)


@space_of_spec.register
def _(spec: OneHot) -> Space:
    return space_of_spec(spec.to_categorical_spec())


@space_of_spec.register
def _(spec: MultiCategorical) -> Space:
    return spaces.MultiDiscrete(np.asarray(spec.nvec))


@space_of_spec.register
def _(spec: MultiOneHot) -> Space:
    return space_of_spec(spec.to_categorical_spec())


@space_of_spec.register
def _(spec: Binary) -> Space:
    return spaces.MultiBinary(spec.shape[0] if spec.ndim == 1 else tuple(spec.shape))


@space_of_spec.register
def _(spec: Composite) -> Space:
    named: dict[Any, Any] = dict(spec.items())
    return spaces.Dict({name: space_of_spec(inner) for name, inner in named.items()})


def _broadcast(bound: torch.Tensor, spec: TensorSpec) -> Array:
    array: Array = bound.to(spec.dtype).expand(spec.shape).numpy()
    return array


def writer_of_space(space: Space, key: tuple[str, ...]) -> Callable[[Array, Any], None]:
    """Make what writes values of a leaf space into rows of its spec.

    Args:
        space: a space that is no `Dict`.
        key: what to call it in messages.

    Returns:
        A function of a row, written in place, and a value. It refuses other shapes.

    Example:
        >>> row = np.zeros(2, "float32")
        >>> writer_of_space(spaces.Box(0, 1, (2,)), ("observation",))(row, [0.5, 1.0])
        >>> row.tolist()
        [0.5, 1.0]
    """
    start: Any = getattr(space, "start", 0)
    moved = bool(np.any(start))

    def write(row: Array, value: Any) -> None:
        found = value.shape if isinstance(value, np.ndarray) else np.shape(value)
        if found != row.shape:
            msg = f"{key[-1] if len(key) == 1 else key!r}: expected shape {row.shape}, got {found}."
            raise ValueError(msg)
        row[...] = value - start if moved else value

    return write


def reader_of_space(space: Space, *, one_hot: bool) -> Callable[[Array], Any]:
    """Make what reads rows of a spec as values of a leaf space.

    Args:
        space: a space that is no `Dict`.
        one_hot: whether choices lie in the rows as one-hot vectors.

    Returns:
        A function of a row. Arrays that it returns are copies, because environments keep them.

    Example:
        >>> reader_of_space(spaces.Discrete(2, start=5), one_hot=True)(np.array([False, True]))
        6
    """
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        if one_hot:
            return lambda row: int(row.argmax()) + start
        return lambda row: int(row) + start
    if isinstance(space, spaces.MultiDiscrete):
        starts = space.start
        if one_hot and space.nvec.ndim == 1:
            cuts = np.cumsum(space.nvec)[:-1]
            return lambda row: (
                np.array([part.argmax() for part in np.split(row, cuts)], space.dtype) + starts
            )
        return lambda row: row.astype(space.dtype) + starts
    return np.array


def batch_reader_of_space(space: Space, *, one_hot: bool) -> Callable[[Array], Array]:
    """Make what reads a batch of rows of a spec as a batch of values of a leaf space.

    Args:
        space: a space that is no `Dict`, of one row.
        one_hot: whether choices lie in the rows as one-hot vectors.

    Returns:
        A function of rows `[B, ...]`. What it returns is a copy, because environments keep it.

    Example:
        >>> read = batch_reader_of_space(spaces.Discrete(3), one_hot=True)
        >>> read(np.eye(3)[[2, 0]] > 0).tolist()
        [2, 0]
    """
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        if one_hot:
            return lambda rows: rows.argmax(-1) + start
        return lambda rows: rows + start
    if isinstance(space, spaces.MultiDiscrete):
        starts = space.start
        if one_hot and space.nvec.ndim == 1:
            cuts = np.cumsum(space.nvec)[:-1]
            return lambda rows: (
                np.stack([part.argmax(-1) for part in np.split(rows, cuts, -1)], -1) + starts
            )
        return lambda rows: rows + starts
    return np.array


def leaves_of_space(space: Space, name: str) -> list[tuple[tuple[str, ...], Space]]:
    """List the leaf spaces, those of a `Dict` under their own names.

    Args:
        space: any space.
        name: the key of a space that is no `Dict`.

    Returns:
        Key and space of each leaf.

    Example:
        >>> [key for key, _ in leaves_of_space(spaces.Dict(a=spaces.Discrete(2)), "observation")]
        [('a',)]
    """
    if not isinstance(space, spaces.Dict):
        return [((name,), space)]
    return [
        ((part, *rest) if isinstance(inner, spaces.Dict) else (part,), leaf)
        for part, inner in space.spaces.items()
        for rest, leaf in leaves_of_space(inner, part)
    ]


def value_at(value: Any, path: tuple[str, ...]) -> Any:
    """Read one leaf of a nested dictionary.

    Args:
        value: nested dictionaries, or the leaf itself where the path is empty.
        path: names, outermost first.

    Returns:
        The leaf.

    Example:
        >>> value_at({"a": {"b": 3}}, ("a", "b"))
        3
    """
    for part in path:
        value = value[part]
    return value
