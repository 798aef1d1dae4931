"""n-step rows of a batch: discounted rewards, and the observation and flags n steps later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import Segments, keys
from rl_layout.keys import next_key
from rl_tensordict import NestedKey, as_key, as_tuple, leaves, sibling, tensors
from rl_tensordict.arguments import check_number, check_whole, key_list, shown
from rl_transforms.entries import with_entries
from rl_transforms.multi_step.checks import (
    check_groups,
    check_horizon,
    check_rows,
    warn_of_single_rows,
)
from rl_transforms.transform import Keys, Transform

MANY = 64  # steps above which reading the longest segment saves more than it costs


class MultiStep(Transform):
    """Turns sampled rows into n-step rows.

    A row with m rows left in its segment, itself included, spans min(n, m) steps; a cut ends a
    segment like a done step. So samples must be slices: single rows lack their successors, which is
    warned of once; `MultiStepTransform` stores n-step rows instead. See `multi_step` for the
    result.

    Args:
        gamma: discount of a step, above 0 and at most 1.
        n_steps: n, at least 1.
        reward_keys: rewards to add up; ``["reward"]`` by default.

    Raises:
        ValueError: a number is out of range.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> rows = MultiStep(0.5, 2)(trajectories([3]))  # the rewards are 1, 2 and 3
        >>> rows["next", "reward"].flatten(), rows["next", "steps_to_next_obs"].flatten()
        (tensor([2.0000, 3.5000, 3.0000]), tensor([2, 2, 1]))
    """

    online = False
    places = frozenset({"buffer"})

    def __init__(self, gamma: float, n_steps: int, *, reward_keys: Keys = None) -> None:
        super().__init__([keys.REWARD] if reward_keys is None else reward_keys)
        check_horizon(gamma, n_steps)
        self.gamma = gamma
        self.n_steps = n_steps
        self._warned = False  # of a sample of single rows

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Make rows reach n steps ahead.

        Args:
            batch: TED rows ``[N]`` or ``[*B, T]``.

        Returns:
            The n-step rows.

        Raises:
            KeyError: a reward or every marker is missing.
            TypeError: a reward is not floating-point.
            ValueError: the rows cannot be extended; see `multi_step`.
        """
        extended = multi_step(batch, self.gamma, self.n_steps, self.in_keys)
        if not self._warned:
            self._warned = warn_of_single_rows(batch, extended, self.n_steps)
        return extended


def multi_step(
    batch: TensorDictBase,
    gamma: float,
    n_steps: int,
    reward_keys: Sequence[NestedKey] = (keys.REWARD,),
) -> TensorDictBase:
    """Make rows reach n steps ahead.

    With m = min(n, rows from t to the end of its segment):
    reward[t] = Σ gamma^k reward[t + k] for k from 0 to m - 1, and everything else under
    ``"next"``, done flags included, is that of row t + m - 1. So a target is
    reward + gamma^m value(next) where the row is not terminated, m being
    ``("next", "steps_to_next_obs")``. Only a row with m = 1 can be the last of a trajectory.

    Args:
        batch: TED rows ``[N]`` or ``[*B, T]``, one step each.
        gamma: discount of a step, above 0 and at most 1.
        n_steps: n, at least 1.
        reward_keys: rewards to add up, floating-point ``[*B, T, ...]`` under ``"next"``.

    Returns:
        The rows, with ``("next", "original_reward")`` (``original_`` before the name of each
        reward) and int64 ``("next", "steps_to_next_obs")`` ``[*B, T, 1]``. Padding rows stay.

    Raises:
        KeyError: a reward is missing, or there is no marker at all.
        TypeError: a reward is not floating-point, or a leaf under ``"next"`` is no tensor.
        ValueError: a number is out of range; the rows have several steps already; their next
            observations are stored as deltas; or a nested group ends on its own.

    Source:
        Sutton and Barto, Reinforcement Learning, 2nd edition, section 7.1.

    Example:
        >>> from rl_layout.testing import trajectories
        >>> rows = multi_step(trajectories([3]), gamma=0.5, n_steps=2)
        >>> rows["next", "terminated"].flatten(), rows["next", "observation"][:, 1]
        (tensor([False,  True,  True]), tensor([2., 3., 3.]))
    """
    check_horizon(gamma, n_steps)
    named = reward_keys if reward_keys == (keys.REWARD,) else key_list("reward_keys", reward_keys)
    rewards = check_rows(batch, named)
    segments = Segments.of(batch)
    check_groups(leaves(batch), row_ends(segments))
    last = last_rows(segments)  # [N]
    rows = torch.arange(segments.num_rows, device=last.device)
    steps = (last - rows + 1).clamp(max=n_steps)  # [N]
    sums = {key: discounted_sums(flat, last, gamma, n_steps) for key, flat in rewards.items()}
    return build_n_step(batch, rows + steps - 1, steps, sums)


def build_n_step(
    batch: TensorDictBase,
    target: Tensor,
    steps: Tensor,
    sums: Mapping[NestedKey, Tensor],
) -> TensorDictBase:
    """Build n-step rows from the target row, span and reward sums of each row, ``[N]``."""
    shape = batch.batch_size

    def take(leaf: Tensor, rows: Tensor) -> Tensor:
        flat = leaf.reshape(-1, *leaf.shape[batch.ndim :])
        return flat.index_select(0, rows).reshape(*shape, *flat.shape[1:])

    changes: dict[NestedKey, Tensor] = {}
    for key, leaf in tensors(batch[keys.NEXT]).items():
        if as_key(key) not in sums:
            changes[next_key(key)] = take(leaf, target)
    for name, summed in sums.items():
        reward = batch[next_key(name)]
        changes[next_key(name)] = summed.reshape(*shape, *summed.shape[1:])
        original = next_key(sibling(name, f"original_{as_tuple(name)[-1]}"))
        changes[original] = reward
    changes[keys.STEPS_TO_NEXT_OBS] = steps.reshape(*shape, 1)
    next_missing = batch.get(keys.NEXT_MISSING, None)
    if next_missing is not None:
        changes[keys.NEXT_MISSING] = take(next_missing, target)
    return with_entries(batch, changes)


def discounted_sums(reward: Tensor, last: Tensor, gamma: float, n_steps: int) -> Tensor:
    """Sum n discounted rewards from each row on, up to the end of its segment.

    sum[t] = Σ gamma^k reward[t + k] over k below n_steps with t + k ≤ last[t], in log2(n_steps)
    rounds: sums over 1, 2, 4, ... rows, combined by the binary digits of n_steps.

    Args:
        reward: floating-point ``[N, ...]``.
        last: int64 ``[N]``, the last row of each row's segment.
        gamma: discount of a step.
        n_steps: how many rewards at most, at least 1.

    Returns:
        ``[N, ...]``.

    Raises:
        TypeError: a tensor is none, or of another dtype; or a number is none.
        ValueError: the tensors differ in their length, or there are fewer steps than 1.

    Example:
        >>> last = torch.tensor([2, 2, 2, 3])
        >>> discounted_sums(torch.tensor([1.0, 2.0, 4.0, 8.0]), last, 0.5, 2)
        tensor([2., 4., 4., 8.])
    """
    check_number("gamma", gamma)
    check_whole("n_steps", n_steps, 1)
    _check_ends(reward, last)
    return sums_ahead(reward, last - torch.arange(len(last), device=last.device), gamma, n_steps)


def _check_ends(reward: Any, last: Any) -> None:
    if not isinstance(reward, Tensor) or not reward.is_floating_point() or reward.is_sparse:
        msg = f"reward: expected a floating-point tensor [N, ...], got {shown(reward)}."
        raise TypeError(msg)
    if not isinstance(last, Tensor) or last.dtype != torch.int64:
        msg = f"last: expected an int64 tensor [N], got {shown(last)}."
        raise TypeError(msg)
    if last.ndim != 1 or reward.shape[:1] != last.shape:
        msg = f"expected as many rewards as rows: got {list(reward.shape)} and {list(last.shape)}."
        raise ValueError(msg)


def sums_ahead(reward: Tensor, inside: Tensor, gamma: float, n_steps: int) -> Tensor:
    """Add up n discounted rewards; `inside` [N] counts the later rows of each segment."""
    # by binary digits of n: block holds sums over size = 1, 2, 4, ... rows, total those of the low
    # digits of n
    remaining = min(n_steps, len(inside))
    if remaining > MANY and len(inside):
        remaining = min(remaining, int(inside.max()) + 1)
    total: Tensor | None = None
    block, size = reward, 1
    while remaining:
        if remaining & 1:
            total = block if total is None else _plus_ahead(block, total, inside, size, gamma)
        remaining >>= 1
        if remaining:
            block = _plus_ahead(block, block, inside, size, gamma)
        size *= 2
    return reward.clone() if total is None or total is reward else total


def last_rows(segments: Segments) -> Tensor:
    """Find the last row of each row's segment, int64 ``[N]``; a padding row is its own."""
    lasts = segments.spread(segments.lasts)
    if not segments.has_gaps:
        return lasts
    own = torch.arange(segments.num_rows, device=lasts.device)
    return own.index_copy(0, segments.rows, lasts)


def row_ends(segments: Segments) -> Tensor:
    """Mark the last row of each segment, bool ``[N]``."""
    ends = torch.zeros(segments.num_rows, dtype=torch.bool, device=segments.lasts.device)
    return ends.index_fill_(0, segments.lasts, True)


def _plus_ahead(
    values: Tensor, ahead: Tensor, inside: Tensor, distance: int, gamma: float
) -> Tensor:
    """Values ``[N, ...]`` plus gamma^distance times those `distance` rows later in the segment."""
    within = (inside[:-distance] >= distance).reshape(-1, *[1] * (values.ndim - 1))
    added = values.clone()
    # where, not a product: 0 * inf is NaN, and a reward past the end may be infinite
    added[:-distance].add_(ahead[distance:].where(within, 0), alpha=gamma**distance)
    return added
