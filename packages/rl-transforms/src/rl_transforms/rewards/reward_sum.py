"""Returns: the running sum of the rewards of a trajectory."""

from __future__ import annotations

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import Segments, keys
from rl_layout.keys import next_key
from rl_specs import Composite, TensorSpec, Unbounded
from rl_tensordict import NestedKey, as_tuple, device_of_data, sibling
from rl_tensordict.arguments import key_list
from rl_transforms.entries import not_reset, required, with_entries
from rl_transforms.episodes.groups import group_mask, next_done
from rl_transforms.episodes.step_counter import carried_over
from rl_transforms.transform import Keys, Transform, with_specs


class RewardSum(Transform):
    """Adds up the rewards since the last reset.

    The sum is 0 at a reset and is under ``"next"`` after every step, so that its value where a
    trajectory ends is the trajectory's return, undiscounted. `rows` adds in the order of the steps,
    so sums have the same bits however the steps are cut into batches.

    Args:
        in_keys: rewards; ``["reward"]`` by default.
        out_keys: their sums; by default ``"episode_"`` is put before the last part of each key.

    Raises:
        ValueError: there is not one out key per in key.

    Example:
        >>> from tensordict import TensorDict
        >>> summed = RewardSum()
        >>> root = summed.reset(TensorDict({}, [2]))
        >>> root = summed.step(root, TensorDict({"reward": torch.ones(2, 1)}, [2]))
        >>> summed.step(root, TensorDict({"reward": torch.ones(2, 1)}, [2]))["episode_reward"]
        tensor([[2.],
                [2.]])
    """

    online = False

    def __init__(self, in_keys: Keys = None, out_keys: Keys = None) -> None:
        read = [keys.REWARD] if in_keys is None else key_list("in_keys", in_keys)
        if out_keys is None:
            out_keys = [sibling(key, f"episode_{as_tuple(key)[-1]}") for key in read]
        super().__init__(read, out_keys)
        self.reward_specs: dict[NestedKey, tuple[torch.Size, torch.dtype]] = {}
        self._rewards: list[NestedKey] = []  # all of the environment

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Return sampled rows unchanged: sums are stored with them."""
        return batch

    def reset(self, root: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Start to add up in the rows that were reset.

        Args:
            root: ``[*B]``, after the reset.
            mask: bool ``[*B]``, the rows that were reset; None if all were.

        Returns:
            The root with sums, 0 in those rows. Without a reward spec the shape of a nested
            reward is not known before the first step, whose sum then starts at 0.

        Raises:
            TypeError: the mask is not boolean.
            ValueError: it does not have the shape of the batch.
        """
        changes = {}
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            kept = root.get(out, None)
            if mask is not None and kept is not None:
                changes[out] = kept.masked_fill(group_mask(mask, kept.shape, kept.device), 0)
            elif key in self.reward_specs or len(as_tuple(key)) == 1:
                usual = (torch.Size((*root.batch_size, 1)), torch.get_default_dtype())
                shape, dtype = self.reward_specs.get(key, usual)
                changes[out] = torch.zeros(shape, dtype=dtype, device=device_of_data(root))
        return with_entries(root, changes)

    def step(self, root: TensorDictBase, after: TensorDictBase) -> TensorDictBase:
        """Add the rewards of a step.

        Args:
            root: ``[*B]`` with the sums before it.
            after: ``[*B]`` with the rewards.

        Returns:
            The new ``after``, with the sums.

        Raises:
            KeyError: a reward is missing, or a sum is: `reset` was not called.
        """
        changes = {}
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            reward, before = required(self, after, key), root.get(out, None)
            if before is None and (key in self.reward_specs or len(as_tuple(key)) == 1):
                raise not_reset(self, out, root)
            changes[out] = (torch.zeros_like(reward) if before is None else before) + reward
        return with_entries(after, changes)

    def rows(self, batch: TensorDictBase, last: TensorDictBase | None = None) -> TensorDictBase:
        """Add up the rewards of finished rows.

        Args:
            batch: ``[*B, T]`` in the order of collection.
            last: ``[*B]``, the column before these as this method returned it; None if the
                first follows a reset.

        Returns:
            The rows with the sums before each step at the root, and after it under ``"next"``.

        Raises:
            KeyError: a reward or a done flag is missing under ``"next"``.
        """
        changes: dict[NestedKey, Tensor] = {}
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            reward = required(self, batch, next_key(key))
            start = torch.zeros_like(reward.select(batch.ndim - 1, 0))
            if last is not None:
                start = carried_over(last, out, _group_done(self, last, key, start))
            before, after = _sums_around(
                reward, _group_done(self, batch, key, reward), batch.ndim - 1, start
            )
            changes[out], changes[next_key(out)] = before, after
        return with_entries(batch, changes)

    @property
    def carried(self) -> list[NestedKey]:
        """The sums."""
        return self.out_keys

    def transform_reward_spec(self, spec: Composite) -> Composite:
        """Learn the shapes of the rewards; the spec itself stays as it is."""
        self._rewards = list(spec.keys(True, True))
        specs = {key: spec[key] for key in self.in_keys if key in spec}
        self.reward_specs = {key: (leaf.shape, leaf.dtype) for key, leaf in specs.items()}
        return spec

    def transform_observation_spec(self, spec: Composite) -> Composite:
        """Add the sums. Called after `transform_reward_spec`.

        Raises:
            KeyError: a key is neither a reward nor an observation of the environment.
        """
        changes: dict[NestedKey, TensorSpec] = {}
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            if self._rewards and key not in self.reward_specs and key not in spec:
                msg = (
                    f"RewardSum: the environment has no reward {key!r}: "
                    f"name {', '.join(map(repr, self._rewards))} in in_keys."
                )
                raise KeyError(msg)
            usual = (torch.Size((*spec.shape, 1)), torch.get_default_dtype())
            shape, dtype = self.reward_specs.get(key, usual)
            changes[out] = Unbounded(shape, dtype=dtype)
        return with_specs(spec, changes)


def _sums_around(reward: Tensor, done: Tensor, time: int, start: Tensor) -> tuple[Tensor, Tensor]:
    """Sums before and after each step, added in the order of the steps."""
    # In another order the last bits would depend on where batches are cut. So segments are summed
    # column by column in blocks of similar length, longest first.
    columns = reward.movedim(time, -1)  # [*B, ..., T]
    segments = Segments.from_ends(done.movedim(time, -1).unsqueeze(-1))
    carried = torch.zeros_like(columns)
    carried[..., 0] = start
    # [S], longest segment first: the sum to start from, 0 except in segments that start at t = 0
    carried = segments.first(carried).index_select(0, segments.order)
    sums_after = torch.empty_like(columns, memory_format=torch.contiguous_format).reshape(-1)
    for block in segments.time_blocks(max_waste=0.25):
        rewards = block.gather(columns, columns.shape)  # [K, n]
        # carried holds one entry for each segment that continues into this block, [n]
        sums = _running_sums(torch.cat([carried[None, : rewards.shape[1]], rewards]))[1:]
        block.scatter(sums, sums_after)
        carried = sums[-1]
    total = sums_after.reshape(columns.shape).movedim(-1, time)
    earlier = done.shape[time] - 1
    before = total.narrow(time, 0, earlier).masked_fill(done.narrow(time, 0, earlier), 0)
    return torch.cat([start.unsqueeze(time), before], time), total


def _running_sums(values: Tensor) -> Tensor:
    """Cumulative sum of ``[K, n]`` along dimension 0, sequentially and in its own dtype."""
    # torch.cumsum adds in double precision on a CPU, and in another order on a GPU
    if values.is_cuda or values.requires_grad or values.dtype == torch.bfloat16:
        sums = [values[0]]
        for row in values[1:]:
            sums.append(sums[-1] + row)
        return torch.stack(sums)
    array = values.numpy()
    return torch.from_numpy(np.add.accumulate(array, axis=0, dtype=array.dtype))


def _group_done(who: object, batch: TensorDictBase, key: NestedKey, like: Tensor) -> Tensor:
    """The done flags of the innermost group of a key that has some, in the shape of a leaf."""
    group = as_tuple(key)[:-1]
    while group and all(batch.get((keys.NEXT, *group, n), None) is None for n in keys.DONE_KEYS):
        group = group[:-1]
    done = next_done(who, batch, group)
    shape = (*done.shape[:-1], *[1] * (like.ndim - done.ndim), done.shape[-1])
    return done.reshape(shape).expand_as(like)
