"""The same flow on the CPU, and with a default device of torch that has no data."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import torch
from tensordict import TensorDictBase

from rl_layout.keys import STORAGE_ID


def tree_of(value):
    """What a flow found, as plain lists that compare by value."""
    if isinstance(value, torch.Tensor):
        assert value.is_cpu
        return value.tolist()
    if isinstance(value, TensorDictBase):
        leaves = value.exclude(STORAGE_ID).items(True, True)
        return {str(key): tree_of(leaf) for key, leaf in leaves}
    return [tree_of(one) for one in value] if isinstance(value, list | tuple) else value


def assert_same_under_any_default(flow):
    """Run a flow on the CPU, and with a default device that has no data."""
    found = []
    for default in (nullcontext(), torch.device("meta")):
        torch.manual_seed(5)
        with default:
            found.append(tree_of(flow()))
    np.testing.assert_equal(found[1], found[0])
