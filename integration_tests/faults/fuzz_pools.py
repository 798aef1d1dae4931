"""Values for fuzzed calls: what fits an argument by its name, its annotation and its default."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from tensordict import TensorDict
from torch import nn

Pool: TypeAlias = list[Callable[[], Any]]


class Unfit:
    """An object that no argument expects."""

    def __repr__(self) -> str:
        return "Unfit()"


def steps(batch: tuple[int, ...] = (6,)) -> TensorDict:
    """Steps of two trajectories, with markers: `[*batch]`."""
    count = math.prod(batch)
    done = (torch.arange(count) % 3 == 2).reshape(*batch, 1)
    after = {
        "observation": torch.randn(*batch, 3),
        "reward": torch.randn(*batch, 1),
        "done": done,
        "terminated": done,
        "truncated": torch.zeros_like(done),
    }
    root = {
        "observation": torch.randn(*batch, 3),
        "action": torch.zeros(*batch, 2),
        "is_init": (torch.arange(count) % 3 == 0).reshape(*batch, 1),
        "collector": TensorDict({"traj_ids": (torch.arange(count) // 3).reshape(batch)}, batch),
        "next": TensorDict(after, batch),
    }
    made = TensorDict(root, batch)
    made.names = [*[None] * (len(batch) - 1), "time"]
    return made


def each(*values: Any) -> Pool:
    """Functions that return values which nothing changes."""
    return [lambda value=value: value for value in values]


# what fits no argument, or only some
BAD: Pool = [
    *each(None, -1, 0, 2, 10**12, 2**63, -(2**63), 1.5, -0.5, math.nan, math.inf, True, 1j),
    *each("text", "", b"bytes", (), (1, "a"), ("a", "b"), (-5,), (3, 0), ..., slice(None), int),
    *each(torch.float64, torch.complex64, torch.uint16, torch.Size([2]), range(3), NotImplemented),
    Unfit,
    list,
    dict,
    set,
    lambda: [1, "a"],
    lambda: [[1, 2], [3]],
    lambda: ["a", "a"],
    lambda: {"a": 1},
    lambda: {1: torch.zeros(2)},
    lambda: len,
    lambda: torch.tensor(3),
    lambda: torch.tensor(-7),
    lambda: torch.zeros(0),
    lambda: torch.zeros(2, 3),
    lambda: torch.full((2, 3), math.nan),
    lambda: torch.ones(3, dtype=torch.int64),
    lambda: torch.zeros(3, dtype=torch.bool),
    lambda: torch.zeros(2, dtype=torch.complex64),
    lambda: torch.zeros(5, 1, 2, dtype=torch.uint8),
    lambda: torch.zeros(2, 3).to_sparse(),
    lambda: np.zeros(3),
    lambda: np.array(["a", None], dtype=object),
    lambda: np.array("text"),
    lambda: np.float32(1.5),
    lambda: TensorDict({}, []),
    lambda: TensorDict({"a": torch.zeros(3)}, [3]),
    lambda: TensorDict({"a": {"b": "text"}}, []),
    lambda: nn.Linear(3, 2),
    steps,
]

INTEGERS = each(0, 1, 2, 3, 7)
KEYS = each("observation", "action", ("next", "reward"), ("a", "b"), "reward")
TENSORS: Pool = [
    lambda: torch.zeros(3),
    lambda: torch.rand(2, 3),
    lambda: torch.randn(6, 3),
    lambda: torch.arange(6),
    lambda: torch.arange(6).reshape(2, 3) % 2,
    lambda: torch.ones(6, 1, dtype=torch.bool),
    lambda: torch.tensor(1),
]
TENSORDICTS: Pool = [steps, lambda: steps((2, 3)), lambda: TensorDict({"a": torch.ones(3, 2)}, [3])]
MODULES: Pool = [lambda: nn.Linear(3, 2), nn.Identity]

# the first pattern that an argument's name matches
NAMES: list[tuple[str, Pool]] = [
    (r"^shape$|batch_size$|^sizes?$|_shape$", each((), (3,), (2, 3), 3, [2], None, (-1,), (5, 1))),
    (r"dtype", each(torch.float32, torch.int64, torch.bool, "float32", torch.uint8)),
    (r"device", each("cpu", None, torch.device("cpu"))),
    (r"dims?$|_dim_|^axis$", each(0, 1, -1)),
    (r"keys$|entries$", [lambda: ["observation"], lambda: ["action", ("next", "reward")], list]),
    (r"key$|^name$|^entry$", KEYS),
    (r"tensordicts?$|^td$|^data$|^batch$|^rows$", TENSORDICTS),
    (r"^index$|^indices$", [*each(0, -1, slice(1, 3)), lambda: torch.tensor([0, 1]), lambda: [1]]),
    (r"seed", each(0, 7)),
    (r"path|folder|dirname|^file", each("folder", "folder/file")),
    (r"^low$|^minimum$|^min$", each(-1, 0, -1.0)),
    (r"^high$|^maximum$|^max$", each(1, 3, 2.0)),
    (r"^args$", [*TENSORDICTS, *TENSORS]),
]
ANNOTATIONS: list[tuple[str, Pool]] = [
    (r"TensorDict", TENSORDICTS),
    (r"Module", MODULES),
    (r"Tensor\b", TENSORS),
    (r"NestedKey", KEYS),
    (r"\bfloat\b", each(0.0, 0.5, 1.0, 2.0, 1)),
    (r"\bint\b", INTEGERS),
    (r"\bbool\b", each(True, False)),
    (r"\bstr\b", each("mean", "sum", "a")),
]


def fitting(parameter: inspect.Parameter, pools: dict[str, Pool]) -> Pool:
    """Find values for an argument: those of the package by name, else by what it looks like."""
    if parameter.name in pools:
        return pools[parameter.name]
    default = [] if parameter.default is parameter.empty else each(parameter.default)
    for pattern, pool in NAMES:
        if re.search(pattern, parameter.name):
            return [*pool, *default]
    for pattern, pool in ANNOTATIONS:
        if re.search(pattern, str(parameter.annotation)):
            return [*pool, *default]
    return default
