"""Fuzzed parts of rl-specs that have no public name: the methods of one spec of each kind."""

from __future__ import annotations

import numpy as np
import torch
from fuzz_pools import TENSORS, Pool, each
from tensordict import TensorDict

from rl_specs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    Unbounded,
)

MASK = torch.tensor([True, False, True])


def composite() -> Composite:
    """One of several leaves and a nested one."""
    return Composite(
        action=OneHot(3, (2, 3)),
        observation=Bounded(-1, 1, (2, 3)),
        next=Composite(reward=Unbounded((2, 1)), shape=(2,)),
        shape=(2,),
    )


CALLS = [
    ("Bounded()", lambda: Bounded(-1, 1, (2, 3))),
    ("BoundedDiscrete()", lambda: Bounded(0, torch.arange(3), (2, 3), dtype=torch.int64)),
    ("Unbounded()", lambda: Unbounded((2, 3))),
    ("UnboundedDiscrete()", lambda: Unbounded((-1, 3), dtype=torch.uint8)),
    ("Categorical()", lambda: Categorical(3, (2,), mask=MASK)),
    ("OneHot()", lambda: OneHot(3, (2, 3), mask=MASK)),
    ("OneHot(use_register)", lambda: OneHot(3, use_register=True)),
    ("MultiCategorical()", lambda: MultiCategorical([3, 2], (2, 2))),
    ("MultiOneHot()", lambda: MultiOneHot([3, 2])),
    ("Binary()", lambda: Binary(3)),
    ("NonTensor()", lambda: NonTensor((2,), example_data="a", batched=True)),
    ("Composite()", composite),
    ("Stacked()", lambda: torch.stack([Bounded(0, 1, (3,)), Bounded(0, 2, (3,))])),
    ("StackedComposite()", lambda: torch.stack([composite(), Composite(shape=(2,))])),
]

SPECS: Pool = [
    lambda: Bounded(-1, 1, (3,)),
    lambda: Categorical(3),
    lambda: OneHot(3, (2, 3)),
    lambda: Unbounded((2, 3)),
    composite,
]
VALUES: Pool = [
    *TENSORS,
    lambda: composite().rand(),
    lambda: OneHot(3, (2, 3)).rand(),
    lambda: MultiCategorical([3, 2], (2, 2)).rand(),
    lambda: Categorical(3, (2,)).rand(),
    lambda: np.zeros((2, 3)),
    lambda: np.array([1, 0]),
    lambda: [1, 0],
    lambda: {"action": np.array([1, 0]), "observation": np.zeros((2, 3))},
]

POOLS: dict[str, Pool] = {
    "args": SPECS,
    "spec": SPECS,
    "specs": [lambda: [Bounded(0, 1, (3,)), Bounded(0, 2, (3,))], *SPECS],
    "val": VALUES,
    "value": VALUES,
    "item": VALUES,
    "nvec": [*each([2, 3], [2], (4, 1)), lambda: torch.tensor([2, 3])],
    "n": each(2, 3, 5),
    "mask": [lambda: MASK, lambda: MASK.expand(2, 3), *each(None)],
    "dest": each("cpu", torch.float64, torch.int64, None),
    "domain": each("continuous", "discrete", None),
    "data_cls": each(TensorDict, None),
    "names": each(None, ["time"], [None]),
    "tensor_to_index": TENSORS,
    "index": [*each(0, 1, ..., slice(None)), lambda: torch.tensor([0, 1]), *VALUES],
}
_WRITES = "writes into the tensordict that it is given, as it says"
CHANGES = {
    f"{name}.{kind}_update": _WRITES
    for name in ("Composite()", "StackedComposite()")
    for kind in ("rand", "zeros", "ones")
}
