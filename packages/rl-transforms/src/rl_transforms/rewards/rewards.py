"""Rewards of another size."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_layout.keys import REWARD
from rl_specs import TensorSpec
from rl_tensordict.arguments import check_number, number_tensor
from rl_transforms.described import described, limited
from rl_transforms.transform import Keys, Transform


class RewardScaling(Transform):
    """Scales and shifts rewards: reward * scale + loc.

    Args:
        loc: the shift, a number or what broadcasts against a reward.
        scale: the factor, likewise; not 0.
        in_keys: rewards; ``["reward"]`` by default.
        out_keys: what to call them; the same by default.
        standard_normal: compute (reward - loc) / scale instead.

    Raises:
        ValueError: the factor is 0.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> batch = trajectories([3])
        >>> scaled = RewardScaling(loc=1.0, scale=2.0)(batch)["next", "reward"]
        >>> bool((scaled == batch["next", "reward"] * 2 + 1).all())
        True
    """

    online = False
    loc: Tensor
    scale: Tensor

    def __init__(
        self,
        loc: float | Tensor,
        scale: float | Tensor,
        in_keys: Keys = None,
        out_keys: Keys = None,
        standard_normal: bool = False,
    ) -> None:
        super().__init__([REWARD] if in_keys is None else in_keys, out_keys)
        for name, given in (("loc", loc), ("scale", scale)):
            # a double of no dimension changes no dtype
            self.register_buffer(name, number_tensor(name, given, torch.float64))
        if bool((self.scale == 0).any()):
            msg = f"scale must not be 0, which loses every reward: got {scale}."
            raise ValueError(msg)
        self.standard_normal = standard_normal

    def apply_leaf(self, value: Tensor) -> Tensor:
        """Scale one reward."""
        if self.standard_normal:
            return (value - self.loc) / self.scale
        return value * self.scale + self.loc

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """Describe a scaled reward."""
        return described(spec, self.apply_leaf)


class RewardClipping(Transform):
    """Holds rewards between two numbers.

    Args:
        clamp_min: the least; None for no bound.
        clamp_max: the most; None for no bound.
        in_keys: rewards; ``["reward"]`` by default.
        out_keys: what to call them; the same by default.

    Raises:
        ValueError: there is no bound, or they are crossed.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> float(RewardClipping(-0.5, 0.5)(trajectories([3]))["next", "reward"].max())
        0.5
    """

    online = False

    def __init__(
        self,
        clamp_min: float | None = None,
        clamp_max: float | None = None,
        in_keys: Keys = None,
        out_keys: Keys = None,
    ) -> None:
        super().__init__([REWARD] if in_keys is None else in_keys, out_keys)
        for name, bound in (("clamp_min", clamp_min), ("clamp_max", clamp_max)):
            if bound is not None:
                check_number(name, bound)
        # torch would clamp everything to the upper bound
        crossed = clamp_min is not None and clamp_max is not None and clamp_min > clamp_max
        if (clamp_min is None and clamp_max is None) or crossed:
            msg = (
                f"expected clamp_min <= clamp_max, one of them at least: {clamp_min}, {clamp_max}."
            )
            raise ValueError(msg)
        self.clamp_min, self.clamp_max = clamp_min, clamp_max

    def apply_leaf(self, value: Tensor) -> Tensor:
        """Clip one reward."""
        return value.clamp(self.clamp_min, self.clamp_max)

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec of clipped rewards: bounded by the clip and by the reward's spec."""
        return limited(spec, self.apply_leaf)


class BinarizeReward(Transform):
    """Replaces rewards above 0 by 1 and all others by 0, in their own dtype.

    Args:
        in_keys: rewards; ``["reward"]`` by default.
        out_keys: what to call them; the same by default.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> batch = RewardScaling(loc=-1.0, scale=1.0)(trajectories([3]))
        >>> BinarizeReward()(batch)["next", "reward"].flatten()
        tensor([0., 1., 1.])
    """

    online = False

    def __init__(self, in_keys: Keys = None, out_keys: Keys = None) -> None:
        super().__init__([REWARD] if in_keys is None else in_keys, out_keys)

    def apply_leaf(self, value: Tensor) -> Tensor:
        """Compare one reward with 0."""
        return (value > 0).to(value.dtype)

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """Describe what is 0 or 1."""
        return limited(spec, self.apply_leaf)


class SignTransform(Transform):
    """Replaces rewards by their signs: -1, 0 or 1.

    Args:
        in_keys: rewards; ``["reward"]`` by default.
        out_keys: what to call them; the same by default.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> SignTransform()(trajectories([3]))["next", "reward"].flatten()
        tensor([1., 1., 1.])
    """

    online = False

    def __init__(self, in_keys: Keys = None, out_keys: Keys = None) -> None:
        super().__init__([REWARD] if in_keys is None else in_keys, out_keys)

    def apply_leaf(self, value: Tensor) -> Tensor:
        """Take the sign of one reward."""
        return value.sign()

    def leaf_spec(self, spec: TensorSpec) -> TensorSpec:
        """Describe a sign: between -1 and 1."""
        return limited(spec, self.apply_leaf)
