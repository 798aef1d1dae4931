"""Done flags of the root given to groups that have none of their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import keys
from rl_specs import Binary, Composite
from rl_tensordict import NestedKey, as_key, as_tuple
from rl_tensordict.arguments import key_list
from rl_transforms.entries import with_entries
from rl_transforms.transform import Transform, with_specs


class GroupDone(Transform):
    """Gives groups, as the agents of a team, the done flags of the root.

    Estimators read the flags of a group where its rewards are under it. A group without flags of
    its own ends when the environment does: each of its members gets a copy of ``done``,
    ``terminated`` and ``truncated``, of the shape of the group's reward. An `InitTracker` after it
    marks the group's first steps as well.

    Args:
        groups: key of a group, or a list of keys.

    Raises:
        ValueError: no group is named; in an environment, a group has flags of its own, or no reward
            that tells its shape.

    Example:
        >>> from tensordict import TensorDict
        >>> agents = TensorDict({"reward": torch.zeros(3, 1)}, [3])
        >>> after = TensorDict({"agents": agents, "done": torch.tensor([True])}, [])
        >>> GroupDone("agents").step(after, after)["agents", "done"].flatten()
        tensor([True, True, True])
    """

    online = False

    def __init__(self, groups: NestedKey | Sequence[NestedKey]) -> None:
        super().__init__()
        named = [groups] if isinstance(groups, str | tuple) else key_list("groups", groups)
        self.groups = [as_tuple(key) for key in named]
        if not self.groups:
            msg = f"expected the key of a group, as 'agents', or a list of keys: got {groups!r}."
            raise ValueError(msg)
        self._shapes: dict[tuple[str, ...], torch.Size] = {}
        self._members: dict[tuple[str, ...], torch.Size] = {}

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Copy the flags of sampled or finished rows, at the root and under ``"next"``."""
        batch = self._copied(batch)
        after = batch.get(keys.NEXT, None)
        return batch if after is None else with_entries(batch, {keys.NEXT: self._copied(after)})

    def reset(self, root: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Copy the flags of a root."""
        return self._copied(root)

    def step(self, root: TensorDictBase, after: TensorDictBase) -> TensorDictBase:
        """Copy the flags of a step."""
        return self._copied(after)

    def transform_reward_spec(self, spec: Composite) -> Composite:
        """Learn the shapes of the groups; the spec itself stays as it is."""
        for key, leaf in spec.items(True, True):
            group = as_tuple(key)[:-1]
            if group in self.groups and leaf is not None:
                self._shapes[group] = torch.Size((*leaf.shape[:-1], 1))
                self._members[group] = torch.Size(leaf.shape[spec.ndim : -1])
        return spec

    def transform_done_spec(self, spec: Composite) -> Composite:
        """Add the flags of the groups. Called after `transform_reward_spec`."""
        for group in self.groups:
            if group not in self._shapes:
                msg = f"GroupDone: {as_key(group)!r} has no reward that tells the shape of a flag."
                raise ValueError(msg)
            if any((*group, name) in spec for name in keys.DONE_KEYS):
                msg = f"GroupDone: {as_key(group)!r} has done flags of its own: leave it out."
                raise ValueError(msg)
            shape = self._shapes[group]
            flags = {name: Binary(shape=shape, dtype=torch.bool) for name in keys.DONE_KEYS}
            held = spec.get(group, None)
            if held is None:
                spec = with_specs(spec, {group: Composite(flags, shape=shape[:-1])})
            else:
                spec = with_specs(spec, {(*group, name): one for name, one in flags.items()})
        return spec

    def _copied(self, batch: TensorDictBase) -> TensorDictBase:
        changes: dict[NestedKey, Tensor] = {}
        for group in self.groups:
            holder = batch.get(group, None)
            if holder is None:
                continue
            members = holder.batch_size[batch.ndim :]
            if not members:  # a group that an environment made of a plain dict has no sizes
                members = self._members.get(group, members)
            shape = (*batch.batch_size, *members, 1)
            for name in keys.DONE_KEYS:
                flag = batch.get(name, None)
                if flag is not None:
                    # [*B, 1] -> [*B, 1, ..., 1] -> [*B, *members, 1]
                    wide = flag.reshape(*flag.shape[:-1], *(1,) * (len(shape) - flag.ndim), 1)
                    changes[(*group, name)] = wide.expand(shape).clone()
        return with_entries(batch, changes) if changes else batch

    def extra_repr(self) -> str:
        """List the groups."""
        return f"groups={[as_key(group) for group in self.groups]}"
