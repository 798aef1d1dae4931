"""What transforms of samples call, and equality of rows to the bit."""

from __future__ import annotations

import torch

from rl_tensordict import leaves


class Onward:
    """A recurrent module, as far as `BurnIn` is concerned."""

    in_keys, out_keys = ["observation"], [("next", "observation")]

    def __call__(self, rows):
        """Replace what comes after each row."""
        return rows.set(("next", "observation"), rows["observation"] + 100)


def distance(rows):
    """Rewards of goals: how far the next observation is from what is wanted."""
    return (rows["next", "observation"] - rows["numbers"]).norm(dim=-1)


def assert_same(one, other):
    """Hold the same leaves, dtypes and bits against each other."""
    mine, theirs = dict(leaves(one)), dict(leaves(other))
    assert mine.keys() == theirs.keys()
    for key, value in mine.items():
        assert value.dtype == theirs[key].dtype, key
        torch.testing.assert_close(value, theirs[key], rtol=0, atol=0, equal_nan=True)
