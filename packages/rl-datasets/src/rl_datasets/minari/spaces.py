"""Gymnasium spaces as the metadata of Minari hold them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rl_tensordict.types import Array, KeyPath

SpaceRecord = Mapping[str, Any]
_TUPLE = "_index_"


def leaf_spaces(space: SpaceRecord, prefix: KeyPath = ()) -> Iterator[tuple[KeyPath, SpaceRecord]]:
    """The spaces of the leaves of a space, by their paths in a file."""
    if space["type"] == "Dict":
        for name, one in space["subspaces"].items():
            yield from leaf_spaces(one, (*prefix, name))
    elif space["type"] == "Tuple":
        for number, one in enumerate(space["subspaces"]):
            yield from leaf_spaces(one, (*prefix, f"{_TUPLE}{number}"))
    else:
        yield prefix, space


def is_image(space: SpaceRecord) -> bool:
    """Whether Minari keeps frames of the space as JPEG, if it is told to."""
    if space["type"] != "Box" or space["dtype"] != "uint8" or len(space["shape"]) not in (2, 3):
        return False
    return min(space["shape"][:2]) >= 32 and _all(space["low"], 0) and _all(space["high"], 255)


def box_of(rows: Array) -> dict[str, Any]:
    """A space that all rows are in: unbounded floats, or the whole range of integers."""
    shape, low, high = list(rows.shape[1:]), -math.inf, math.inf
    if rows.dtype.kind == "b":
        low, high = False, True
    elif rows.dtype.kind != "f":
        limits = np.iinfo(rows.dtype)
        low, high = int(limits.min), int(limits.max)
    bounds = {"low": _full(shape, low), "high": _full(shape, high)}
    return {"type": "Box", "dtype": str(rows.dtype), "shape": shape, **bounds}


def nested(leaves: Mapping[KeyPath, SpaceRecord]) -> dict[str, Any]:
    """The space whose leaves are at some paths: the leaf itself at the empty one."""
    if () in leaves:
        return dict(leaves[()])
    groups: dict[str, dict[KeyPath, SpaceRecord]] = {}
    for path, space in leaves.items():
        groups.setdefault(path[0], {})[path[1:]] = space
    inner = {name: nested(group) for name, group in groups.items()}
    numbers = [f"{_TUPLE}{number}" for number in range(len(inner))]
    if sorted(inner) == sorted(numbers):
        return {"type": "Tuple", "subspaces": [inner[name] for name in numbers]}
    return {"type": "Dict", "subspaces": inner}


def plain_space(space: Any) -> dict[str, Any]:
    """A space of Gymnasium as Minari writes it; one that is written so already as it is."""
    if isinstance(space, str):
        return dict(json.loads(space))
    if type(space) is dict:
        return dict(space)
    kind = type(space).__name__  # a Dict of Gymnasium is a mapping as well
    if kind == "Box":
        bounds = {"low": space.low.tolist(), "high": space.high.tolist()}
        return {"type": kind, "dtype": str(space.dtype), "shape": list(space.shape), **bounds}
    if kind == "Discrete":
        return {"type": kind, "dtype": "int64", "start": int(space.start), "n": int(space.n)}
    if kind == "MultiDiscrete":
        sizes = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        return {"type": kind, "dtype": str(space.dtype), **sizes}
    if kind == "MultiBinary":
        return {"type": kind, "n": space.n}
    if kind == "Dict":
        inner = {name: plain_space(one) for name, one in space.spaces.items()}
        return {"type": kind, "subspaces": inner}
    if kind == "Tuple":
        return {"type": kind, "subspaces": [plain_space(one) for one in space.spaces]}
    raise TypeError(f"Minari knows no space of the type {kind}: give a Box, Discrete or Dict.")


def read_space(text: str) -> SpaceRecord:
    """A space from the text in the metadata."""
    space: SpaceRecord = json.loads(text)
    return space


def _full(shape: list[int], value: float) -> Any:
    return [_full(shape[1:], value) for _ in range(shape[0])] if shape else value


def _all(values: Any, value: float) -> bool:
    if isinstance(values, list):
        return all(_all(one, value) for one in values)
    return bool(values == value)
